"""Saved state: tensors by name, composed of the states of the parts that something is made of.

Whoever has parts names them in `parts`; what is saved and taken back is then written once, here.
A part is anything with a state of its own, a random stream, a module, or attributes of an object
(`Values`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


@runtime_checkable
class Stateful(Protocol):
    """Has a state that it gives and takes back."""

    def state(self) -> State: ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


Part = Stateful | torch.Generator | nn.Module


def under(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


class Composed:
    """Something made of parts: its state is theirs."""

    def parts(self) -> Mapping[str, Part]:
        """All that must be there again to go on exactly as before, by name."""
        return {}

    def state(self) -> State:
        """What a checkpoint must hold."""
        return {
            f"{name}/{key}": value
            for name, part in self.parts().items()
            for key, value in state_of(part).items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave, part by part in the order of `parts`."""
        for name, part in self.parts().items():
            give_back(part, under(f"{name}/", state))


def state_of(part: Part) -> State:
    """A part's state."""
    if isinstance(part, torch.Generator):
        return {"stream": part.get_state()}
    if isinstance(part, nn.Module):
        return {key: value.detach() for key, value in part.named_parameters()}
    return part.state()


def give_back(part: Part, state: Mapping[str, Tensor]) -> None:
    """Give a part its state back."""
    if isinstance(part, torch.Generator):
        part.set_state(state["stream"])
    elif isinstance(part, nn.Module):
        take_over(dict(part.named_parameters()), state)
    else:
        part.restore(state)


@torch.no_grad()
def take_over(parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    """Write weights into a model's parameters in place; all of them must be there."""
    for key, parameter in parameters.items():
        parameter.copy_(weights[key])


class Late:
    """A part that is only there from some moment on, and is made anew to take its state back."""

    def __init__(self, part: Part | None, make: Callable[[Mapping[str, Tensor]], Part]) -> None:
        self._part, self._make = part, make

    def state(self) -> State:
        return {} if self._part is None else state_of(self._part)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if state:
            give_back(self._make(state), state)


class Values:
    """Attributes of an object: tensors, numbers, dicts, lists or dataclasses of tensors, or None.

    types: the class of each attribute by its name, to make it again: `Values(self, rows=Tensor)`.
    """

    def __init__(self, owner: object, **types: type[Any]) -> None:
        self._owner, self._types = owner, types

    def state(self) -> State:
        saved: State = {}
        for name in self._types:
            value = getattr(self._owner, name)
            if isinstance(value, Tensor):
                saved[name] = value
            elif isinstance(value, dict):
                saved.update({f"{name}/{key}": each for key, each in value.items()})
            elif isinstance(value, list):
                saved.update({f"{name}/{i}": each for i, each in enumerate(value)})
            elif dataclasses.is_dataclass(value):
                for field in dataclasses.fields(value):
                    saved[f"{name}/{field.name}"] = getattr(value, field.name)
            elif value is not None:
                exact = torch.float64 if isinstance(value, float) else None
                saved[name] = torch.tensor(value, dtype=exact)
        return saved

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, kind in self._types.items():
            found: Any = state.get(name)
            if kind is dict:
                found = under(f"{name}/", state)
            elif kind is list:
                numbered = under(f"{name}/", state)
                found = [numbered[str(i)] for i in range(len(numbered))]
            elif dataclasses.is_dataclass(kind):
                fields = under(f"{name}/", state)
                found = kind(**fields) if fields else None
            elif found is not None and kind is not Tensor:
                found = kind(found.item())
            setattr(self._owner, name, found)
