"""Oracle: the true neighbours, exactly those, and the reductions that show it is FedAvg."""

from __future__ import annotations

import pytest
import torch

from fedmend.data.partition import Partition
from fedmend.errors import DataError
from fedmend.runs.train import train
from tests.tiny import QUICK, same_weights, tiny_partition

PARTITION = tiny_partition(4)


def test_seeing_nothing_it_is_fedavg() -> None:
    plain = train("fedavg", PARTITION, **QUICK)
    found = train("oracle", PARTITION, hops=0, **QUICK)
    assert same_weights(found.weights, plain.weights)
    assert found.history == plain.history
    assert found.ledger.to_csv() == plain.ledger.to_csv()
    seeing = train("oracle", PARTITION, hops=1, **QUICK)
    assert not same_weights(seeing.weights, plain.weights)


def test_one_silo_is_global() -> None:
    still = {**QUICK, "batch_size": 0, "fan_out": 0}
    found, pooled = (train(name, tiny_partition(1), **still) for name in ("oracle", "global"))
    assert same_weights(found.weights, pooled.weights)
    assert not [entry for entry in found.ledger.entries if entry.kind == "raw"]


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_surroundings_by_plain_loops(hops: int) -> None:
    whole = PARTITION.whole
    assert whole is not None
    pairs = set(zip(*whole.edges.tolist(), strict=True))
    neighbours = {
        v: {b for a, b in pairs if a == v} | {a for a, b in pairs if b == v}
        for v in range(whole.num_nodes)
    }
    for name in PARTITION.names:
        own = PARTITION.rows(name).tolist()
        away = dict.fromkeys(own, 0)
        for hop in range(1, hops + 1):
            for node in [n for n, d in away.items() if d == hop - 1]:
                for other in neighbours[node]:
                    away.setdefault(other, hop)
        found = PARTITION.with_surroundings(name, hops)
        nodes = [int(each) for each in found.node_ids]
        assert nodes[: len(own)] == own
        assert set(nodes) == set(away)
        assert torch.equal(found.x, whole.x[torch.tensor(nodes)])
        # An edge is shown if one of its ends is nearer than the last hop; a silo's own always are.
        shown = {
            frozenset((a, b))
            for a in away
            for b in neighbours[a]
            if b in away and (min(away[a], away[b]) < hops or away[a] == away[b] == 0)
        }
        assert {frozenset((nodes[a], nodes[b])) for a, b in found.edges.T.tolist()} == shown
        silo = PARTITION.silos[name]
        for role in ("train_mask", "val_mask", "test_mask"):
            mask = getattr(found, role)
            assert torch.equal(mask[: len(own)], getattr(silo, role))
            assert not bool(mask[len(own) :].any())
        assert torch.equal(found.y[: len(own)], silo.y)
        assert found.y[len(own) :].tolist() == [-1] * (len(nodes) - len(own))


def test_ledger_counts_what_is_shown() -> None:
    result = train("oracle", PARTITION, hops=1, **QUICK)
    raw = {entry.silo: entry for entry in result.ledger.entries if entry.kind == "raw"}
    assert set(raw) == set(PARTITION.names)
    for name, entry in raw.items():
        seen, own = PARTITION.with_surroundings(name, 1), PARTITION.silos[name]
        nodes, edges = seen.num_nodes - own.num_nodes, seen.num_edges - own.num_edges
        assert (entry.direction, entry.phase) == ("down", "set-up")
        assert entry.bytes == nodes * 6 * 4 + edges * 2 * 8


def test_needs_the_whole_graph() -> None:
    alone = Partition(PARTITION.silos, "by hand", None)
    with pytest.raises(DataError, match="the whole graph of this partition is not known"):
        alone.with_surroundings("silo-0", 1)
    with pytest.raises(DataError, match="'oracle' needs the whole graph in one place"):
        train("oracle", alone, **QUICK)
