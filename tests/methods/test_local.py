"""Local: a silo's result does not depend on there being others."""

from __future__ import annotations

from typing import Any

from fedmend.data.partition import Partition
from fedmend.runs.train import train
from tests.tiny import QUICK, same_weights, tiny_partition

OPTIONS: dict[str, Any] = {**QUICK, "rounds": 4, "dropout": 0.2}


def test_others_make_no_difference() -> None:
    silos = tiny_partition().silos
    together = train("local", Partition(silos, "by hand", None), **OPTIONS)
    for name, graph in silos.items():
        alone = train("local", Partition({name: graph}, "by hand", None), **OPTIONS)
        assert same_weights(alone.own[name], together.own[name])
        assert alone.scores is not None
        assert together.scores is not None
        assert alone.scores.by_silo[name] == together.scores.by_silo[name]


def test_one_silo_trains_as_fedavg_does() -> None:
    """The same batches and steps from the same start: nothing but the averaging is missing."""
    one = Partition(dict(list(tiny_partition().silos.items())[:1]), "by hand", None)
    local = train("local", one, **OPTIONS).history["training"]
    fedavg = train("fedavg", one, **OPTIONS).history["training"]
    for metrics in fedavg.values():
        metrics.pop("selected", None)  # FedAvg's server says which round it keeps
    assert local == {number: fedavg[number] for number in range(1, 5)}
