"""The options of commands that train methods on one federation, written down once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from fedmend.cli import common
from fedmend.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from fedmend.runs.plan import Plan


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What is trained on, how, and where the results go."""

    dataset: common.DatasetOption = "cora"
    silos: common.SilosOption = None
    split: common.SplitOption = None
    ratio: common.RatioOption = "60/20/20"
    rounds: common.RoundsOption = None
    seeds: common.SeedsOption = 1
    seed: common.SeedOption = 0
    split_seed: common.SplitSeedOption = None
    set_: common.SetOption = None
    config: common.ConfigOption = None
    out: common.OutOption = None
    resume: common.ResumeOption = False
    evaluation: common.EvaluationOption = None
    backbone: common.BackboneOption = None
    device: common.DeviceOption = None
    workers: common.WorkersOption = 0
    threads: common.ThreadsOption = 1
    checkpoint_every: common.CheckpointOption = 10
    track: common.TrackOption = None
    data_root: common.DataRootOption = None
    json: common.JsonOption = False

    def folder(self, what: str) -> Path:
        """Where the results go; `what` names a new folder if --out does not."""
        if self.resume and self.out is None:
            raise SettingsError("--resume needs the folder of the run to go on with: add --out")
        return self.out or common.default_out(what, self.dataset)

    def plan(self) -> Plan:
        """The runs these options ask for."""
        from fedmend.runs.plan import Plan, Source

        return Plan(
            Source(
                self.dataset, self.silos, self.split, self.ratio, self.data_root, self.split_seed
            ),
            tuple(range(self.seed, self.seed + self.seeds)),
            common.gather_settings(
                self.set_,
                self.config,
                rounds=self.rounds,
                backbone=self.backbone,
                device=self.device,
            ),
            self.evaluation,
            self.resume,
            self.workers,
            self.threads,
            self.checkpoint_every,
            common.sinks(self.track),
        )


def with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, in place of its parameter `options`, an option for each of the fields.

    Typer reads a command's options from its signature, and knows no groups of them.
    """
    hints = get_type_hints(TrainingOptions, include_extras=True)
    ours = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=hints[each.name],
        )
        for each in fields(TrainingOptions)
    ]
    signature = inspect.signature(command, eval_str=True)
    theirs = [each for name, each in signature.parameters.items() if name != "options"]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        options = TrainingOptions(**{each.name: given.pop(each.name) for each in ours})
        command(**given, options=options)

    called.__signature__ = signature.replace(parameters=[*theirs, *ours])  # type: ignore[attr-defined]  # read by inspect
    called.__annotations__ = {each.name: each.annotation for each in (*theirs, *ours)}
    return called
