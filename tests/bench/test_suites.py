"""Suites: those of the package, and files that are not one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmend.bench import find, parse, published, published_figure, shipped
from fedmend.bench.running import BenchPlan
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.evaluation.evaluate import MODES
from fedmend.methods import METHODS
from fedmend.runs.train import configure

PENDING_METHODS: set[str] = set()
"""Methods that shipped suites name before they are here: none today."""

GOOD = """
datasets = ["cora"]
splits = ["random"]
silos = [2]
[[rows]]
method = "fedavg"
"""


def test_the_shipped_suites() -> None:
    assert set(shipped()) >= {
        *("quick", "fedsage-table2", "feddep-table2", "feddep-table3", "hifgl-table3"),
        *("fedggr-table2", "mending"),
    }


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_suite_names_what_there_is(name: str) -> None:
    suite = find(name)
    assert suite.about
    assert set(suite.unknown_methods) <= PENDING_METHODS - set(METHODS)
    modes = {suite.evaluation, *(row.evaluation for row in suite.rows)} - {None}
    assert modes <= set(MODES)
    here = [row.label for row in suite.rows if row.method in METHODS]
    for cell in BenchPlan(suite.only(rows=here), {}).cells():
        if cell.method in METHODS:
            configure(cell.method, cell.settings)


@pytest.mark.parametrize("name", [name for name in shipped() if name != "mending"])
def test_every_shipped_suite_stands_beside_published_figures(name: str) -> None:
    suite = find(name)
    for row in suite.rows:
        if row.method == "fedavg" and suite.paper == "feddep-table3":
            continue  # the base, which that table does not have
        for dataset in suite.datasets:
            for silos in suite.silos:
                assert published_figure(suite, row, dataset, silos), (row.label, dataset, silos)


def test_published_figures_are_figures() -> None:
    for paper, datasets in published()["tables"].items():
        assert published()["settings"][paper.split("-")[0]]["repeats"] >= 1
        for silos in datasets.values():
            for rows in silos.values():
                for each in rows.values():
                    assert 0 < each["acc"] < 1
                    assert each["std"] is None or 0 <= each["std"] < 0.5


def test_what_is_published_without_a_deviation_is_hifgl_s_table_4() -> None:
    without = {
        (paper, row)
        for paper, datasets in published()["tables"].items()
        for silos in datasets.values()
        for rows in silos.values()
        for row, each in rows.items()
        if each["std"] is None
    }
    assert {paper for paper, _ in without} == {"hifgl"}
    assert {row.split("-")[0] for _, row in without} == {
        *("fedprox", "fedper", "fedpergnn", "fedsage+", "fed")
    }


def test_a_row_may_differ_by_dataset() -> None:
    text = GOOD.replace('["cora"]', '["cora", "pubmed"]')
    text += "settings = { hidden = 8, lr = 0.1 }\ndataset-settings.pubmed = { hidden = 16 }\n"
    plan = BenchPlan(parse("mine", text), {"rounds": 3})
    found = {
        cell.source.dataset: dict(cell.settings) for cell in plan.cells() if cell.method == "fedavg"
    }
    assert found == {
        "cora": {"rounds": 3, "hidden": 8, "lr": 0.1},
        "pubmed": {"rounds": 3, "hidden": 16, "lr": 0.1},
    }
    with pytest.raises(UnknownNameError, match="citeseer"):
        parse("mine", text.replace("settings.pubmed", "settings.citeseer"))


def test_a_row_may_have_a_way_of_its_own_or_none() -> None:
    """Rows are measured on the suite's way unless they name another or say that they have none."""
    text = 'between = ["fedavg", "oracle"]\n' + GOOD + '[[rows]]\nmethod = "oracle"\n'
    text += '[[rows]]\nmethod = "local"\nbetween = []\n'
    text += '[[rows]]\nmethod = "fedsage+"\nbetween = ["local", "oracle"]\n'
    found = {row.label: row.between for row in parse("mine", text).rows}
    assert found == {
        "fedavg": ("fedavg", "oracle"),
        "oracle": ("fedavg", "oracle"),
        "local": None,
        "fedsage+": ("local", "oracle"),
    }


def test_mending_has_the_rows_of_both_papers_on_both_splits() -> None:
    """Table 2 of FedSage and of FedDEP; what does not mend is on no way to the ceiling."""
    suite = find("mending")
    rows = {row.label: row for row in suite.rows}
    of_papers = {
        row.label for name in ("fedsage-table2", "feddep-table2") for row in find(name).rows
    }
    assert set(rows) >= of_papers - {"fedsage"}  # there it is called fedavg
    assert set(suite.splits) == {"louvain", "random"}
    mends = [row for row in suite.rows if row.method.startswith(("fedsage+", "feddep"))]
    assert all(row.between for row in mends)
    assert not any(rows[label].between for label in ("global", "local", "local+"))


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    suite = find(str(tmp_path / "mine.toml"))
    assert (suite.name, suite.seeds, suite.base, suite.paper) == ("mine", 5, "fedavg", None)
    assert suite.rows[0].label == "fedavg"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("datasets = [", "not valid TOML"),
        ("", "datasets must be a list"),
        (GOOD.replace('["cora"]', "[]"), "not empty"),
        (GOOD.replace("[2]", "[0]"), "whole numbers from 1"),
        (GOOD.replace("[2]", "[true]"), "whole numbers from 1"),
        (GOOD.replace("[2]", "[2, 2]"), "twice"),
        (GOOD + '[[rows]]\nmethod = "fedavg"\n', "same label"),
        (GOOD + '[[rows]]\nlabel = "x"\n', "no method"),
        (GOOD + 'label = "../x"\n', "becomes a folder"),
        (GOOD + 'label = ".x"\n', "becomes a folder"),
        (GOOD + "label = 3\n", "label must be a text"),
        (GOOD + "colour = 3\n", "unknown key of a row"),
        (GOOD + "settings = { lr = [1] }\n", "settings are flat"),
        ("colour = 1\n" + GOOD, "unknown key of suite"),
        ("seeds = 0\n" + GOOD, "seeds must be"),
        ("seeds = true\n" + GOOD, "seeds must be"),
        ('base = "x"\n' + GOOD, "unknown base"),
        ('paper = "x"\n' + GOOD, "unknown paper"),
        ("between = []\n" + GOOD, "between must be a list"),
        (GOOD + 'between = ["fedavg"]\n', "between must name two rows"),
        (GOOD + "[dataset-settings.pubmed]\nlr = 1\n", "unknown dataset"),
        ("settings = 3\n" + GOOD, "settings must be a table"),
    ],
)
def test_what_is_no_suite(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse("mine", text)


def test_a_missing_or_unknown_suite(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'quick'"):
        find("quik")
    with pytest.raises(SettingsError, match="cannot read"):
        find(str(tmp_path / "no.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not a text file"):
        find(str(tmp_path / "binary.toml"))


def test_a_part_of_a_suite() -> None:
    suite = find("fedsage-table2")
    part = suite.only(datasets=["cora"], silos=[5], rows=["local", "global"], seeds=2)
    assert (part.datasets, part.silos, part.seeds) == (("cora",), (5,), 2)
    assert part.base == "local"  # the suite's own base is not among the rows
    assert suite.only(rows=["local", "fedsage"]).base == "fedsage"
    for wrong in ({"datasets": ["cra"]}, {"silos": [4]}, {"rows": ["fedsag"]}):
        with pytest.raises(UnknownNameError, match="of suite fedsage-table2"):
            suite.only(**wrong)


def test_a_suite_that_needs_a_missing_method_says_so() -> None:
    suite = parse("mine", GOOD + '[[rows]]\nmethod = "magic"\n')
    assert suite.unknown_methods == ["magic"]
    with pytest.raises(SettingsError, match=r"needs magic.*--rows fedavg"):
        BenchPlan(suite, {})


def test_settings_reach_the_methods_that_know_them() -> None:
    text = (
        GOOD.replace(
            "[[rows]]",
            "[settings]\nlr = 0.5\nmu = 0.3\n[dataset-settings.cora]\nlr = 0.1\n[[rows]]",
        )
        + '[[rows]]\nmethod = "fedprox"\nsettings = { mu = 0.7 }\n[[rows]]\nmethod = "fedsage"\n'
    )
    plan = BenchPlan(parse("mine", text), {"rounds": "3", "backbone": "gcn"})
    by_row = {cell.name.split("/")[2]: cell.settings for cell in plan.cells()}
    assert by_row["fedavg"] == {"lr": 0.1, "rounds": "3", "backbone": "gcn"}
    assert by_row["fedprox"]["mu"] == 0.7
    assert "backbone" not in by_row["fedsage"]  # its name says which
    assert by_row["mlp"]["backbone"] == "mlp"
    assert by_row["majority"] == by_row["logistic"] == {}
    with pytest.raises(UnknownNameError, match="unknown setting 'colour'"):
        BenchPlan(parse("mine", text), {"colour": 1})


def test_a_part_of_a_suite_may_leave_out_the_rows_that_its_settings_are_of() -> None:
    text = GOOD.replace("[2]", "[2]\n[settings]\nmu = 0.1") + '[[rows]]\nmethod = "fedprox"\n'
    whole = parse("mine", text)
    part = whole.only(rows=["fedavg"])
    assert all("mu" not in cell.settings for cell in BenchPlan(part, {}).cells())
    with pytest.raises(UnknownNameError, match="setting 'mu'"):
        BenchPlan(part, {"mu": 0.2})  # chosen now, it would do nothing
    with pytest.raises(UnknownNameError, match="setting 'mu'"):
        BenchPlan(parse("mine", text.replace("fedprox", "local")), {})
