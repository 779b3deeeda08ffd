"""Checkpoints: saved and resumed to the same result; a bad file is one clear error."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from fedmend.data.partition import Partition
from fedmend.engines import checkpoint
from fedmend.engines.base import Interrupted, Moment, Watch
from fedmend.engines.checkpoint import Checkpoint, packed, read, write
from fedmend.engines.inprocess import Fault, InProcess
from fedmend.errors import FedmendError, FileFormatError, SettingsError
from fedmend.federation import Federation, Schema, SiloBase, message
from fedmend.privacy.ledger import Kind
from fedmend.runs.train import Result, train
from tests.tiny import QUICK, comparable, plain_graph, same_weights, tiny_partition


@dataclass
class State:
    weights: dict[str, Tensor] = field(default_factory=dict)
    one: Tensor = field(default_factory=lambda: torch.zeros(0))
    best: dict[str, Tensor] = field(default_factory=dict)
    round: int = 0
    accuracy: float = 0.0
    note: str | None = None


def a_checkpoint(**changes: Any) -> Checkpoint:
    shared = torch.arange(3.0)
    state = State({"a": shared, "b/c": shared}, torch.tensor(2.5), {}, 4, 1 / 3, "Grüße")
    values: dict[str, Any] = {
        "fingerprint": "this run",
        "phase": "training",
        "round": 4,
        "finished": ("warming",),
        "server": packed(state),
        "silos": {"one|two": {"x|y": torch.ones(2)}, "a/b": {}, "silo|0": {"x": torch.zeros(1)}},
        "ledger": "phase,round\n",
        "history": {"training": {4: {"loss": 0.1}}},
        "sentences": ("a was lost",),
    }
    return Checkpoint(**{**values, **changes})


def test_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "checkpoint"
    before = a_checkpoint()
    write(path, before)
    after = read(path, "this run")
    for name in ("fingerprint", "phase", "round", "finished", "ledger", "history", "sentences"):
        assert getattr(after, name) == getattr(before, name)
    assert after.silos.keys() == before.silos.keys()
    assert all(same_weights(after.silos[name], before.silos[name]) for name in before.silos)
    state = State(best={"stale": torch.zeros(1)}, note="stale")
    after.fill(state)
    assert same_weights(state.weights, {"a": torch.arange(3.0), "b/c": torch.arange(3.0)})
    assert torch.equal(state.one, torch.tensor(2.5))
    assert (state.best, state.round, state.accuracy, state.note) == ({}, 4, 1 / 3, "Grüße")


def test_long_texts_do_not_stand_in_the_header(tmp_path: Path) -> None:
    """safetensors refuses a header above 100 MB, and a ledger has a line per silo and round."""
    path = tmp_path / "x"
    before = a_checkpoint(ledger="line\n" * 100_000, sentences=("lost",) * 10_000)
    write(path, before)
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert length < 2000
    after = read(path, "this run")
    assert (after.ledger, after.sentences) == (before.ledger, before.sentences)


def test_other_run(tmp_path: Path) -> None:
    write(tmp_path / "x", a_checkpoint())
    with pytest.raises(SettingsError, match="belongs to another run"):
        read(tmp_path / "x", "that run")


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path, a_checkpoint())
    good = path.read_bytes()
    for data in (b"", b"no", good[:100], good[:-1], good + b"x", save({"a": torch.zeros(1)})):
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match="not a checkpoint"):
            read(path, "this run")
    for version in ("", "fedmend checkpoint 1", json.dumps({"format": checkpoint.FORMAT})):
        path.write_bytes(save({"about": as_tensor("{}")}, metadata={"fedmend": version}))
        with pytest.raises(FileFormatError, match="not a checkpoint of this version"):
            read(path, "this run")
    texts = [as_tensor(text) for text in ("[]", "{", "", "[" * 100_000, "9" * 10_000)]
    others = [torch.tensor([255], dtype=torch.uint8), torch.ones(3), torch.ones(3).bfloat16()]
    for about in (*texts, *others, None):
        named = {} if about is None else {"about": about}
        path.write_bytes(save(named, metadata={"fedmend": checkpoint.FORMAT}))
        with pytest.raises(FileFormatError, match="not a checkpoint") as caught:
            read(path, "this run")
        assert "\n" not in str(caught.value)
    with pytest.raises(FileFormatError):
        read(tmp_path, "this run")


def as_tensor(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def place_of_about(file: bytes) -> tuple[int, int]:
    """Where in a checkpoint's file the text about it begins and ends."""
    (length,) = struct.unpack("<Q", file[:8])
    start, end = json.loads(file[8 : 8 + length])["about"]["data_offsets"]
    return 8 + length + start, 8 + length + end


def edited(good: bytes, name: str, value: Any) -> bytes:
    """A checkpoint's file with one entry of what it says replaced (or removed, for ...)."""
    start, end = place_of_about(good)
    about = json.loads(good[start:end])
    if value is ...:
        del about[name]
    else:
        about[name] = value
    named = {**load(good), "about": as_tensor(json.dumps(about))}
    return save(named, metadata={"fedmend": checkpoint.FORMAT})


def error_of(function: Any, *args: Any, **options: Any) -> str | None:
    """The message of the FedmendError a call ends in; any other error is a failure."""
    try:
        function(*args, **options)
    except FedmendError as error:
        return str(error)
    return None


@pytest.mark.parametrize("value", [..., None, 7, "x", [1], {"x": 1}])
@pytest.mark.parametrize(
    "name", ["phase", "round", "finished", "server", "silos", "history", "sentences"]
)
def test_damaged_entries_end_in_one_clear_error_or_none(
    tmp_path: Path, name: str, value: Any
) -> None:
    path = tmp_path / "x"
    write(path, a_checkpoint())
    path.write_bytes(edited(path.read_bytes(), name, value))
    said = error_of(read, path, "this run")
    assert said is None or ("is damaged" in said and "\n" not in said)


# Real runs

PARTITION = tiny_partition()
SETTINGS: dict[str, Any] = {**QUICK, "rounds": 7, "dropout": 0.3}


def stopping_after(number: int) -> Watch:
    """A watch that asks to stop when this round is done."""
    watch = Watch()

    def on_round(moment: Moment) -> None:
        watch.stop_requested = moment.round >= number

    watch.on_round = on_round
    return watch


def same_result(one: Result, other: Result) -> None:
    assert same_weights(one.weights, other.weights)
    assert one.own.keys() == other.own.keys()
    assert all(same_weights(one.own[name], other.own[name]) for name in one.own)
    assert one.history == other.history
    assert one.ledger.to_csv() == other.ledger.to_csv()
    assert comparable(one.record) == comparable(other.record)


@pytest.mark.parametrize("every", [1, 3, 100])
def test_interrupted_and_resumed_is_the_same_run(tmp_path: Path, every: int) -> None:
    whole = train("fedavg", PARTITION, **SETTINGS)
    for stop in (1, 5):
        out = tmp_path / f"{stop}"
        with pytest.raises(Interrupted):
            train(
                "fedavg",
                PARTITION,
                out=out,
                checkpoint_every=every,
                watch=stopping_after(stop),
                **SETTINGS,
            )
        assert [path.name for path in out.iterdir()] == ["checkpoint.safetensors"]
        resumed = train(
            "fedavg", PARTITION, out=out, resume=True, checkpoint_every=every, **SETTINGS
        )
        same_result(resumed, whole)


def test_interrupted_twice(tmp_path: Path) -> None:
    for stop in (2, 4):
        watch = stopping_after(stop)
        with pytest.raises(Interrupted):
            train("fedper", PARTITION, out=tmp_path, resume=True, watch=watch, **SETTINGS)
    resumed = train("fedper", PARTITION, out=tmp_path, resume=True, **SETTINGS)
    same_result(resumed, train("fedper", PARTITION, **SETTINGS))


def test_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """Dies in round 5 without a word; the checkpoint after round 3 is what is left."""

    def die(moment: Moment) -> None:
        if moment.round == 5:
            raise MemoryError

    watch = Watch(on_round=die)
    with pytest.raises(MemoryError):
        train("fedavg", PARTITION, out=tmp_path, checkpoint_every=3, watch=watch, **SETTINGS)
    rounds: list[int] = []
    watch = Watch(on_round=lambda moment: rounds.append(moment.round))
    resumed = train("fedavg", PARTITION, out=tmp_path, resume=True, watch=watch, **SETTINGS)
    assert rounds == [4, 5, 6, 7]
    same_result(resumed, train("fedavg", PARTITION, **SETTINGS))


def test_resuming_a_finished_run_trains_nothing_and_gives_the_same(tmp_path: Path) -> None:
    whole = train("fedavg", PARTITION, out=tmp_path, **SETTINGS)
    rounds: list[int] = []
    watch = Watch(on_round=lambda moment: rounds.append(moment.round))
    again = train("fedavg", PARTITION, out=tmp_path, resume=True, watch=watch, **SETTINGS)
    assert rounds == []
    same_result(again, whole)


def test_a_run_that_had_ended_early_is_resumed_at_that_round(tmp_path: Path) -> None:
    """Interrupted before its record was written: what follows training is counted as it was."""
    early = {**SETTINGS, "rounds": 60, "patience": 1}
    whole = train("fedavg", PARTITION, out=tmp_path, **early)
    last = max(whole.history["training"])
    assert last < 60
    assert {entry.round for entry in whole.ledger.entries if entry.phase.startswith("after")} == {
        last
    }
    same_result(train("fedavg", PARTITION, out=tmp_path, resume=True, **early), whole)
    with pytest.raises(SettingsError, match=f"after round {last} of training, beyond"):
        train("fedavg", PARTITION, out=tmp_path, resume=True, **{**early, "rounds": last - 1})


def test_more_rounds_of_the_same_run(tmp_path: Path) -> None:
    longer = {**SETTINGS, "rounds": 9}
    train("local", PARTITION, out=tmp_path, **SETTINGS)
    resumed = train("local", PARTITION, out=tmp_path, resume=True, **longer)
    same_result(resumed, train("local", PARTITION, **longer))


def test_stop_in_the_last_round_is_no_interruption(tmp_path: Path) -> None:
    result = train("local", PARTITION, out=tmp_path, watch=stopping_after(7), **SETTINGS)
    same_result(result, train("local", PARTITION, **SETTINGS))


def test_without_resume_a_run_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train("fedavg", PARTITION, out=tmp_path, watch=stopping_after(3), **SETTINGS)
    rounds: list[int] = []
    watch = Watch(on_round=lambda moment: rounds.append(moment.round))
    train("fedavg", PARTITION, out=tmp_path, watch=watch, **SETTINGS)
    assert rounds == [1, 2, 3, 4, 5, 6, 7]


def test_what_was_said_before_is_not_forgotten(tmp_path: Path) -> None:
    faults = [Fault("silo-1", last=1), Fault("silo-2", first=5, last=5)]
    watch = stopping_after(2)
    with pytest.raises(Interrupted):
        train("fedavg", PARTITION, out=tmp_path, faults=faults, watch=watch, **SETTINGS)
    said: list[str] = []
    watch = Watch(on_sentence=said.append)
    resumed = train(
        "fedavg", PARTITION, out=tmp_path, resume=True, faults=faults, watch=watch, **SETTINGS
    )
    assert said == ["silo-2 was lost in round 5 of training: it does not answer"]
    assert resumed.record.said == (
        "silo-1 was lost in round 1 of training: it does not answer",
        *said,
    )
    same_result(resumed, train("fedavg", PARTITION, faults=faults, **SETTINGS))


def test_resume_without_a_checkpoint_starts_at_the_beginning(tmp_path: Path) -> None:
    resumed = train("fedavg", PARTITION, out=tmp_path, resume=True, **SETTINGS)
    same_result(resumed, train("fedavg", PARTITION, **SETTINGS))


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 0.02},
        {"seed": 1},
        {"silos": tiny_partition(3, seed=1)},
        {"method": "fedprox"},
        {"threads": 2},
    ],
    ids=["settings", "seed", "split", "method", "threads"],
)
def test_another_runs_checkpoint_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    first = {"method": "fedavg", "silos": PARTITION, "out": tmp_path, **SETTINGS}
    train(**first)
    with pytest.raises(SettingsError, match="another run"):
        train(**{**first, "resume": True, **changes})


def test_checkpoint_beyond_the_rounds_asked_for(tmp_path: Path) -> None:
    train("fedavg", PARTITION, out=tmp_path, **SETTINGS)
    with pytest.raises(SettingsError, match="after round 7 of training, beyond the 5 rounds"):
        train("fedavg", PARTITION, out=tmp_path, resume=True, **{**SETTINGS, "rounds": 5})


@settings(max_examples=40)
@given(st.integers(0, 2**30), st.integers(1, 255), st.sampled_from(["all", "header", "about"]))
def test_damaged_runs_never_end_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, at: int, by: int, where: str
) -> None:
    """A flipped byte: resumed all the same (the figures may be off), or one clear error."""
    file = DAMAGED.get(tmp_path_factory) / "checkpoint.safetensors"
    good = file.read_bytes()
    (length,) = struct.unpack("<Q", good[:8])
    places = {"all": (0, len(good)), "header": (0, 8 + length), "about": place_of_about(good)}
    start, end = places[where]
    bad = bytearray(good)
    bad[start + at % (end - start)] ^= by
    file.write_bytes(bytes(bad))
    options = {"out": file.parent, "resume": True, "workers": 1, **QUICK, "rounds": 1}
    try:
        said = error_of(train, "fedavg", PARTITION, **options)
    finally:
        file.write_bytes(good)
    assert said is None or "\n" not in said


@pytest.mark.parametrize("field_", ["accuracy", "one"])
def test_a_servers_state_that_lacks_a_field_is_damaged(field_: str) -> None:
    """An empty dict is not written at all; what else is missing was lost."""
    whole = a_checkpoint()
    tensors, plain = (dict(part) for part in whole.server)
    whole.fill(State())
    (plain if field_ in plain else tensors).pop(field_)
    with pytest.raises(KeyError, match=field_):
        replace(whole, server=(tensors, plain)).fill(State())


def test_a_number_that_became_something_else_is_damage() -> None:
    whole = a_checkpoint()
    tensors, plain = whole.server
    with pytest.raises(TypeError, match="accuracy is no number"):
        replace(whole, server=(tensors, {**plain, "accuracy": None})).fill(State())


class OneRun:
    """A finished run of one round, made when it is first asked for."""

    folder: Path | None = None

    def get(self, factory: pytest.TempPathFactory) -> Path:
        if self.folder is None:
            self.folder = factory.mktemp("damaged")
            train("fedavg", PARTITION, out=self.folder, workers=1, **{**QUICK, "rounds": 1})
        return self.folder


DAMAGED = OneRun()


def test_silo_names_of_any_kind(tmp_path: Path) -> None:
    graphs = list(PARTITION.silos.values())
    named = dict(zip(["a|b", "a", "silo|0"], graphs, strict=True))
    silos = Partition(named, "by hand", None)
    whole = train("fedavg", silos, **SETTINGS)
    with pytest.raises(Interrupted):
        train("fedavg", silos, out=tmp_path, watch=stopping_after(2), **SETTINGS)
    same_result(train("fedavg", silos, out=tmp_path, resume=True, **SETTINGS), whole)


# Several phases


@message("test_checkpoint.Number")
class Number:
    value: Annotated[int, Kind.COUNTS]


class Silo(SiloBase):
    total = 0

    def add(self, number: Number) -> Number:
        self.total += number.value
        return Number(self.total)

    def state(self) -> dict[str, Tensor]:
        return {"total": torch.tensor(self.total)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.total = int(state["total"])


@dataclass
class Sums:
    warm: int = 0
    trained: int = 0


def two_phases(silos: Federation[Silo]) -> Sums:
    """Rounds whose numbers depend on all that came before, in two phases with one state."""
    state = Sums()
    silos.ask(Silo.add, Number(1))
    for number in silos.rounds(3, state, phase="warming"):
        replies = silos.ask(Silo.add, Number(number)).arrived
        state.warm += sum(reply.value for reply in replies.values())
        silos.note(number, warm=state.warm)
    for number in silos.rounds(4, state):
        replies = silos.ask(Silo.add, Number(state.warm + number)).arrived
        state.trained += sum(reply.value for reply in replies.values())
        silos.note(number, trained=state.trained)
    silos.ask(Silo.add, Number(5))
    return state


def engine_of(path: Path | None = None, resume: bool = False, watch: Watch | None = None) -> Any:
    graph = plain_graph(2, [])
    return InProcess(
        [Silo(name, graph, None, 0) for name in ("a", "b")],
        Schema(3, ()),
        0,
        checkpoint_file=path,
        checkpoint_every=2,
        resume=resume,
        watch=watch,
    )


@pytest.mark.parametrize("stop", range(1, 7))
def test_resumes_in_the_phase_it_stopped_in(tmp_path: Path, stop: int) -> None:
    with engine_of() as engine:
        expected = two_phases(engine)
    watch, passed = Watch(), []

    def count(_: Moment) -> None:
        passed.append(1)
        watch.stop_requested = len(passed) >= stop

    watch.on_round = count
    with engine_of(tmp_path / "x", watch=watch) as stopped, pytest.raises(Interrupted):
        two_phases(stopped)
    assert len(passed) == stop, "at once, between phases too"
    with engine_of(tmp_path / "x", resume=True) as resumed:
        assert two_phases(resumed) == expected
    assert resumed.history == engine.history
    assert resumed.ledger.to_csv() == engine.ledger.to_csv()
    assert [silo.total for silo in resumed.silos.values()] == [
        silo.total for silo in engine.silos.values()
    ]


def test_interrupted_is_a_keyboard_interrupt() -> None:
    """So that nothing that catches Exception takes it for an error and goes on."""
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert checkpoint.FORMAT.startswith("fedmend checkpoint")
