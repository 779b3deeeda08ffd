"""The studies: what one thing does to a method's result. Adding one: an entry in `STUDIES`.

A study runs its methods at every point (a value of a setting, a number of silos, or a whole bundle
of settings with a name) over several seeds, on shared splits. A method that does not have the
setting is run once and stands beside all points. This module imports no torch, so that listing the
studies is instant; `running` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmend.errors import SettingsError, UnknownNameError
from fedmend.methods import METHODS

SILOS = "silos"
"""What a study varies when it is the number of silos and no setting."""


@dataclass(frozen=True)
class Point:
    """One value that a study looks at.

    label: how tables and plots call it; also its folder's name.
    settings: what the methods are given there, those that know it.
    silos: the number of silos there, where that is what varies.
    instead: methods whose place another takes there: at depth 0, FedDEP is FedSage+.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    silos: int | None = None
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> float | None:
        """Its place on an axis of numbers; None if its label is no number."""
        try:
            return float(self.label)
        except ValueError:
            return None


@dataclass(frozen=True)
class Study:
    """One study.

    repeats: the figure or table of a paper that it repeats.
    varies: the axis: a setting's name, "silos", or a name of its own where the points are bundles.
    methods: the first is the base that the others' differences are to.
    settings, split, ratio, evaluation: what it runs with unless told otherwise.
    """

    name: str
    summary: str
    repeats: str
    varies: str
    points: tuple[Point, ...]
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    split: str = "louvain"
    ratio: str = "60/20/20"
    evaluation: str | None = None


def over(setting: str, *values: Any) -> tuple[Point, ...]:
    """A point for each value of a setting."""
    return tuple(Point(f"{value}", {setting: value}) for value in values)


def over_silos(*counts: int) -> tuple[Point, ...]:
    """A point for each number of silos."""
    return tuple(Point(f"{count}", silos=count) for count in counts)


ALL = {
    study.name: study
    for study in (
        Study(
            "layers",
            "how many layers the network has",
            "HiFGL, table 5",
            "layers",
            over("layers", 1, 2, 4, 8, 16),
            ("fedavg", "global"),
            {"backbone": "gcn", "hidden": 64},
            split="random",
        ),
        Study(
            "width",
            "how wide the hidden layers are",
            "HiFGL, table 6",
            "hidden",
            over("hidden", 4, 8, 16, 32, 64, 128),
            ("fedavg", "global"),
            {"backbone": "gcn"},
            split="random",
        ),
        Study(
            "silos",
            "how many silos the graph is cut into",
            "HiFGL, figure 5",
            SILOS,
            over_silos(1, 5, 10, 20, 30, 40, 50),
            ("fedavg", "local", "global"),
            {"backbone": "sage"},
            split="random",
        ),
        Study(
            "local-epochs",
            "how many passes a silo makes per round",
            "FedGGR, table 3",
            "local_epochs",
            over("local_epochs", 1, 2, 3),
            ("fedavg",),
            split="random",
            evaluation="own-subgraph",
        ),
        Study(
            "depth",
            "how many hops a generated neighbour sums up; at 0, FedSage+",
            "FedDEP, figure 4",
            "depth",
            (Point("0", instead={"feddep": "fedsage+"}), *over("depth", 1, 2, 3)),
            ("fedavg", "feddep"),
        ),
        Study(
            "prototypes",
            "how many prototypes a silo shares",
            "FedDEP, table 3",
            "clusters",
            over("clusters", 3, 5, 10, 15, 20),
            ("fedavg", "feddep"),
        ),
        Study(
            "hide",
            "how many nodes are hidden to learn from",
            "FedSage, figure 3 (b)",
            "hide",
            over("hide", 0.01, 0.05, 0.1, 0.15, 0.2, 0.3),
            ("fedsage", "fedsage+"),
        ),
        Study(
            "alpha",
            "how much the other silos' nodes count in the generator's loss",
            "FedSage, figure 3 (a)",
            "alpha",
            over("alpha", 0.1, 0.5, 1.0, 2.0, 10.0),
            ("fedsage", "fedsage+"),
        ),
    )
}
"""Every study there is to be; some wait for a method."""

STUDIES = {
    name: study
    for name, study in ALL.items()
    if {*study.methods, *(to for point in study.points for to in point.instead.values())}
    <= set(METHODS)
}
"""The studies whose methods are all here."""


def find(name: str) -> Study:
    """The study of this name; an error with the nearest one if there is none."""
    if name not in STUDIES:
        raise UnknownNameError("study", name, STUDIES)
    return STUDIES[name]


def choose_points(study: Study, values: list[str]) -> tuple[Point, ...]:
    """The study's points of these labels; other values too, where it varies one thing."""
    known = {point.label: point for point in study.points}
    varied = all(point.silos or set(point.settings) == {study.varies} for point in study.points)
    chosen = []
    for value in values:
        if value in known:
            chosen.append(known[value])
        elif not varied:
            raise UnknownNameError(f"point of study {study.name}", value, known)
        elif study.varies == SILOS:
            if not value.isdecimal() or int(value) < 1:
                raise SettingsError(f"{value!r} is not a number of silos: whole, at least 1")
            chosen.append(Point(value, silos=int(value)))
        else:
            chosen.append(Point(value, {study.varies: value}))
    if len({point.label for point in chosen}) < len(chosen):
        raise SettingsError(f"a value stands twice in {','.join(values)}")
    if not chosen:
        raise SettingsError("--values names no value")
    return tuple(chosen)
