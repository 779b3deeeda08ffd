"""`load(name)`: the datasets of the papers, and where their files come from.

Cora is inside the package. The others are looked for in the folder `data_root` or the environment
variable FEDMEND_DATA names, then in the user's cache (FEDMEND_CACHE names another), and are
downloaded into the cache from where their authors published them. In a folder, the files may
stand directly or in a subfolder `planetoid` or `npz`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedmend.data.csbm import csbm
from fedmend.data.npz import read_npz
from fedmend.data.planetoid import SUFFIXES, read_planetoid
from fedmend.errors import (
    DatasetMissingError,
    FedmendError,
    FileFormatError,
    SettingsError,
)
from fedmend.graph import Graph
from fedmend.plugins.registry import Registry, first_line

_PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data/"
_NPZ_URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A published file: its name, SHA-256 and length in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """What `load` knows about a dataset; sizes are None where they are the caller's choice.

    make: gives a generated one; its parameters are the dataset's options.
    """

    description: str
    nodes: int | None
    edges: int | None
    features: int | None
    classes: int | None
    kind: Literal["planetoid", "npz", "generated"]
    files: tuple[SourceFile, ...] = ()
    bundled: bool = False
    make: Callable[..., Graph] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return () if self.make is None else tuple(inspect.signature(self.make).parameters)

    @property
    def url(self) -> str:
        """The folder on the web that holds the files."""
        return _PLANETOID_URL if self.kind == "planetoid" else _NPZ_URL


# SHA-256 and length of the genuine Planetoid files.
_PLANETOID_FILES = {
    "ind.cora.x": (
        "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        22119,
    ),
    "ind.cora.y": (
        "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        4054,
    ),
    "ind.cora.tx": (
        "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        148025,
    ),
    "ind.cora.ty": (
        "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        28135,
    ),
    "ind.cora.allx": (
        "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        257305,
    ),
    "ind.cora.ally": (
        "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        47959,
    ),
    "ind.cora.graph": (
        "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        59847,
    ),
    "ind.cora.test.index": (
        "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
        5000,
    ),
    "ind.citeseer.x": (
        "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        31087,
    ),
    "ind.citeseer.y": (
        "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        3014,
    ),
    "ind.citeseer.tx": (
        "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        260321,
    ),
    "ind.citeseer.ty": (
        "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        24135,
    ),
    "ind.citeseer.allx": (
        "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        595021,
    ),
    "ind.citeseer.ally": (
        "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        55623,
    ),
    "ind.citeseer.graph": (
        "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        61987,
    ),
    "ind.citeseer.test.index": (
        "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
        5000,
    ),
    "ind.pubmed.x": (
        "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        23172,
    ),
    "ind.pubmed.y": (
        "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        854,
    ),
    "ind.pubmed.tx": (
        "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        405505,
    ),
    "ind.pubmed.ty": (
        "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        12135,
    ),
    "ind.pubmed.allx": (
        "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        7578385,
    ),
    "ind.pubmed.ally": (
        "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        224739,
    ),
    "ind.pubmed.graph": (
        "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        471808,
    ),
    "ind.pubmed.test.index": (
        "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
        6000,
    ),
}

# These four were not downloaded by us: SHA-256 and length come from the Git LFS pointers of the
# same files in a public repository. A file that differs is refused, not used.
_NPZ_FILES = {
    "ms_academic_cs.npz": (
        "933c745734e78908c7eb77172a673fee0503f30e26e5a99b36814d88534c42e3",
        12835626,
    ),
    "ms_academic_phy.npz": (
        "e4d68468eba5fb8f6b280ffd406bd53e6e4295ba1dd2967d6fe99b978e4b3375",
        16374005,
    ),
    "amazon_electronics_computers.npz": (
        "736ba1d9fd85eac2da83a5ad25c463f04b0031a6ca01563f90a7099d9e8ffb2c",
        31921488,
    ),
    "amazon_electronics_photo.npz": (
        "bdb1feb8e6ff42ee44024b04479145029c563fd42fc31bff80af20887ba0439a",
        17113960,
    ),
}


def _planetoid(name: str) -> tuple[SourceFile, ...]:
    names = [f"ind.{name}.{suffix}" for suffix in SUFFIXES]
    return tuple(SourceFile(file, *_PLANETOID_FILES[file]) for file in names)


def _npz(file: str) -> tuple[SourceFile, ...]:
    return (SourceFile(file, *_NPZ_FILES[file]),)


_OURS = {
    "cora": Dataset(
        "machine-learning papers that cite each other, by subject; inside the package",
        *(2708, 5278, 1433, 7),
        kind="planetoid",
        files=_planetoid("cora"),
        bundled=True,
    ),
    "citeseer": Dataset(
        "computer-science papers that cite each other, by field; 15 nodes have no label",
        *(3327, 4552, 3703, 6),
        kind="planetoid",
        files=_planetoid("citeseer"),
    ),
    "pubmed": Dataset(
        "papers on diabetes that cite each other, by its type; TF-IDF features",
        *(19717, 44324, 500, 3),
        kind="planetoid",
        files=_planetoid("pubmed"),
    ),
    "msacademic": Dataset(
        "computer scientists who wrote together (Coauthor CS), by field",
        *(18333, 81894, 6805, 15),
        kind="npz",
        files=_npz("ms_academic_cs.npz"),
    ),
    "computers": Dataset(
        "computers on Amazon bought together, by category",
        *(13752, 245861, 767, 10),
        kind="npz",
        files=_npz("amazon_electronics_computers.npz"),
    ),
    "photo": Dataset(
        "photo equipment on Amazon bought together, by category",
        *(7650, 119081, 745, 8),
        kind="npz",
        files=_npz("amazon_electronics_photo.npz"),
    ),
    "physics": Dataset(
        "physicists who wrote together (Coauthor Physics), by field",
        *(34493, 247962, 8415, 5),
        kind="npz",
        files=_npz("ms_academic_phy.npz"),
    ),
    "csbm": Dataset(
        "contextual stochastic block model, drawn anew: nodes=, edges=, homophily=, seed=, ...",
        *(None, None, None, None),
        kind="generated",
        make=csbm,
    ),
}


def _accepted(name: str, given: Any) -> Dataset:
    """A dataset from outside: a function that gives a graph, whose parameters are its options."""
    if not callable(given):
        raise SettingsError(
            f"dataset {name!r} must be a function (**options) that gives a fedmend.Graph, "
            f"got {given!r:.80}"
        )
    return Dataset(first_line(given), *(None, None, None, None), kind="generated", make=given)


DATASETS: Registry[Dataset] = Registry("dataset", _OURS, _accepted)


def load(
    name: str,
    *,
    data_root: str | Path | None = None,
    download: bool = True,
    **options: Any,
) -> Graph:
    """A dataset by name, without train, val and test roles (see `random_masks`).

    Args:
        name: one of `fedmend datasets`.
        data_root: a folder with the dataset's published files; without it, the folder that
            FEDMEND_DATA names. Cora is always the bundled one, whose nodes are in another order
            than Planetoid's, unless `data_root` is given here and holds `ind.cora.*`.
        download: whether files that are nowhere on this machine may be downloaded.
        options: of a dataset that is generated; those of csbm are `fedmend.data.csbm.csbm`'s.
    """
    dataset = DATASETS.find(name)
    check_options(name, options)
    if dataset.make is not None:
        with DATASETS.running(name):
            graph = dataset.make(**options)
        if not isinstance(graph, Graph):
            raise SettingsError(f"the dataset {name!r} must give a Graph, it gave {graph!r:.80}")
        return graph
    root = _data_root(None if data_root is None else Path(data_root), dataset)
    folder = None if root is None else _find(dataset, root)
    if folder is not None:
        return _read(name, dataset, folder)
    if dataset.bundled:
        return read_npz(Path(__file__).parent / "bundled" / f"{name}.npz")
    cache = _cache()
    folder = _find(dataset, cache, partly=True) or cache / dataset.kind
    missing = [file for file in dataset.files if not (folder / file.name).is_file()]
    if missing:
        _download(name, dataset, missing, folder, allowed=download)
    return _read(name, dataset, folder)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that the dataset does not have."""
    known = DATASETS.find(name).options
    for option in options:
        if option not in known:
            allowed = f"known: {', '.join(known)}" if known else "it has none"
            raise SettingsError(f"dataset {name!r} has no option {option!r} ({allowed})")


def _data_root(given: Path | None, dataset: Dataset) -> Path | None:
    """The folder to look in first, if there is one."""
    setting = "data_root"
    if given is None:
        variable = os.environ.get("FEDMEND_DATA")
        if not variable or dataset.bundled:
            return None
        given, setting = Path(variable), "FEDMEND_DATA"
    if not given.is_dir():
        raise SettingsError(f"{setting} must be a folder with the dataset's files, got {given}")
    return given


def _cache() -> Path:
    variable = os.environ.get("FEDMEND_CACHE")
    if variable:
        return Path(variable)
    from platformdirs import user_cache_path

    return user_cache_path("fedmend") / "datasets"


def _find(dataset: Dataset, root: Path, *, partly: bool = False) -> Path | None:
    """The folder at or below `root` with the files; an error if only some are there."""
    for folder in (root, root / dataset.kind):
        missing = [file.name for file in dataset.files if not (folder / file.name).is_file()]
        if len(missing) < len(dataset.files):
            if missing and not partly:
                raise DatasetMissingError(
                    f"{folder} lacks {', '.join(missing)}: get {_it(missing)} from {dataset.url} "
                    f"and put {_it(missing)} there"
                )
            return folder
    return None


def _it(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _read(name: str, dataset: Dataset, folder: Path) -> Graph:
    if dataset.kind == "planetoid":
        return read_planetoid(folder, name)
    return read_npz(folder / dataset.files[0].name)


def _download(
    name: str, dataset: Dataset, missing: Sequence[SourceFile], folder: Path, *, allowed: bool
) -> None:
    """Fetch the missing files into `folder`, or say how the user can."""
    reason: FedmendError | str = "downloading is switched off"
    if allowed:
        from fedmend.data.download import fetch, progress_bar

        try:
            with progress_bar(name, sum(file.size for file in missing)) as report:
                for file in missing:
                    url = dataset.url + file.name
                    fetch(url, folder / file.name, file.sha256, file.size, report=report)
            return
        except (DatasetMissingError, FileFormatError) as error:
            reason = error
    files = [file.name for file in missing]
    raise DatasetMissingError(
        f"dataset {name!r} is not on this machine ({reason}): get {', '.join(files)} from "
        f"{dataset.url} and put {_it(files)} in {folder}, or in a folder of your own that "
        f"data_root or FEDMEND_DATA names"
    )
