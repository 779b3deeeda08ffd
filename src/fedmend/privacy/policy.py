"""A silo's own policy: which methods it takes part in, and which kinds of content may leave it.

The file belongs to the silo, and only the silo reads it. It is enforced twice: before a run
anything the method could send is compared with it, so that a refused run sends nothing; and every
single reply is compared with it again on its way out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedmend.errors import RefusedError, SettingsError, UnknownNameError
from fedmend.privacy.ledger import Kind

POLICY_FILE = "policy.toml"
POLICY_TEMPLATE = """\
# What this silo agrees to. The silo alone reads this file; change it and start the silo again.

# Methods it takes no part in, e.g. ["fedper"]; see `fedmend methods`.
refuse_methods = []

# If not empty: the only methods it takes part in.
allow_methods = []

# Kinds of content that may never leave it: weights, gradients, embeddings, prototypes, counts,
# metrics, shares, control. ["embeddings"] means: no per-node embeddings leave.
refuse_kinds = []

# The largest message it takes or gives, in bytes.
largest_message = 1073741824
"""


@dataclass(frozen=True)
class Policy:
    """What a silo agrees to."""

    refuse_methods: tuple[str, ...] = ()
    allow_methods: tuple[str, ...] = ()
    refuse_kinds: tuple[str, ...] = ()
    largest_message: int = 2**30

    def check_method(self, method: str) -> None:
        """Raise if the silo takes no part in this method."""
        if method in self.refuse_methods or (
            self.allow_methods and method not in self.allow_methods
        ):
            raise RefusedError(f"its policy takes no part in {method}")

    def check_kinds(self, kinds: Iterable[str], what: str) -> None:
        """Raise if one of these kinds may not leave the silo."""
        refused = sorted(set(kinds) & set(self.refuse_kinds))
        if refused:
            raise RefusedError(f"its policy lets no {' or '.join(refused)} leave, {what}")

    def check_size(self, size: int, what: str) -> None:
        """Raise if a message is too large."""
        if size > self.largest_message:
            raise RefusedError(
                f"{what} has {size} bytes, above its policy's largest_message of "
                f"{self.largest_message}"
            )


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file; every key is optional, an unknown one is an error."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    known = {field.name for field in fields(Policy)}
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise UnknownNameError(f"key in {path}:", key, known)
        if key == "largest_message":
            if type(value) is not int or not 2**10 <= value <= 2**40:
                raise SettingsError(f"{path}: {key} must be a whole number of bytes from 1024")
            given[key] = value
        else:
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise SettingsError(f"{path}: {key} must be a list of names in quotes")
            given[key] = tuple(value)
    kinds = {kind.value for kind in Kind if kind is not Kind.FRAMING}  # framing leaves with any
    for kind in given.get("refuse_kinds", ()):
        if kind not in kinds:
            raise UnknownNameError(f"kind in {path}:", kind, kinds)
    return Policy(**given)
