"""train(): what it refuses before it starts, and what it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmend.data.partition import Partition
from fedmend.data.silo_folder import write_folder
from fedmend.errors import DataError, SettingsError, UnknownNameError
from fedmend.runs.predict import predict_folder
from fedmend.runs.train import train
from tests.tiny import QUICK, comparable, rebuilt, same_weights, tiny_partition

PARTITION = tiny_partition()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"resume": True}, "resume needs the folder"),
        ({"checkpoint_every": 0}, "checkpoint_every=0 is not allowed"),
        ({"workers": -1}, "workers=-1"),
        ({"threads": 0}, "threads=0"),
        ({"evaluation": "own"}, "unknown evaluation mode 'own'"),
        ({"lr": "quick"}, "lr='quick' is not allowed"),
        ({"personal_layers": 1}, "unknown setting 'personal_layers'"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
        ({"backbone": "gat", "hidden": 10}, "hidden=10 cannot be shared by heads=4"),
    ],
)
def test_refused_before_anything_runs(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        train("fedavg", PARTITION, **{**QUICK, **options})


def test_whole_graph_that_is_not_there_is_noticed_before_training() -> None:
    alone = Partition(PARTITION.silos, "x", None)
    with pytest.raises(DataError, match="needs the whole graph"):
        train("fedavg", alone, evaluation="global-graph", rounds=10**6)


def test_settings_may_be_texts() -> None:
    texts = {key: str(value) for key, value in QUICK.items()}
    one, other = train("fedavg", PARTITION, **texts), train("fedavg", PARTITION, **QUICK)  # type: ignore[arg-type]
    assert comparable(one.record) == comparable(other.record)


def test_seed_may_be_numpys(tmp_path: Any) -> None:
    one = train("fedavg", PARTITION, seed=np.int64(3), out=tmp_path, **QUICK)  # type: ignore[arg-type]
    other = train("fedavg", PARTITION, seed=3, **QUICK)
    assert same_weights(one.weights, other.weights)
    assert comparable(one.record) == comparable(other.record)


def test_default_evaluation_is_the_widest_that_is_possible() -> None:
    assert train("local", PARTITION, **QUICK).record.evaluation == "global-graph"
    alone = Partition(PARTITION.silos, "x", None)
    assert train("local", alone, **QUICK).record.evaluation == "own-subgraph"


def test_model_of() -> None:
    shared = train("fedavg", PARTITION, **QUICK)
    assert same_weights(dict(shared.model.named_parameters()), shared.weights)
    assert same_weights(dict(shared.model_of("silo-0").named_parameters()), shared.weights)
    own = train("local", PARTITION, **QUICK)
    assert same_weights(dict(own.model_of("silo-0").named_parameters()), own.own["silo-0"])
    with pytest.raises(SettingsError, match=r"name one \(--silo NAME; silo-0, silo-1, silo-2\)"):
        _ = own.model
    with pytest.raises(UnknownNameError):
        own.model_of("x")


def test_seconds_and_phases_are_measured() -> None:
    result = train("fedavg", PARTITION, **QUICK)
    measured = result.record.measured
    assert result.seconds > 0
    assert sum(measured.phases.values()) <= result.seconds
    assert set(measured.steps) == {"train", "validate"}


def named(partition: Partition, names: list[str]) -> Partition:
    """The same silos with names for their features."""
    silos = {key: rebuilt(each, feature_names=names) for key, each in partition.silos.items()}
    return Partition(silos, "folders", None)


def test_features_of_other_names_or_order_are_not_predicted_with(tmp_path: Path) -> None:
    names = ["age", "dose", "c", "d", "e", "f"]
    trained = named(tiny_partition(), names)
    result = train("fedavg", trained, out=tmp_path / "run", **QUICK)
    result.predict(trained.silos["silo-0"])
    result.predict(tiny_partition().silos["silo-0"])  # without names there is nothing to compare
    for other in (["dose", "age", *names[2:]], ["z", *names[1:]]):
        graph = named(tiny_partition(), other).silos["silo-0"]
        with pytest.raises(DataError, match="other names, or another order"):
            result.predict(graph)
        write_folder(graph, tmp_path / "graph")
        with pytest.raises(DataError, match="other names, or another order"):
            predict_folder(tmp_path / "run", tmp_path / "graph", tmp_path / "out.csv", None)
