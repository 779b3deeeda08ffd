"""The studies: what one thing does to a method's result. Adding one: an entry in `STUDIES`.

A study runs its methods at every point (a value of a setting, a number of silos, or a whole bundle
of settings with a name) over several seeds, on shared splits. A method that does not have the
setting is run once and stands beside all points. This module imports no torch, so that listing the
studies is instant; `running` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    methods: the first is the base that the others' differences are to; those that are not here
        yet are left out, unless the study `needs` them: then it waits for them.
    settings, silos, split, ratio, evaluation: what it runs with unless told otherwise.
    """

    name: str
    summary: str
    repeats: str
    varies: str
    points: tuple[Point, ...]
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    silos: int | None = None
    split: str = "louvain"
    ratio: str = "60/20/20"
    evaluation: str | None = None


def over(setting: str, *values: Any) -> tuple[Point, ...]:
    """A point for each value of a setting."""
    return tuple(Point(f"{value}", {setting: value}) for value in values)


def over_silos(*counts: int) -> tuple[Point, ...]:
    """A point for each number of silos."""
    return tuple(Point(f"{count}", silos=count) for count in counts)


HIFGL = {
    # Full batch for all, and every neighbour heard: what the paper's tables compare.
    **{"batch_size": 0, "fan_out": 0, "lr": 0.01},
    **{"min_neighbours": 1, "input_min_neighbours": 1},
}

ALL = {
    study.name: study
    for study in (
        Study(
            "depth",
            "how many hops a generated neighbour sums up; at 0, FedSage+",
            "FedDEP, figure 4",
            "depth",
            (Point("0", instead={"feddep": "fedsage+"}), *over("depth", 1, 2, 3)),
            ("fedavg", "feddep"),
            needs=("feddep", "fedsage+"),
        ),
        Study(
            "prototypes",
            "how many prototypes a silo shares",
            "FedDEP, table 3",
            "clusters",
            over("clusters", 3, 5, 10, 15, 20),
            ("fedavg", "feddep"),
            needs=("feddep",),
        ),
        Study(
            "privacy",
            "neighbours drawn against noise on gradients, each with the paper's sigma",
            "FedDEP, figure 5",
            "silos and noise",
            (
                Point("3 silos, sigma 4.2", {"fan_out": 5, "noise": 4.2}, silos=3),
                Point("5 silos, sigma 2.1", {"fan_out": 5, "noise": 2.1}, silos=5),
                Point("10 silos, sigma 0.4", {"fan_out": 5, "noise": 0.4}, silos=10),
            ),
            ("feddep-no-nfdp", "feddep", "feddep-no-proto"),
            needs=("feddep-no-nfdp", "feddep"),
        ),
        Study(
            "hide",
            "what share of its nodes a silo hides to learn from",
            "FedSage, figure 3 (b)",
            "hide",
            over("hide", 0.01, 0.05, 0.1, 0.15, 0.2, 0.3),
            ("fedsage", "fedsage+"),
            needs=("fedsage+",),
            silos=3,
        ),
        Study(
            "alpha",
            "how much the other silos' nodes count in the generator's loss",
            "FedSage, figure 3 (a)",
            "alpha",
            over("alpha", 0.1, 0.5, 1.0, 2.0, 10.0),
            ("fedsage", "fedsage+"),
            {"hide": 0.15},
            needs=("fedsage+",),
            silos=3,
        ),
        Study(
            "layers",
            "how many layers the network has",
            "HiFGL, table 5",
            "layers",
            over("layers", 1, 2, 4, 8, 16),
            ("fedavg", "hifgl", "global"),
            {**HIFGL, "backbone": "gcn", "hidden": 64},
            split="random",
            evaluation="cross-edges",
        ),
        Study(
            "width",
            "how wide the hidden layers are",
            "HiFGL, table 6",
            "hidden",
            over("hidden", 4, 8, 16, 32, 64, 128),
            ("fedavg", "hifgl", "global"),
            {**HIFGL, "backbone": "gcn"},
            split="random",
            evaluation="cross-edges",
        ),
        Study(
            "silos",
            "how many silos the graph is cut into",
            "HiFGL, figure 5",
            SILOS,
            over_silos(1, 5, 10, 20, 30, 40, 50),
            ("fedavg", "hifgl", "local", "global"),
            {**HIFGL, "backbone": "sage", "hidden": 64},
            split="random",
            evaluation="cross-edges",
        ),
        Study(
            "neighbours",
            "how many neighbours a node has in the graph that the server learns",
            "FedGGR, figure 4",
            "neighbours",
            over("neighbours", *range(5, 41, 5)),
            ("fedavg", "fedggr"),
            {"backbone": "gcn"},
            needs=("fedggr",),
            silos=3,
            split="random",
            evaluation="own-subgraph",
        ),
        Study(
            "local-epochs",
            "how many passes a silo makes per round",
            "FedGGR, table 3",
            "local_epochs",
            over("local_epochs", 1, 2, 3),
            ("fedavg", "fedggr"),
            {"backbone": "gcn"},
            silos=3,
            split="random",
            evaluation="own-subgraph",
        ),
        Study(
            "embedding-size",
            "how wide the local and the global embedding are",
            "FedGGR, figure 5",
            "local x global",
            tuple(
                Point(f"{own} x {whole}", {"local_width": own, "global_width": whole})
                for own in (16, 64, 256)
                for whole in (16, 64, 256)
            ),
            ("fedavg", "fedggr"),
            {"backbone": "gcn"},
            needs=("fedggr",),
            silos=3,
            split="random",
            evaluation="own-subgraph",
        ),
    )
}
"""Every study; some wait for a method."""

STUDIES = {
    name: replace(study, methods=tuple(each for each in study.methods if each in METHODS))
    for name, study in ALL.items()
    if all(each in METHODS for each in study.needs)
}
"""The studies that can run, with the methods that are here."""


def find(name: str) -> Study:
    """The study of this name; an error with the nearest one if there is none."""
    if name not in STUDIES:
        raise UnknownNameError("study", name, STUDIES)
    return STUDIES[name]


def separate(study: Study, text: str) -> list[str]:
    """`1, 2` as a list; a comma within a point's label separates nothing."""
    pieces = [piece.strip() for piece in text.split(",")]
    labels = {tuple(part.strip() for part in point.label.split(",")) for point in study.points}
    longest = max(map(len, labels))
    found = []
    while pieces:
        sizes = (n for n in range(longest, 0, -1) if tuple(pieces[:n]) in labels)
        taken = next(sizes, 1)
        found.append(", ".join(pieces[:taken]))
        pieces = pieces[taken:]
    return [value for value in found if value]


def choose_points(study: Study, values: list[str]) -> tuple[Point, ...]:
    """The study's points of these labels; other values too, where it varies one thing."""
    known = {point.label: point for point in study.points}
    of_silos = study.varies == SILOS
    alone = (of_silos, set() if of_silos else {study.varies})
    varied = all((bool(point.silos), set(point.settings)) == alone for point in study.points)
    chosen = []
    for value in values:
        if value in known:
            chosen.append(known[value])
        elif not varied:
            # Labels may hold commas, and are told apart by something else.
            raise SettingsError(
                f"unknown point of study {study.name}: {value!r} (known: {'; '.join(known)})"
            )
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
