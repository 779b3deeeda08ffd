"""Several seeds, several methods: runs on shared splits, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from fedmend import methods
from fedmend.data.datasets import DATASETS, check_options, load
from fedmend.data.masks import has_roles, random_masks, with_roles
from fedmend.data.partition import Partition, split
from fedmend.data.partitioners import PARTITIONERS, check_split_options
from fedmend.engines.base import Watch
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.files import storage_errors, write_json
from fedmend.graph import Graph
from fedmend.reports.summary import summarise_runs
from fedmend.runs import record as records
from fedmend.runs import tracking
from fedmend.runs.record import Record
from fedmend.runs.train import is_same_run, train

DEFAULT_SPLIT = "louvain"
DEFAULT_RATIO = "60/20/20"


def parse_ratio(text: str) -> tuple[float, float, float]:
    """`60/20/20` as shares."""
    try:
        train_share, val, test = (float(part) / 100.0 for part in text.split("/"))
    except ValueError:
        raise SettingsError(f"ratio {text!r} is not of the form 60/20/20") from None
    return train_share, val, test


def parse_choice(text: str) -> tuple[str, dict[str, Any]]:
    """`csbm:nodes=1000,degree=8` as a name and its options; numbers are read as such."""
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"{pair!r} in {text!r} is not of the form key=value")
        options[key.strip()] = _number(value.strip())
    return name, options


def _number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def is_folder(dataset: str) -> bool:
    """Whether this is the path of a folder and not the name of a dataset."""
    try:
        return dataset not in DATASETS and Path(dataset).is_dir()
    except OSError:  # longer than the name of a file can be
        return False


def is_cut(dataset: str) -> bool:
    """Whether this is a folder of silos, not a graph that is still to be cut."""
    return is_folder(dataset) and not list(Path(dataset).glob("nodes.*"))


def parse_dataset(text: str) -> tuple[str, dict[str, Any]]:
    """`csbm:nodes=1000` as a dataset's name and its options, which it must have."""
    name, options = parse_choice(text)
    if name not in DATASETS and ("/" in name or "." in name):
        raise SettingsError(f"{text} is neither a folder nor the name of a dataset")
    check_options(name, options)
    return name, options


def _smallest_graph() -> Graph:
    no_edges = torch.empty((2, 0), dtype=torch.long)
    return Graph(torch.ones((1, 1)), no_edges, torch.zeros(1, dtype=torch.long))


@dataclass
class Source:
    """Where silos come from: a dataset or a folder, and how it is cut.

    dataset: a dataset's name (`cora`, `csbm:nodes=1000`), a folder with one graph, which is cut,
        or a folder of silo folders, which already is.
    silos, split: how many silos, and a partitioner's name with options
        (`label-dirichlet:alpha=0.3`). For a folder with one graph, `column:column=hospital` names
        its ownership column. None: as usual; of a folder of silos, as it is.
    split_seed: fixes roles and cut for all seeds; by default every seed has its own.
    download: whether a dataset that is not here may be downloaded.
    """

    dataset: str
    silos: int | None = None
    split: str | None = None
    ratio: str = DEFAULT_RATIO
    data_root: str | None = None
    split_seed: int | None = None
    download: bool = True
    _kept: dict[int, Partition] = field(default_factory=dict, init=False, repr=False, compare=False)

    def partition(self, seed: int) -> Partition:
        """The silos for a seed; asked again, the same object, so that methods share it."""
        seed = seed if self.split_seed is None else self.split_seed
        if seed not in self._kept:
            self._kept.clear()  # one at a time: a large graph need not be held per seed
            self._kept[seed] = self._cut(seed)
        return self._kept[seed]

    def cut(self) -> tuple[int | None, str]:
        """How many silos, and by which split: as asked for, or as a folder of silos is."""
        if not is_cut(self.dataset):
            return self.silos, self.split or DEFAULT_SPLIT
        from fedmend.data.folders import how_cut

        return how_cut(self.dataset)

    def check(self) -> None:
        """Refuse what can be seen to be wrong without loading data.

        That is a dataset nobody knows, a split that cannot be made, shares that make no sense.
        """
        ratio = parse_ratio(self.ratio)
        if is_cut(self.dataset):  # nothing more is cut
            self._check_cut()
            random_masks(_smallest_graph(), ratio)
            return
        if not is_folder(self.dataset):
            parse_dataset(self.dataset)
        how, options = self._split()
        if how == "column" and "column" in options:
            options["column"] = ["anybody"]  # its values are in the data
        if PARTITIONERS.plugin_of(how) is not None:  # may need more of a graph than a node
            random_masks(_smallest_graph(), ratio)
            return
        # Cutting a graph of one node asks the splits themselves what they allow.
        split(_smallest_graph(), 1, how, seed=0, ratio=ratio, **options)

    def _split(self) -> tuple[str, dict[str, Any]]:
        how, options = parse_choice(self.split or DEFAULT_SPLIT)
        # Before they become arguments, where `seed` or `silos` would stand twice.
        check_split_options(how, options)
        return how, options

    def _check_cut(self) -> None:
        """Refuse to call a folder of silos by another number or another split than it has."""
        silos, how = self.cut()
        named = how if self.split is None else parse_choice(self.split)[0]
        if self.silos not in (None, silos) or named != how:
            raise SettingsError(
                f"{self.dataset} is already cut into {silos} silo{'s' * (silos != 1)} ({how}): "
                "leave --silos and --split out, or choose a graph that is still whole"
            )

    def _cut(self, seed: int) -> Partition:
        ratio = parse_ratio(self.ratio)
        if is_cut(self.dataset):
            self._check_cut()
            return self._read_silos(ratio, seed)
        how, options = self._split()
        graph = self._graph(how, options)
        return split(graph, self.silos, how, seed=seed, ratio=ratio, **options)

    def _read_silos(self, ratio: tuple[float, float, float], seed: int) -> Partition:
        from fedmend.data.folders import read_silos

        silos = read_silos(self.dataset)
        if self.ratio != DEFAULT_RATIO and any(map(has_roles, silos.silos.values())):
            raise SettingsError(
                f"{self.dataset} says which nodes train, validate and test: leave --ratio out"
            )
        return with_roles(silos, ratio, seed)

    def _graph(self, how: str, options: dict[str, Any]) -> Graph:
        """The graph to cut; for a folder, the ownership column's name becomes its values."""
        if is_folder(self.dataset):
            from fedmend.data.silo_folder import read_column, read_folder

            folder = Path(self.dataset)
            if how == "column" and "column" in options:
                column = str(options["column"])  # a number may be a column's name too
                options["column"] = read_column(folder, column)
                return read_folder(folder, columns_to_ignore=(column,))
            return read_folder(folder)
        name, data_options = parse_dataset(self.dataset)
        return load(name, data_root=self.data_root, download=self.download, **data_options)

    def as_dict(self) -> dict[str, Any]:
        """For a run's record: with it and the seed the same silos can be made again."""
        silos, how = self.cut()
        return {"dataset": self.dataset, "silos": silos, "split": how, "ratio": self.ratio}


@dataclass(frozen=True)
class Plan:
    """Everything that runs of several seeds and methods have in common."""

    source: Source
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    evaluation: str | None = None
    resume: bool = False
    workers: int = 0
    threads: int = 1
    checkpoint_every: int = 10
    track: tuple[tracking.SinkMaker, ...] = ()


WatchMaker = Callable[[str, int], Watch]
"""A watch for the run of this method and seed."""


def run_seeds(
    method: str, plan: Plan, folders: Mapping[int, Path], watch: WatchMaker
) -> list[Record]:
    """One method, every seed; gives the runs' records. On resuming, finished ones are kept."""
    methods.find(method)
    found = []
    for seed in plan.seeds:
        folder = folders[seed]
        silos = plan.source.partition(seed)
        if plan.resume and (folder / records.RECORD).exists():
            record = records.read_record(folder / records.RECORD)
            if is_same_run(record, method, plan.settings, silos, seed, plan.evaluation):
                found.append(record)
                continue
        facts = {"method": method, "seed": seed, **plan.source.as_dict(), **plan.settings}
        name = f"{method}-{folder.name}" if folder.name != method else method
        with tracking.following(plan.track, name, facts, watch(method, seed)) as followed:
            result = train(
                method,
                silos,
                seed=seed,
                evaluation=plan.evaluation,
                out=folder,
                resume=plan.resume,
                workers=plan.workers,
                threads=plan.threads,
                checkpoint_every=plan.checkpoint_every,
                watch=followed.watch,
                dataset=plan.source.dataset,
                source=plan.source.as_dict(),
                **plan.settings,
            )
            followed.finish(result.record)
        found.append(result.record)
    return found


def seed_folders(out: Path, seeds: Sequence[int], resume: bool) -> dict[int, Path]:
    """A folder per seed: `out` itself for a single one. One that holds a run is kept."""
    folders = {seed: out if len(seeds) == 1 else out / f"seed-{seed}" for seed in seeds}
    for folder in folders.values():
        with storage_errors(folder):  # a name that is too long, say
            holds_a_run = any(
                (folder / name).exists() for name in (records.RECORD, records.CHECKPOINT)
            )
        if holds_a_run and not resume:
            raise SettingsError(
                f"{folder} already holds a run: add --resume to go on with it, or choose another "
                "--out"
            )
    return folders


def compare(
    names: Sequence[str], plan: Plan, out: Path, watch: WatchMaker
) -> dict[str, list[Record]]:
    """Several methods on the same splits and seeds: each method's records by its name."""
    if not names:
        raise SettingsError("no method is named: name at least one, e.g. --methods fedavg,local")
    for name in names:
        methods.find(name)
    if len(set(names)) != len(names):
        raise SettingsError(f"a method is named twice in {', '.join(names)}")
    check_settings(names, plan.settings)
    plan = replace(plan, evaluation=plan.evaluation or common_mode(names))
    folders = {name: seed_folders(out / name, plan.seeds, plan.resume) for name in names}
    found: dict[str, list[Record]] = {name: [] for name in names}
    # Seed by seed, so that a split is made once and then serves all methods.
    for seed in plan.seeds:
        for name in names:
            one = replace(plan, seeds=(seed,), settings=_fitting(name, plan))
            found[name] += run_seeds(name, one, {seed: folders[name][seed]}, watch)
    write_summary(out, found)
    return found


def common_mode(names: Sequence[str]) -> str | None:
    """The mode that methods which are compared share: one's own if any has one."""
    return next((own for name in names if (own := methods.find(name).evaluation)), None)


def _known(name: str) -> set[str]:
    return {each.name for each in fields(methods.find(name).settings_type)}


def _fitting(name: str, plan: Plan) -> dict[str, Any]:
    """The settings this method knows: `mu` is for fedprox, whoever it is compared with."""
    known = _known(name)
    return {key: value for key, value in plan.settings.items() if key.replace("-", "_") in known}


def check_settings(names: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse a setting that none of the methods knows."""
    known = set().union(*(_known(name) for name in names))
    for key in settings:
        if key.replace("-", "_") not in known:
            raise UnknownNameError("setting", key, known)


def write_summary(out: Path, found: Mapping[str, Sequence[Record]]) -> None:
    """Write what several runs say together beside their folders."""
    summaries = {name: summarise_runs(runs).as_dict() for name, runs in found.items()}
    write_json(out / records.SUMMARY, {"format": "fedmend summary 1", "methods": summaries})
