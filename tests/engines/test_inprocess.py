"""The in-process engine: asking, losing, counting, and results that do not depend on threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.engines.base import Moment, Watch
from fedmend.engines.inprocess import Fault, InProcess
from fedmend.errors import TooFewSilosError, WireError
from fedmend.federation import Nothing, Schema, SiloBase, SiloLost, message
from fedmend.graph import Graph
from fedmend.privacy.ledger import Direction, Kind
from fedmend.runs.train import train
from tests.tiny import QUICK, comparable, plain_graph, same_weights, tiny_partition


@message("test_inprocess.Number")
class Number:
    value: Annotated[int, Kind.COUNTS]


@message("test_inprocess.Row")
class Row:
    values: Annotated[Tensor, Kind.EMBEDDINGS]


class Silo(SiloBase):
    """Remembers a sum; the steps do what the tests need."""

    total = 0
    row = torch.zeros(3)
    threads: tuple[int, str] = (0, "")

    def add(self, number: Number) -> Number:
        self.total += number.value
        return Number(self.total)

    def keep(self, row: Row) -> Row:
        self.row = row.values
        return Row(self.row)

    def look(self, _: Nothing) -> Nothing:
        self.threads = (torch.get_num_threads(), threading.current_thread().name)
        return Nothing()

    def answer_something_else(self, _: Nothing) -> Number:
        return Row(torch.zeros(1))  # type: ignore[return-value]  # on purpose

    def answer_no_message(self, _: Nothing) -> Number:
        return {"x": self.graph.x}  # type: ignore[return-value]  # on purpose

    def fail(self, _: Nothing) -> Number:
        raise ZeroDivisionError(self.name)


NAMES = ("b", "c", "a")
DIRECTIONS: tuple[Direction, ...] = ("up", "down")


def silos(names: tuple[str, ...] = NAMES) -> list[Silo]:
    graph = plain_graph(3, [(0, 1)])
    return [Silo(name, graph, None, 0) for name in names]


def engine_of(names: tuple[str, ...] = NAMES, **options: Any) -> InProcess[Silo]:
    return InProcess(silos(names), Schema(3, ("x", "y")), 0, **options)


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"])
def engine(request: pytest.FixtureRequest) -> Iterator[InProcess[Silo]]:
    with engine_of(workers=request.param) as made:
        yield made


def test_ask_all(engine: InProcess[Silo]) -> None:
    replies = engine.ask(Silo.add, Number(2))
    assert engine.names == ("a", "b", "c")
    assert list(replies.arrived) == ["a", "b", "c"]
    assert {reply.value for reply in replies.arrived.values()} == {2}
    assert replies.lost == []


def test_ask_some(engine: InProcess[Silo]) -> None:
    replies = engine.ask(Silo.add, Number(2), to=["c", "a"])
    assert list(replies.arrived) == ["a", "c"]
    assert [silo.total for silo in engine.silos.values()] == [0, 2, 2]
    assert engine.ledger.total(silo="b") == 0
    assert engine.ask(Silo.add, Number(2), to=[]).arrived == {}


def test_ask_each(engine: InProcess[Silo]) -> None:
    replies = engine.ask_each(Silo.add, {"c": Number(3), "a": Number(1)})
    assert {name: reply.value for name, reply in replies.arrived.items()} == {"a": 1, "c": 3}
    assert list(replies.arrived) == ["a", "c"]


def test_no_live_object_crosses(engine: InProcess[Silo]) -> None:
    """Neither direction hands over memory: changing one side leaves the other as it was."""
    sent = Row(torch.ones(3))
    replies = engine.ask(Silo.keep, sent).arrived
    sent.values.zero_()
    replies["a"].values.fill_(7.0)
    rows = [silo.row for silo in engine.silos.values()]
    assert all(torch.equal(row, torch.ones(3)) for row in rows)
    rows[0].zero_()
    assert torch.equal(rows[1], torch.ones(3))


def test_undeclared_reply_is_refused(engine: InProcess[Silo]) -> None:
    with pytest.raises(WireError, match=r"^a sent something else .*test_inprocess.Row is not all"):
        engine.ask(Silo.answer_something_else, Nothing())
    with pytest.raises(WireError, match="dict is not a message"):
        engine.ask(Silo.answer_no_message, Nothing())


def test_a_bug_in_a_step_is_not_hidden(engine: InProcess[Silo]) -> None:
    with pytest.raises(ZeroDivisionError):
        engine.ask(Silo.fail, Nothing())


class Recording(InProcess[Silo]):
    """Keeps what crossed the wire."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.crossed: list[tuple[str, str, int]] = []

    def __enter__(self) -> Recording:
        super().__enter__()
        return self

    def _exchange(self, step: str, requests: Mapping[str, bytes]) -> Mapping[str, bytes | SiloLost]:
        answers = super()._exchange(step, requests)
        self.crossed += [(name, "down", len(data)) for name, data in requests.items()]
        for name, answer in answers.items():
            if isinstance(answer, bytes):
                self.crossed.append((name, "up", len(answer)))
        return answers


def test_ledger_counts_what_crossed_to_the_byte() -> None:
    with Recording(silos(), Schema(3, ()), 0, faults=[Fault("c", first=2)]) as engine:
        for number in engine.rounds(3, Number(0)):
            engine.ask(Silo.add, Number(10**number))
            engine.ask(Silo.keep, Row(torch.zeros(number)), to=["b"])
    assert sum(size for *_, size in engine.crossed) == engine.ledger.total()
    for name in NAMES:
        for direction in DIRECTIONS:
            crossed = [size for *key, size in engine.crossed if key == [name, direction]]
            assert sum(crossed) == engine.ledger.total(direction, name)
    by_kind = engine.ledger.by("silo", "direction", "kind")
    assert by_kind["b", "up", "embeddings"] == 4 * (1 + 2 + 3)
    assert ("c", "up", "embeddings") not in by_kind
    rounds = engine.ledger.by("round", "silo", "direction")
    assert (1, "c", "up") in rounds
    assert (2, "c", "down") in rounds  # it was sent the message, and did not answer
    assert (2, "c", "up") not in rounds


# Losing silos


def test_lost_silo_is_a_value_and_is_said_once() -> None:
    said: list[str] = []
    watch = Watch(on_sentence=said.append)
    with engine_of(faults=[Fault("b", first=2, last=2)], watch=watch) as engine:
        arrived = []
        for _ in engine.rounds(3, Number(0)):
            replies = engine.ask(Silo.add, Number(1))
            arrived.append(list(replies.arrived))
            assert [lost.silo for lost in replies.lost] == ([] if len(arrived) != 2 else ["b"])
            engine.ask(Silo.add, Number(1))
    assert arrived == [["a", "b", "c"], ["a", "c"], ["a", "b", "c"]]
    assert said == engine.sentences == ["b was lost in round 2 of training: it does not answer"]


def test_too_few_silos_names_the_lost_ones() -> None:
    faults = [Fault("a"), Fault("c", delay=9.0)]
    with engine_of(faults=faults, timeout=0.5) as engine:
        for _ in engine.rounds(1, Number(0)):
            replies = engine.ask(Silo.add, Number(1))
    assert list(replies.enough(1)) == ["b"]
    with pytest.raises(TooFewSilosError) as caught:
        replies.enough(2)
    assert str(caught.value) == (
        "1 of 3 silos answered, min_silos=2 (a: it does not answer; c: no answer within 0.5 s)"
    )


@pytest.mark.parametrize(("delay", "lost"), [(0.01, False), (60.0, True)])
def test_delay_is_a_loss_only_beyond_the_timeout(delay: float, lost: bool) -> None:
    with engine_of(faults=[Fault("a", delay=delay)], timeout=30.0) as engine:
        for _ in engine.rounds(1, Number(0)):
            replies = engine.ask(Silo.add, Number(1))
    assert bool(replies.lost) == lost
    assert engine.silos["a"].total == (0 if lost else 1)


def test_faults_name_their_phase_and_rounds() -> None:
    fault = Fault("a", first=2, last=3, phase="training")
    hit = [(p, r) for p in ("training", "other") for r in range(5) if fault.hits("a", p, r)]
    assert hit == [("training", 2), ("training", 3)]
    assert not fault.hits("b", "training", 2)
    assert Fault("a", first=2).hits("a", "after training", 3)


def test_silo_lost_for_good_is_not_back_after_the_last_round() -> None:
    with engine_of(faults=[Fault("a", first=2)]) as engine:
        for _ in engine.rounds(2, Number(0)):
            engine.ask(Silo.add, Number(1))
        assert list(engine.ask(Silo.add, Number(1)).arrived) == ["b", "c"]
    assert engine.sentences[-1] == "a was lost after training: it does not answer"


# Rounds, notes and progress


def test_progress_and_history() -> None:
    moments: list[Moment] = []
    with engine_of(watch=Watch(on_round=moments.append)) as engine:
        for number in engine.rounds(2, Number(0), phase="warming"):
            engine.ask(Silo.add, Number(1))
            engine.note(number, loss=number / 10)
            engine.note(number, accuracy=0.5)
        engine.note(2, accuracy=0.75)
        for number in engine.rounds(1, Number(0)):
            engine.note(number, loss=0.0)
    assert engine.history == {
        "warming": {1: {"loss": 0.1, "accuracy": 0.5}, 2: {"loss": 0.2, "accuracy": 0.75}},
        "training": {1: {"loss": 0.0}},
    }
    shown = [(m.phase, m.round, m.rounds, dict(m.metrics)) for m in moments]
    assert shown == [
        ("warming", 1, 2, {"loss": 0.1, "accuracy": 0.5}),
        ("warming", 2, 2, {"loss": 0.2, "accuracy": 0.5}),  # as it stood then
        ("training", 1, 1, {"loss": 0.0}),
    ]
    late: list[Moment] = []
    with engine_of(watch=Watch(on_round=late.append)) as engine:
        for number in engine.rounds(2, Number(0)):
            engine.note(number - 1, accuracy=number / 10)  # known a round later, shown all the same
            engine.note(number, loss=0.0)
    assert late[1].metrics == {"loss": 0.0, "accuracy": 0.2}


def test_progress_counts_bytes_and_times() -> None:
    moments: list[Moment] = []
    with engine_of(watch=Watch(on_round=moments.append)) as engine:
        for _ in engine.rounds(2, Number(0), phase="warming"):
            engine.ask(Silo.add, Number(1))
        for _ in engine.rounds(1, Number(0)):
            pass
    assert 0 < moments[0].bytes_up < moments[1].bytes_up == engine.ledger.total("up")
    assert set(engine.timings.phases) == {"warming", "training"}
    assert set(engine.timings.steps) == {"add"}


def test_sentences_are_said_once() -> None:
    said: list[str] = []
    engine = engine_of(watch=Watch(on_sentence=said.append))
    for sentence in ("x", "y", "x"):
        engine.say(sentence)
    assert said == ["x", "y"]


def test_streams_depend_on_seed_and_purpose_alone() -> None:
    def drawn(seed: int, purpose: str) -> list[float]:
        engine = InProcess(silos(), Schema(3, ()), seed)
        listed: list[float] = torch.rand(3, generator=engine.stream(purpose)).tolist()
        return listed

    assert drawn(1, "x") == drawn(1, "x")
    assert drawn(1, "x") != drawn(2, "x")
    assert drawn(1, "x") != drawn(1, "y")


# Threads


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_step_has_its_torch_threads_and_the_caller_gets_his_back(
    threads: int, workers: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with engine_of(workers=workers, threads=threads) as engine:
            engine.ask(Silo.look, Nothing())
            engine.ask(Silo.look, Nothing(), to=["b"])
        assert {silo.threads[0] for silo in engine.silos.values()} == {threads}
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError), engine_of(threads=threads) as failing:
            failing.ask(Silo.fail, Nothing())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_no_more_workers_than_silos_and_none_left_behind() -> None:
    before = threading.active_count()
    with engine_of(workers=8) as engine:
        engine.ask(Silo.look, Nothing())
        assert engine.workers == 3
        assert threading.active_count() > before
    assert threading.active_count() == before


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_workers_do_not_change_the_result(method: str) -> None:
    runs = [
        train(method, tiny_partition(4), workers=workers, dropout=0.2, **QUICK)
        for workers in (1, 2, 3)
    ]
    for run in runs[1:]:
        assert same_weights(run.weights, runs[0].weights)
        assert all(same_weights(run.own[name], runs[0].own[name]) for name in runs[0].own)
        assert run.ledger.to_csv() == runs[0].ledger.to_csv()
        assert comparable(run.record) == comparable(runs[0].record)


def test_thousands_of_silos() -> None:
    names = tuple(f"silo-{number:04d}" for number in range(5000))
    with engine_of(names, workers=2) as engine:
        for number in engine.rounds(2, Number(0)):
            arrived = engine.ask(Silo.add, Number(number)).enough(5000)
    assert {reply.value for reply in arrived.values()} == {3}
    assert list(arrived) == list(names)
    assert len(engine.ledger.by("silo")) == 5000


def test_many_silos_train() -> None:
    """Four hundred silos of two nodes each, one to train and one to validate."""
    masks = torch.eye(2, dtype=torch.bool)
    kinds = [
        Graph(
            torch.eye(2) * (kind + 1.0),
            [[0], [1]],
            [kind, 1],
            train_mask=masks[0],
            val_mask=masks[1],
            label_names=["no", "yes"],
        )
        for kind in range(2)
    ]
    silos = {f"silo-{number:04d}": kinds[number % 2] for number in range(400)}
    settings: dict[str, Any] = {
        "rounds": 1,
        "hidden": 4,
        "layers": 1,
        "batch_size": 0,
        "fan_out": 0,
    }
    result = train("fedavg", Partition(silos, "by hand", None), workers=1, **settings)
    assert result.weights is not None
    assert result.scores is None
    assert len(result.ledger.by("silo")) == 400
    # All silos of a kind give the same, so two of them are as good as all.
    pair = dict(list(silos.items())[:2])
    alone = train("fedavg", Partition(pair, "by hand", None), workers=1, **settings)
    assert alone.weights is not None
    for key, value in result.weights.items():
        torch.testing.assert_close(value, alone.weights[key])


def test_a_silo_refuses_a_message_its_step_does_not_take() -> None:
    with engine_of() as engine, pytest.raises(WireError, match="not allowed here"):
        engine.ask(Silo.add, Row(torch.zeros(1)))  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
def test_a_display_is_told_of_whatever_metric_chooses_the_round(metric: str) -> None:
    seen: list[float | None] = []
    watch = Watch(on_round=lambda moment: seen.append(moment.validation))
    result = train("fedavg", tiny_partition(), watch=watch, metric=metric, **QUICK)
    noted = result.history["training"]
    assert seen == [noted[n][f"validation_{metric}"] for n in range(len(seen))]
    assert len(seen) == QUICK["rounds"]
