"""load(): where files are looked for, what is bundled, and what is said when nothing is found."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmend.data import datasets, download
from fedmend.data.csbm import csbm
from fedmend.data.datasets import DATASETS, Dataset, SourceFile, load
from fedmend.data.planetoid import read_planetoid
from fedmend.errors import DatasetMissingError, FileFormatError, SettingsError, UnknownNameError
from fedmend.graph import is_sparse, scipy_csr


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither the user's cache nor the internet."""

    def no_internet(url: str, *_: object, **__: object) -> None:
        raise DatasetMissingError(f"cannot download {url}: no network in tests")

    monkeypatch.setenv("FEDMEND_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDMEND_DATA", raising=False)
    monkeypatch.setattr(download, "fetch", no_internet)
    return tmp_path / "cache"


def write_npz(folder: Path, name: str, nodes: int = 3) -> Path:
    """A path graph whose one attribute is missing, under a benchmark file's name."""
    folder.mkdir(parents=True, exist_ok=True)
    indptr = np.minimum(np.arange(nodes + 1), nodes - 1)
    np.savez(
        folder / name,
        adj_data=np.ones(nodes - 1),
        adj_indices=np.arange(1, nodes),
        adj_indptr=indptr,
        adj_shape=[nodes, nodes],
        attr_matrix=np.zeros((nodes, 1)),
        labels=np.zeros(nodes, dtype=int),
    )
    return folder / name


def test_bundled_cora() -> None:
    graph = load("cora")
    known = DATASETS["cora"]
    assert (graph.num_nodes, graph.num_edges) == (known.nodes, known.edges) == (2708, 5278)
    assert (graph.num_features, graph.num_classes) == (1433, 7)
    assert is_sparse(graph.x)
    assert set(graph.x.values().tolist()) == {1.0}
    assert graph.label_names[0] == "Neural_Networks"
    assert torch.bincount(graph.y).tolist() == [818, 180, 217, 426, 351, 418, 298]
    assert graph.node_ids[:3].tolist() == [31336, 1061127, 1106406]
    assert not (graph.train_mask | graph.val_mask | graph.test_mask).any()
    # In cora.cites, paper 35 is cited by 1033.
    place = {int(paper): row for row, paper in enumerate(graph.node_ids)}
    row = graph.col[graph.rowptr[place[35]] : graph.rowptr[place[35] + 1]]
    assert place[1033] in row.tolist()


def test_bundled_cora_is_planetoids_cora(planetoid_root: Path) -> None:
    """The nodes have another order, so only what does not depend on it can be compared."""
    ours, theirs = load("cora"), read_planetoid(planetoid_root, "cora")
    assert ours.degree.sort().values.tolist() == theirs.degree.sort().values.tolist()
    assert sorted(torch.bincount(ours.y)) == sorted(torch.bincount(theirs.y))
    assert ours.x.values().sum() == theirs.x.values().sum()
    for axis in (0, 1):
        sums = [np.sort(np.asarray(scipy_csr(g.x).sum(axis)).ravel()) for g in (ours, theirs)]
        assert (sums[0] == sums[1]).all()


def test_cora_from_data_root_only_when_asked(
    planetoid_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load("cora", data_root=planetoid_root).label_names[0] == "0"
    assert load("cora", data_root=str(planetoid_root.parent)).label_names[0] == "0"
    assert load("cora", data_root=tmp_path).label_names[0] == "Neural_Networks"
    monkeypatch.setenv("FEDMEND_DATA", str(planetoid_root))
    assert load("cora").label_names[0] == "Neural_Networks"


@pytest.mark.parametrize("name", ["citeseer", "pubmed"])
def test_planetoid_sizes(planetoid_root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMEND_DATA", str(planetoid_root))
    graph, known = load(name), DATASETS[name]
    assert (graph.num_nodes, graph.num_edges) == (known.nodes, known.edges)
    assert (graph.num_features, graph.num_classes) == (known.features, known.classes)


def test_registered_planetoid_files_are_the_genuine_ones(planetoid_root: Path) -> None:
    for name in ("cora", "citeseer", "pubmed"):
        assert len(DATASETS[name].files) == 8
        for file in DATASETS[name].files:
            data = (planetoid_root / file.name).read_bytes()
            assert (file.sha256, file.size) == (hashlib.sha256(data).hexdigest(), len(data))


def test_the_registry_is_complete() -> None:
    names = "cora citeseer pubmed msacademic computers photo physics csbm"
    assert list(DATASETS) == names.split()
    for name, dataset in DATASETS.items():
        assert dataset.description
        assert "\n" not in dataset.description
        assert (dataset.nodes is None) == (name == "csbm")
        assert (len(dataset.files) == 0) == (name == "csbm")
        for file in dataset.files:
            assert len(bytes.fromhex(file.sha256)) == 32


def test_where_files_are_looked_for(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument, then the variable, then the cache; directly or in a subfolder."""
    file = "amazon_electronics_photo.npz"
    write_npz(cache / "npz", file, nodes=3)
    assert load("photo").num_nodes == 3
    write_npz(tmp_path / "variable" / "npz", file, nodes=4)
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path / "variable"))
    assert load("photo").num_nodes == 4
    write_npz(tmp_path / "argument", file, nodes=5)
    assert load("photo", data_root=tmp_path / "argument").num_nodes == 5
    (tmp_path / "empty").mkdir()
    assert load("photo", data_root=tmp_path / "empty").num_nodes == 3


def test_downloads_what_is_missing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, int | None]] = []

    def fetch(url: str, target: Path, sha256: str, size: int | None = None, **_: object) -> None:
        asked.append((url, sha256, size))
        write_npz(target.parent, target.name, nodes=6)

    monkeypatch.setattr(download, "fetch", fetch)
    assert load("msacademic").num_nodes == 6
    file = DATASETS["msacademic"].files[0]
    url = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/ms_academic_cs.npz"
    assert asked == [(url, file.sha256, file.size)]
    assert (cache / "npz" / "ms_academic_cs.npz").is_file()
    load("msacademic")
    assert len(asked) == 1


def test_downloads_only_the_missing_planetoid_files(
    planetoid_root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(url: str, target: Path, *_: object, **__: object) -> None:
        asked.append(url)
        target.write_bytes((planetoid_root / target.name).read_bytes())

    (cache / "planetoid").mkdir(parents=True)
    for file in DATASETS["citeseer"].files[:6]:
        source = planetoid_root / file.name
        (cache / "planetoid" / file.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(download, "fetch", fetch)
    assert load("citeseer").num_nodes == 3327
    start = "https://github.com/kimiyoung/planetoid/raw/master/data/ind.citeseer"
    assert asked == [f"{start}.graph", f"{start}.test.index"]


@pytest.mark.parametrize("allowed", [True, False])
def test_offline(cache: Path, allowed: bool) -> None:
    with pytest.raises(DatasetMissingError) as caught:
        load("pubmed", download=allowed)
    said = str(caught.value)
    assert "\n" not in said
    assert ("no network in tests" in said) == allowed
    assert ("downloading is switched off" in said) != allowed
    for part in (
        "'pubmed'",
        "ind.pubmed.x,",
        "ind.pubmed.test.index",
        "from https://github.com/kimiyoung/planetoid/raw/master/data/",
        f"put them in {cache / 'planetoid'}",
        "FEDMEND_DATA",
    ):
        assert part in said


def test_a_wrong_hash_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(url: str, *_: object, **__: object) -> None:
        raise FileFormatError(f"{url} is not the expected file")

    monkeypatch.setattr(download, "fetch", fetch)
    with pytest.raises(DatasetMissingError, match=r"is not the expected file\): get ms_academic"):
        load("physics")


def test_some_files_of_a_dataset_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "ind.citeseer.x").write_bytes(b"")
    (tmp_path / "ind.cora.x").write_bytes(b"")
    for name in ("citeseer", "cora"):
        with pytest.raises(DatasetMissingError, match=rf"lacks ind\.{name}\.y, ind\.{name}\.tx"):
            load(name, data_root=tmp_path)


def test_a_data_root_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"data_root must be a folder .* got .*none"):
        load("cora", data_root=tmp_path / "none")
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="FEDMEND_DATA must be a folder"):
        load("photo")


def test_names_and_options() -> None:
    with pytest.raises(UnknownNameError, match="unknown dataset 'coraa'; did you mean 'cora'"):
        load("coraa")
    with pytest.raises(SettingsError, match=r"dataset 'cora' has no option 'nodes' \(it has none"):
        load("cora", nodes=5)
    with pytest.raises(SettingsError, match=r"no option 'node' \(known: nodes, degree, edges"):
        load("csbm", node=5)


def test_csbm_by_name() -> None:
    graph, same = load("csbm", nodes=100, edges=300, seed=5), csbm(100, edges=300, seed=5)
    assert graph.num_edges == 300
    assert torch.equal(graph.edge_index, same.edge_index)
    assert torch.equal(graph.x, same.x)


def test_the_default_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDMEND_CACHE")
    assert datasets._cache().parts[-2:] == ("fedmend", "datasets")


def test_dataset_records_are_plain() -> None:
    file = SourceFile("a.npz", "00", 1)
    dataset = Dataset("text", 1, 2, 3, 4, kind="npz", files=(file,))
    assert dataset.url + file.name == datasets._NPZ_URL + "a.npz"


def test_importing_is_light() -> None:
    """What only some calls need is imported by them."""
    code = (
        "import sys, fedmend.data.datasets as d; d.load('cora');"
        "print([m for m in ('rich', 'pyarrow', 'igraph', 'platformdirs', 'torch_geometric')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
