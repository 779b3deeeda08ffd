"""The deployed engine and the silos' endpoints, without FLARE between: lines call them directly.

What FLARE itself adds (processes, certificates, networks) is tested in tests/integration/flare.
"""

from __future__ import annotations

import errno
import html
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedmend import __version__
from fedmend.data.border import Border
from fedmend.data.folders import read_own_border, write_silo
from fedmend.data.partition import Partition
from fedmend.deploy.deployed import PLAN, make_plan, train_deployed
from fedmend.engines import endpoint as endpoint_module
from fedmend.engines import flare, wire
from fedmend.engines.base import Interrupted, Moment, Watch
from fedmend.engines.endpoint import (
    Plan,
    PlatformPhase,
    SiloEndpoint,
    kinds_of,
    of_the_platform,
    steps_of,
)
from fedmend.errors import (
    FederationError,
    FileFormatError,
    RefusedError,
    SettingsError,
    StorageError,
    TooFewSilosError,
    UnknownNameError,
    WireError,
)
from fedmend.evaluation.metrics import checked
from fedmend.federation import Nothing
from fedmend.files import plain
from fedmend.graph import Graph
from fedmend.methods import METHODS, fedavg
from fedmend.privacy.ledger import Ledger
from fedmend.privacy.noise import PublicNoise
from fedmend.privacy.policy import Policy
from fedmend.reports import page
from fedmend.reports.views import read_views
from fedmend.runs.predict import predict_folder, predictor_of
from fedmend.runs.record import Record, read_run
from fedmend.runs.retrace import Retracer
from fedmend.runs.train import Result, privacy_accounts, train
from tests.tiny import QUICK, accepted, rebuilt, same_weights, tiny_partition

PARTITION = tiny_partition()
SETTINGS: dict[str, Any] = {**QUICK, "dropout": 0.2}
RUN = "0123456789abcdef"
NAMES = list(PARTITION.names)

Line = Callable[..., Mapping[str, Any]]


class Place:
    """A federation of endpoints in one folder, restartable: what processes would be in reality."""

    def __init__(self, root: Path, silos: Partition = PARTITION) -> None:
        self.root, self.silos = root, silos
        self.policies: dict[str, Policy] = {}
        self.endpoints: dict[str, SiloEndpoint] = {}
        self.told: dict[str, list[str]] = {name: [] for name in silos.names}
        self.start(*silos.names)

    def start(self, *names: str) -> None:
        for name in names:
            self.endpoints[name] = SiloEndpoint(
                name,
                lambda name=name: self.silos.silos[name],  # type: ignore[misc]  # bound now
                lambda names, name=name: self.border(name, names),  # type: ignore[misc]  # bound now
                self.policies.get(name, Policy()),
                lambda run, name=name: self.folder(name, run),  # type: ignore[misc]  # bound now
                self.told[name].append,
            )

    def border(self, name: str, names: tuple[str, ...]) -> Border | None:
        """As a silo's own process reads it."""
        if not self.graph(name).exists():
            write_silo(self.silos, name, self.graph(name))
        return read_own_border(self.graph(name), name, names)

    def graph(self, name: str) -> Path:
        return self.root / "graphs" / name

    def folder(self, party: str, run: str = RUN) -> Path:
        path = self.root / party / run
        path.mkdir(parents=True, exist_ok=True)
        return path

    def line(self, name: str) -> Line:
        def call(
            ticket: int, where: str, step: str, request: bytes, patience: float, timeout: float
        ) -> Mapping[str, Any]:
            return self.endpoints[name].perform(ticket, where, step, request, patience)

        return call

    @property
    def lines(self) -> dict[str, Line]:
        return {name: self.line(name) for name in self.silos.names}

    def run(
        self,
        method: str,
        lines: Mapping[str, Line] | None = None,
        watch: Watch | None = None,
        **options: Any,
    ) -> Record:
        settings = {**accepted(method, SETTINGS), **options.pop("settings", {})}
        plan = make_plan(method, settings, list(self.silos.names), run=RUN, **options)
        lines = self.lines if lines is None else lines
        train_deployed(plan, lines, self.folder("server"), watch or Watch())
        return read_run(self.folder("server")).record

    def close(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.close()

    @property
    def weights(self) -> dict[str, torch.Tensor] | None:
        return read_run(self.folder("server")).weights

    def own_weights(self, name: str) -> dict[str, torch.Tensor]:
        return read_run(self.folder(name)).own_weights(name)

    @property
    def ledger(self) -> Ledger:
        return Ledger.from_csv((self.folder("server") / "ledger.csv").read_text())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@cache
def in_process(method: str) -> Result:
    mode = METHODS[method].deployed_evaluation
    return train(method, PARTITION, evaluation=mode, **accepted(method, SETTINGS))


deployable = pytest.mark.parametrize(
    "method", [n for n, m in METHODS.items() if m.not_deployable is None]
)


@pytest.fixture
def noise_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that hides something is drawn as in-process: else no two runs could be compared."""

    def noise(endpoint: SiloEndpoint) -> PublicNoise:
        return PublicNoise(endpoint._known()[0].seed, endpoint.name)

    monkeypatch.setattr(SiloEndpoint, "_noise", noise)


def methods_rows(ledger: Ledger) -> list[Any]:
    return [entry for entry in ledger.entries if not of_the_platform(entry)]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("feddep-no-nfdp", {}),
        ("fedggr", {"embedding_noise": 1.0}),
        ("hifgl", {"below_minimum": "noise"}),
    ],
)
def test_two_runs_with_one_seed_have_different_noise(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    found = []
    for name in ("one", "other"):
        place = Place(tmp_path / name)
        record = place.run(method, settings=settings)
        assert any(account.drawn for account in record.privacy)
        found.append(place.weights)
        place.close()
    in_process = train(
        method,
        PARTITION,
        evaluation=METHODS[method].deployed_evaluation,
        **{**accepted(method, SETTINGS), **settings},
    )
    assert not same_weights(found[0], found[1])
    assert not same_weights(found[0], in_process.weights)


@deployable
@pytest.mark.usefixtures("noise_of_the_seed")
def test_every_method_gives_the_in_process_result(method: str, place: Place) -> None:
    record = place.run(method)
    expected = in_process(method)
    assert same_weights(place.weights, expected.weights)
    assert record.silos_with_own_model == tuple(sorted(expected.own))
    for name, weights in expected.own.items():
        assert same_weights(place.own_weights(name), weights)
    assert methods_rows(place.ledger) == expected.ledger.entries
    keys = ("method", "settings", "seed", "evaluation", "result", "rounds", "model", "privacy")
    for key in keys:
        assert plain(getattr(record, key)) == plain(getattr(expected.record, key)), key
    assert record.label_names == expected.label_names


def stops_at_once() -> Watch:
    """Asks for the run's end after its first round."""
    watch = Watch()

    def stop(moment: Moment) -> None:
        watch.stop_requested = True

    watch.on_round = stop
    return watch


@deployable
@pytest.mark.usefixtures("noise_of_the_seed")
def test_stopped_and_resumed_is_the_same(method: str, place: Place) -> None:
    with pytest.raises(Interrupted):
        place.run(method, watch=stops_at_once())
    place.start(*NAMES)  # everybody starts anew
    place.run(method, resume=True)
    expected = in_process(method)
    assert same_weights(place.weights, expected.weights)
    for name, weights in expected.own.items():
        assert same_weights(place.own_weights(name), weights)
    assert methods_rows(place.ledger) == expected.ledger.entries


class Renamed:
    """A federation in which a method calls its training something else."""

    def __init__(self, silos: Any, phase: str) -> None:
        self.silos, self.phase = silos, phase

    def __getattr__(self, name: str) -> Any:
        return getattr(self.silos, name)

    def rounds(self, count: int, state: Any) -> Iterator[int]:
        yield from self.silos.rounds(count, state, self.phase)


def train_in(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have FedAvg call its training something else."""
    server: Callable[..., Any] = vars(fedavg)["server"]
    monkeypatch.setattr(fedavg, "server", lambda silos, own: server(Renamed(silos, phase), own))


@pytest.mark.parametrize("phase", get_args(PlatformPhase))
def test_a_methods_phase_may_be_called_like_the_platforms(
    place: Place, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    train_in(phase, monkeypatch)
    expected = train("fedavg", PARTITION, evaluation="own-subgraph", **SETTINGS)
    assert list(expected.history) == [phase]
    with pytest.raises(Interrupted):
        place.run("fedavg", watch=stops_at_once())
    place.start(*NAMES)
    record = place.run("fedavg", resume=True)
    assert same_weights(place.weights, expected.weights)
    assert record.rounds == expected.record.rounds
    assert methods_rows(place.ledger) == expected.ledger.entries
    platform = {entry.phase for entry in place.ledger.entries if of_the_platform(entry)}
    assert platform == set(get_args(PlatformPhase))
    assert any(line.startswith(f"{phase}, round 1; ") for line in place.told["silo-0"])


@pytest.mark.parametrize("phase", get_args(PlatformPhase))
def test_the_time_limit_is_the_methods_in_a_phase_called_like_the_platforms(
    stuck: Stuck, place: Place, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    train_in(phase, monkeypatch)
    said = place.run("fedavg", stuck.lines, timeout=60).said
    assert f"silo-1 was lost in round 1 of {phase}: no answer within 60 s" in said


def test_a_silos_own_ledger_is_the_servers(place: Place) -> None:
    place.run("fedavg")
    for name in NAMES:
        own = place.endpoints[name].ledger
        there = [entry for entry in place.ledger.entries if entry.silo == name]
        assert own.entries == there


def test_state_stays_at_the_silo(place: Place) -> None:
    place.run("fedper", checkpoint_every=1)
    saved = (place.folder("server") / "checkpoint.safetensors").read_bytes()
    header = json.loads(saved[8 : 8 + int.from_bytes(saved[:8], "little")])
    assert not [key for key in header if key.startswith("silo|")]
    assert len(list(place.folder("silo-0").glob("checkpoint-*"))) == 2
    kinds = {entry.kind for entry in place.ledger.entries if entry.phase == "checkpoints"}
    assert kinds <= {"control", "framing"}


def test_a_finished_run_is_not_trained_again(place: Place) -> None:
    place.run("fedavg")
    before = place.ledger.to_csv()
    place.run("fedavg", lines={}, resume=True)
    assert place.ledger.to_csv() == before


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"seed": 1}, "seed was 0, now it is 1"),
        ({"settings": {"hidden": 9, "lr": 0.5}}, r"lr was 0\.01, now it is 0\.5"),
        ({"settings": {"rounds": 2}}, "rounds was 3, now it is 2"),
        ({"method": "fedprox"}, "method was fedavg, now it is fedprox; ask for the same"),
    ],
)
def test_a_finished_run_is_not_passed_off_as_another(
    place: Place, asked: dict[str, Any], says: str
) -> None:
    place.run("fedavg")
    before = (place.folder("server") / PLAN).read_bytes()
    with pytest.raises(SettingsError, match=says) as why:
        place.run(**{"method": "fedavg", **asked}, resume=True)
    assert "\n" not in str(why.value)
    assert (place.folder("server") / PLAN).read_bytes() == before


def test_other_silos_are_another_run(place: Place) -> None:
    place.run("fedavg")
    plan = make_plan("fedavg", SETTINGS, NAMES[:2], run=RUN, resume=True)
    with pytest.raises(SettingsError, match=r"silos was .*'silo-2'.*, now it is"):
        train_deployed(plan, place.lines, place.folder("server"), Watch())


def test_a_finished_run_goes_on_to_more_rounds(place: Place) -> None:
    place.run("fedavg", settings={"rounds": 2})
    place.start(*NAMES)
    record = place.run("fedavg", resume=True)
    assert record.settings["rounds"] == SETTINGS["rounds"] == 3
    assert same_weights(place.weights, in_process("fedavg").weights)
    assert methods_rows(place.ledger) == in_process("fedavg").ledger.entries


@pytest.mark.parametrize(
    ("method", "noise"),
    [
        ("fedper", {}),
        ("feddep", {}),
        ("fedggr", {"embedding_noise": 4.0, "gradient_noise": 40.0}),
        ("hifgl", {"below_minimum": "noise", "noise_multiplier": 30.0}),
    ],
)
def test_a_deployed_run_can_be_reported_at_the_server_and_at_a_silo(
    place: Place, method: str, noise: dict[str, Any]
) -> None:
    record = place.run(method, settings=noise)
    found = read_views([place.folder("server"), place.folder("silo-1")])
    for view in found:
        view.retraced = Retracer()(view.saved)
    text, _ = page.build(found)
    for account in record.privacy:
        assert html.escape(account.sentence, quote=True) in text
    assert bool(record.privacy) == (method != "fedper")
    server, silo = (view.record for view in found)
    assert silo.engine == replace(server.engine, silo="silo-1")
    assert [each.name for each in silo.data.per_silo] == ["silo-1"]
    assert server.result is not None
    assert silo.result is not None
    assert silo.result.by_silo["silo-1"] == server.result.by_silo["silo-1"]
    up = [entry for entry in place.ledger.entries if entry.silo == "silo-1"]
    assert silo.bytes.up < sum(entry.bytes for entry in up if entry.direction == "up")
    assert silo.measured.phases.keys() >= {"training"}


@pytest.mark.parametrize("method", ["fedper", "local", "fedsage+", "fedggr", "hifgl"])
def test_a_deployed_silo_predicts_from_its_own_folder_as_it_was_tested(
    place: Place, method: str
) -> None:
    record = place.run(method)
    write_silo(PARTITION, "silo-1", place.graph("silo-1"))
    out = place.root / "predicted.csv"
    done = predict_folder(place.folder("silo-1"), place.graph("silo-1"), out, None)
    assert record.result is not None
    assert done["test_accuracy"] == pytest.approx(record.result.by_silo["silo-1"]["accuracy"])
    assert (done["silo"], done["nodes"]) == ("silo-1", PARTITION.silos["silo-1"].num_nodes)
    expected = in_process(method).predictors["silo-1"]
    graph = PARTITION.silos["silo-1"]
    found = predictor_of(read_run(place.folder("silo-1")), "silo-1")
    torch.testing.assert_close(
        found.predict(graph), expected.on(record.evaluation).predict(graph), rtol=0, atol=0
    )
    with pytest.raises(UnknownNameError, match="silo-9"):
        predict_folder(place.folder("silo-1"), place.graph("silo-1"), out, "silo-9")
    if record.silos_with_own_model:
        for elsewhere, name in (("silo-1", "silo-0"), ("server", "silo-1")):
            with pytest.raises((FileFormatError, UnknownNameError), match="silo"):
                predict_folder(place.folder(elsewhere), place.graph("silo-1"), out, name)


def test_new_nodes_of_a_deployed_fedggr_silo_are_predicted_without_the_servers_part(
    place: Place,
) -> None:
    place.run("fedggr")
    graph = PARTITION.silos["silo-1"]
    ids = [*graph.node_ids[:-2].tolist(), 900, 901]
    renamed = Partition({"silo-1": rebuilt(graph, node_ids=np.array(ids))}, "x", None)
    write_silo(renamed, "silo-1", place.root / "grown")
    done = predict_folder(
        place.folder("silo-1"), place.root / "grown", place.root / "new.csv", None
    )
    assert (done["new"], done["without_rows"]) == (2, 2)


def test_global_cannot_be_deployed() -> None:
    with pytest.raises(SettingsError, match="global cannot be deployed"):
        make_plan("global", {}, ["a"], run=RUN)


# Losses


def dead_after(line: Line, round_number: int, error: Exception) -> Line:
    def call(ticket: int, where: str, *rest: Any) -> Mapping[str, Any]:
        if where == "" or (
            where.startswith("training/") and int(where.split("/")[1]) >= round_number
        ):
            raise error
        return line(ticket, where, *rest)

    return call


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionError()])
def test_a_dead_silo_is_asked_once_and_the_rest_go_on(place: Place, error: Exception) -> None:
    calls = []
    dead = dead_after(place.line("silo-1"), 2, error)

    def counted(ticket: int, where: str, *rest: Any) -> Mapping[str, Any]:
        calls.append(where)
        return dead(ticket, where, *rest)

    record = place.run("fedavg", {**place.lines, "silo-1": counted})
    assert calls.count("training/2") == 1
    assert "training/3" not in calls
    assert any("silo-1 was lost in round 2" in sentence for sentence in record.said)
    rows = {(entry.round, entry.silo) for entry in methods_rows(place.ledger)}
    assert (3, "silo-0") in rows
    assert (3, "silo-1") not in rows


def test_too_few_silos_stop_the_run(place: Place) -> None:
    dead = dead_after(place.line("silo-1"), 2, TimeoutError())
    with pytest.raises(TooFewSilosError, match=r"silo-1: no sign of life for 8 s"):
        place.run("fedavg", {**place.lines, "silo-1": dead}, settings={"min_silos": 3})


def test_a_silo_that_was_cut_off_comes_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flare, "_PROBE_EVERY", 0.01)
    inner, down, back = place.line("silo-1"), threading.Event(), threading.Event()

    def wobbly(ticket: int, where: str, *rest: Any) -> Mapping[str, Any]:
        if where == "training/2" and not down.is_set():
            down.set()
            raise ConnectionError
        return inner(ticket, where, *rest)

    def slow(ticket: int, where: str, *rest: Any) -> Mapping[str, Any]:
        if where == "training/2":
            assert back.wait(60)  # time for a probe
        return place.line("silo-0")(ticket, where, *rest)

    def hear(sentence: str) -> None:
        if sentence == "silo-1 is back in round 2 of training":
            back.set()

    lines = {**place.lines, "silo-1": wobbly, "silo-0": slow}
    place.run("fedavg", lines, Watch(on_sentence=hear))
    rows = {(entry.round, entry.silo) for entry in methods_rows(place.ledger)}
    assert (3, "silo-1") in rows


def before_training(do: Callable[[fedavg.Silo], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have FedAvg's silos do something before every step `train`."""
    whole = fedavg.Silo.train

    def train(self: fedavg.Silo, received: fedavg.Weights) -> fedavg.Update:
        do(self)
        return whole(self, received)

    train.__annotations__ = {"received": fedavg.Weights, "return": fedavg.Update}
    monkeypatch.setattr(fedavg.Silo, "train", train)


class Clock(threading.local):
    """The engine's, one per line: it stands still where no test moves it on.

    How quick or busy the machine is decides nothing then.
    """

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(flare, "time", made)
    monkeypatch.setattr(flare, "_PATIENCE", 0.05)
    return made


def slow_line(line: Line, clock: Clock, seconds: float, busy_with_it: Callable[[], bool]) -> Line:
    """So many seconds pass whenever the silo says that it is busy, with what makes it slow."""

    def call(*asked: Any) -> Mapping[str, Any]:
        answer = line(*asked)
        if answer["state"] == "busy" and busy_with_it():
            clock.now += seconds
        return answer

    return call


@dataclass
class Stuck:
    """silo-1 never comes out of its first training, until it is released."""

    lines: dict[str, Line]
    release: threading.Event


@pytest.fixture
def stuck(place: Place, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    begun, release = threading.Event(), threading.Event()

    def wait(silo: fedavg.Silo) -> None:
        if silo.name == "silo-1":
            begun.set()
            release.wait(60)

    def is_stuck() -> bool:
        return begun.is_set() and not release.is_set()

    before_training(wait, monkeypatch)
    slow = slow_line(place.line("silo-1"), clock, 50.0, is_stuck)
    yield Stuck({**place.lines, "silo-1": slow}, release)
    release.set()


def test_a_slow_step_loses_its_silo_for_that_step(stuck: Stuck, place: Place) -> None:
    watch = Watch(on_sentence=lambda _: stuck.release.set())
    record = place.run("fedavg", stuck.lines, watch, timeout=60)
    assert record.said == ("silo-1 was lost in round 1 of training: no answer within 60 s",)
    heard = [each for each in methods_rows(place.ledger) if each.direction == "up"]
    assert {each.round for each in heard if each.silo == "silo-1"} == {2, 3}


def test_the_time_limit_is_for_the_methods_steps(place: Place, clock: Clock) -> None:
    endpoint, graph = place.endpoints["silo-1"], PARTITION.silos["silo-1"]
    reading, late = threading.Event(), threading.Event()

    def slowly_read() -> Graph:
        reading.set()
        assert late.wait(60)
        return graph

    def is_reading() -> bool:
        if not reading.is_set() or late.is_set():
            return False
        late.set()
        return True

    endpoint._graph_of = slowly_read
    slow = slow_line(place.line("silo-1"), clock, 500.0, is_reading)
    assert place.run("fedavg", {**place.lines, "silo-1": slow}, timeout=60).said == ()


def test_a_stuck_silo_holds_up_neither_checkpoints_nor_the_test(stuck: Stuck, place: Place) -> None:
    record = place.run("fedavg", stuck.lines, timeout=60, checkpoint_every=1)
    assert "silo-1 was lost in checkpoints: no answer within 60 s" in record.said
    assert "silo-1 was lost in evaluation: no answer within 60 s" in record.said
    assert record.result is not None
    assert sorted(record.result.by_silo) == ["silo-0", "silo-2"]


def test_a_stuck_silos_endpoint_drops_what_is_not_asked_for_any_more(
    stuck: Stuck, place: Place
) -> None:
    place.run("fedavg", stuck.lines, timeout=60, checkpoint_every=1)
    endpoint = place.endpoints["silo-1"]
    _, last = [
        work for work in endpoint._work.values() if not work.done()
    ]  # first what it is stuck in
    stuck.release.set()
    last.result(60)
    performed = {(entry.phase, entry.round) for entry in endpoint.ledger.entries}
    assert performed == {("handshake", 0), ("training", 1), ("evaluation", 0)}


@pytest.mark.parametrize("where", ["handshake", "checkpoints", "evaluation"])
def test_a_silo_that_is_always_busy_does_not_hold_up_the_run(
    place: Place, clock: Clock, where: str
) -> None:
    inner = place.line("silo-1")

    def busy(ticket: int, asked: str, *rest: Any) -> Mapping[str, Any]:
        if asked.startswith(where):
            clock.now += 70.0
            return {"state": "busy"}
        return inner(ticket, asked, *rest)

    lines = {**place.lines, "silo-1": busy}
    if where == "handshake":
        with pytest.raises(FederationError, match="cannot start: silo-1: no answer within 300 s"):
            place.run("fedavg", lines, timeout=30)
        return
    record = place.run("fedavg", lines, timeout=30)
    assert f"silo-1 was lost in {where}: no answer within 300 s" in record.said


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_a_time_limit_a_step_may_take_any_time(
    place: Place, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    monkeypatch.setattr(flare, "_PATIENCE", 0.01)
    before_training(lambda silo: time.sleep(0.1), monkeypatch)
    assert place.run("fedavg", timeout=timeout).said == ()


def test_a_step_that_raises_a_timeout_error_has_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(TimeoutError(SECRET), monkeypatch)
    record = place.run("fedavg")
    said = "silo-1 was lost in round 1 of training: TimeoutError in step train: see its log"
    assert said in record.said


SECRET = "patient 4711 has a row nobody may see"


def breaking(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(silo: fedavg.Silo) -> None:
        if silo.name == "silo-1":
            raise error

    before_training(broken, monkeypatch)


@pytest.mark.parametrize("error", [ValueError(SECRET), WireError(SECRET), SystemExit(SECRET)])
def test_an_error_at_a_silo_leaves_without_its_text(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    breaking(error, monkeypatch)
    record = place.run("fedavg")
    assert SECRET not in json.dumps(record.to_dict())
    assert any(type(error).__name__ in sentence for sentence in record.said)
    assert any(SECRET in line for line in place.told["silo-1"])  # it stays where it belongs


def test_a_full_disk_at_a_silo_stops_the_run_and_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name.startswith(".checkpoint-000000002") and "silo-1" in str(self):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(StorageError, match="silo-1 cannot save its state: its disk is full"):
            place.run("fedavg", checkpoint_every=1)
    place.start(*NAMES)
    place.run("fedavg", checkpoint_every=1, resume=True)
    assert same_weights(place.weights, in_process("fedavg").weights)


def test_a_silo_with_an_older_state_goes_on_from_it(place: Place) -> None:
    """It was lost in round 2; the others went on, the run was stopped, and it is back."""
    dead = dead_after(place.line("silo-1"), 2, TimeoutError())

    def deaf(ticket: int, where: str, *rest: Any) -> Mapping[str, Any]:
        return dead(ticket, where, *rest)

    watch = Watch()
    watch.on_round = lambda moment: setattr(watch, "stop_requested", moment.round >= 2)
    with pytest.raises(Interrupted):
        place.run("fedavg", {**place.lines, "silo-1": deaf}, watch, checkpoint_every=1)
    place.start(*NAMES)
    record = place.run("fedavg", checkpoint_every=1, resume=True)
    assert "silo-1 goes on from its state after round 1" in record.said
    rows = {(entry.round, entry.silo) for entry in methods_rows(place.ledger)}
    assert (3, "silo-1") in rows


def test_silos_that_saved_more_than_the_server_go_back_to_its_round(place: Place) -> None:
    """The server was stopped after its silos had saved round 2, and before it did."""
    watch = Watch()
    file = place.folder("server") / "checkpoint.safetensors"
    after_round_1: list[bytes] = []

    def stop_in_round_2(moment: Moment) -> None:
        if moment.round == 2:
            after_round_1.append(file.read_bytes())
            watch.stop_requested = True

    watch.on_round = stop_in_round_2
    with pytest.raises(Interrupted):
        place.run("fedavg", watch=watch, checkpoint_every=1)
    file.write_bytes(after_round_1[0])
    place.start(*NAMES)
    assert place.run("fedavg", resume=True).said == ()
    assert same_weights(place.weights, in_process("fedavg").weights)


def test_a_silo_without_its_state_does_not_pretend(place: Place) -> None:
    with pytest.raises(Interrupted):
        place.run("fedavg", watch=stops_at_once())
    for path in place.folder("silo-1").glob("checkpoint-*"):
        path.unlink()
    place.start(*NAMES)
    record = place.run("fedavg", resume=True)
    assert any("silo-1 was lost" in s and "no saved state" in s for s in record.said)


def test_another_graph_is_another_silo(place: Place) -> None:
    with pytest.raises(Interrupted):
        place.run("fedavg", watch=stops_at_once())
    silo = PARTITION.silos["silo-1"]
    changed = {**PARTITION.silos, "silo-1": rebuilt(silo, x=silo.x + 1)}
    place.silos = Partition(changed, "by hand", None)
    place.start(*NAMES)
    record = place.run("fedavg", resume=True)
    assert any("silo-1 was lost" in sentence for sentence in record.said)


# The handshake


def odd_silo(**changes: Any) -> Partition:
    """silo-1's graph differs; a `Partition` would refuse it, as somebody sees all silos there."""
    partition = Partition(dict(PARTITION.silos), "by hand", None)
    partition.silos["silo-1"] = rebuilt(PARTITION.silos["silo-1"], **changes)
    return partition


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": torch.zeros(20, 5)}, "numbers of features, 6 and 5"),
        ({"label_names": ("a", "b", "c")}, r"classes, .* and \[\"a\", \"b\", \"c\"\]"),
    ],
)
def test_silos_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    place = Place(tmp_path, odd_silo(**changes))
    with pytest.raises(FederationError, match=f"silos silo-0 and silo-1 do not fit.*{says}"):
        place.run("fedavg")
    sent = {
        entry.message for endpoint in place.endpoints.values() for entry in endpoint.ledger.entries
    }
    assert sent == {"endpoint.Plan", "endpoint.Introduction"}
    place.close()


def test_names_of_features_are_compared_without_telling_them(tmp_path: Path) -> None:
    names = [tuple(f"{letter}{n}" for n in range(6)) for letter in "ab"]
    partition = odd_silo(feature_names=names[0])
    partition.silos["silo-2"] = rebuilt(PARTITION.silos["silo-2"], feature_names=names[1])
    place = Place(tmp_path, partition)
    with pytest.raises(FederationError, match=r"silo-1 and silo-2 .* name their 6 features") as why:
        place.run("fedavg")
    assert "a0" not in str(why.value)
    place.close()


@pytest.mark.parametrize("what", ["fedmend", "torch"])
def test_other_versions_than_the_servers_are_named(what: str) -> None:
    own = {"fedmend": __version__, "torch": str(torch.__version__)}
    same = introduction(**own)
    flare.check_versions({"silo-0": same})
    other = introduction(**{**own, what: "0.0.9\x1b[2J"})
    with pytest.raises(FederationError) as why:
        flare.check_versions({"silo-0": same, "silo-1": other, "silo-2": other})
    assert str(why.value) == (
        f"all parties need the same version of {what}: the server has {own[what]}, "
        "silo-1 has 0.0.9?[2J, silo-2 has 0.0.9?[2J"
    )


def test_silos_that_agree_with_each_other_but_not_with_the_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "__version__", "0.0.9")
    with pytest.raises(FederationError, match=r"the server has .*, silo-0 has 0\.0\.9, silo-1"):
        place.run("fedavg")
    sent = {
        entry.message for endpoint in place.endpoints.values() for entry in endpoint.ledger.entries
    }
    assert sent == {"endpoint.Plan", "endpoint.Introduction"}


# Edges between silos


def border_row(place: Place, name: str, row: tuple[Any, str, Any]) -> None:
    """One row more in a silo's border."""
    place.border(name, tuple(NAMES))
    file = place.graph(name) / "border.parquet"
    columns = {key: list(each) for key, each in pq.read_table(file).to_pydict().items()}
    for column, value in zip(columns.values(), row, strict=True):
        column.append(value)
    pq.write_table(pa.table(columns), file)


def refused_at_the_handshake(place: Place, says: str) -> str:
    with pytest.raises(FederationError, match=says) as why:
        place.run("hifgl")
    sent = {
        entry.message for endpoint in place.endpoints.values() for entry in endpoint.ledger.entries
    }
    assert sent == {"endpoint.Plan", "endpoint.Introduction"}
    assert "\n" not in str(why.value)
    return str(why.value)


def test_a_silo_without_a_border_says_what_to_do(place: Place) -> None:
    place.border("silo-1", tuple(NAMES))
    (place.graph("silo-1") / "border.parquet").unlink()
    refused_at_the_handshake(place, "cannot start: silo-1: .* hifgl needs .* a table border")


def node_of(name: str) -> int:
    return int(PARTITION.silos[name].node_ids[0])


@pytest.mark.parametrize(
    "row",
    [(4711, "silo-0", node_of("silo-0")), (node_of("silo-1"), "silo-7", 4711)],
    ids=["a node it does not have", "a silo that takes no part"],
)
def test_a_border_that_cannot_be_is_its_silos_affair(
    place: Place, row: tuple[Any, str, Any]
) -> None:
    border_row(place, "silo-1", row)
    said = refused_at_the_handshake(place, "cannot start: silo-1: .* table border names a node")
    assert "4711" not in said
    assert "silo-7" not in said
    assert any("border.parquet: row" in line for line in place.told["silo-1"])


@pytest.mark.parametrize("remote", [4711, node_of("silo-0")], ids=["no node", "another edge"])
def test_two_silos_that_list_different_edges_are_named(place: Place, remote: int) -> None:
    border_row(place, "silo-1", (node_of("silo-1"), "silo-0", remote))
    said = refused_at_the_handshake(place, "silos silo-0 and silo-1 list different edges")
    assert "4711" not in said


def test_the_same_edges_in_another_order_are_the_same(place: Place) -> None:
    place.border("silo-1", tuple(NAMES))
    file = place.graph("silo-1") / "border.parquet"
    table = pq.read_table(file)
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), file)
    place.run("hifgl")
    assert same_weights(place.weights, in_process("hifgl").weights)


def test_another_border_is_another_silo(place: Place) -> None:
    """Both ends of an edge list one more: they agree, but not with what they had saved."""
    with pytest.raises(Interrupted):
        place.run("hifgl", watch=stops_at_once())
    border_row(place, "silo-0", (node_of("silo-0"), "silo-1", node_of("silo-1")))
    border_row(place, "silo-1", (node_of("silo-1"), "silo-0", node_of("silo-0")))
    place.start(*NAMES)
    record = place.run("hifgl", resume=True)
    for name in ("silo-0", "silo-1"):
        assert any(f"{name} was lost" in sentence for sentence in record.said)


@pytest.mark.parametrize(
    "borders", ["nothing", "[]", '"hash"', "[" * 100_000], ids=["text", "list", "a string", "deep"]
)
def test_hashes_that_are_none_stop_the_run(borders: str) -> None:
    with pytest.raises(WireError, match="silo-1 sent something else than hashes"):
        flare.check_borders({"silo-1": introduction(borders=borders)})


def introduction(**changes: Any) -> endpoint_module.Introduction:
    values = {"features": 6, "feature_names": "", "label_names": "[]", "fedmend": "", "torch": ""}
    return endpoint_module.Introduction(**{**values, "borders": "", **changes})


# The final test


@pytest.mark.parametrize(
    "counts",
    [
        torch.zeros(3, 0, dtype=torch.int64),
        torch.zeros(3, 3, dtype=torch.int64),
        torch.tensor([[2, 0, 0], [2, 1, 1], [2, 1, 1]]).double(),
        torch.tensor([[3, 0, 0], [2, 1, 1], [3, 1, 0]]),
        torch.tensor([[0, 0, 0], [2, 3, -1], [2, 1, 1]]),
        torch.tensor([[0, 0, 0], [2, 1, 1], [2, 1, 2]]),
    ],
    ids=["none", "no nodes", "floats", "more right than there", "negative", "another sum"],
)
def test_counts_that_cannot_be_stop_the_run(counts: torch.Tensor) -> None:
    """As the engine looks at what a silo says of its test nodes: four of them, of three classes."""
    good = {"macro_f1": torch.tensor([[1, 0, 1], [2, 1, 1], [2, 1, 1]])}
    assert checked("silo-1", good, 3, 4) == good
    with pytest.raises(FederationError, match="silo-1 sent"):
        checked("silo-1", {"macro_f1": counts}, 3, 4)


def test_a_privacy_account_says_who_is_not_in_it(place: Place) -> None:
    dead = dead_after(place.line("silo-1"), 2, TimeoutError())

    def deaf(ticket: int, where: str, *rest: Any) -> Mapping[str, Any]:
        if where.startswith("evaluation"):
            raise TimeoutError
        return dead(ticket, where, *rest)

    account = place.run("fedggr", {**place.lines, "silo-1": deaf}).privacy[0]
    assert account.details["without"] == ["silo-1"]
    assert account.sentence.endswith("lost by then: silo-1.")
    nodes = sum(graph.num_nodes for name, graph in PARTITION.silos.items() if name != "silo-1")
    assert f"each of the {nodes} nodes" in account.sentence


@pytest.mark.parametrize(
    "facts", [{}, {"x": 1.0}, {"3": float("nan")}, {"3": float("inf")}, {"-1": 2.0}, {"-7": 1e300}]
)
def test_counts_of_a_lying_silo_do_not_lose_a_finished_run(facts: dict[str, float]) -> None:
    method = METHODS["feddep"]
    config = method.settings_type()
    told = {"silo-0": facts}
    (account,) = privacy_accounts(method, config, told, ["silo-0"])
    assert "There is no" in account.sentence


# Policies


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Policy(refuse_methods=("fedavg",)), "silo-1 takes no part: its policy takes no part in"),
        (Policy(allow_methods=("local",)), "its policy takes no part in fedavg"),
        (Policy(refuse_kinds=("weights",)), "its policy lets no weights leave, which fedavg sends"),
    ],
)
def test_a_policy_stops_the_run_before_anything_is_sent(
    place: Place, policy: Policy, says: str
) -> None:
    place.policies["silo-1"] = policy
    place.start("silo-1")
    with pytest.raises(RefusedError, match=says):
        place.run("fedavg")
    assert place.endpoints["silo-1"].ledger.total("up") == 0
    kinds = {
        entry.kind
        for endpoint in place.endpoints.values()
        for entry in endpoint.ledger.entries
        if entry.direction == "up"
    }
    assert kinds <= {"control", "framing"}


@pytest.mark.parametrize("name", ["unheard-of", "fedavg\nfedavg", "os:system", "FILE", "../x.py"])
def test_a_method_that_a_silo_does_not_have_is_refused_by_name(
    place: Place, tmp_path: Path, name: str
) -> None:
    """Whatever a plan names: nothing is imported, nothing is read, and one line says so."""
    file = tmp_path / "evil.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    plan = Plan(RUN, str(file) if name == "FILE" else name, "{}", 0, 1, False, json.dumps(NAMES))
    request = wire.encode(plan).data
    step = f"{endpoint_module.ENDPOINT}introduce"
    answer = place.endpoints["silo-1"].perform(1, "handshake/1", step, request, 60.0)
    assert (answer["state"], answer["error"]) == ("failed", "RefusedError")
    assert answer["sentence"].startswith("it has no method ")
    assert "install it at the silo" in answer["sentence"]
    assert "\n" not in answer["sentence"]
    assert "fedsage" not in answer["sentence"]  # what else is here is nobody's business
    assert not (tmp_path / "ran").exists()


def test_a_refused_method_is_not_even_looked_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(name: str) -> None:
        raise AssertionError(f"looked up {name}")

    monkeypatch.setattr(endpoint_module, "find", never)
    place.policies["silo-1"] = Policy(allow_methods=("fedavg",))
    place.start("silo-1")
    plan = Plan(RUN, "anything", "{}", 0, 1, False, json.dumps(NAMES))
    with pytest.raises(RefusedError, match="its policy takes no part in anything"):
        place.endpoints["silo-1"].introduce(plan)


def test_every_single_reply_is_compared_with_the_policy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the check before the run had a hole, the reply itself is held back."""
    place.policies["silo-1"] = Policy(refuse_kinds=("weights",))
    place.start("silo-1")
    monkeypatch.setattr(endpoint_module, "steps_of", hidden(steps_of))
    with pytest.raises(RefusedError, match="lets no weights leave, which train would send"):
        place.run("fedavg")
    assert not [
        entry
        for entry in place.endpoints["silo-1"].ledger.entries
        if entry.kind == "weights" and entry.direction == "up"
    ]


def hidden(real: Callable[[type[Any]], dict[str, Any]]) -> Callable[[type[Any]], Any]:
    calls: dict[int, int] = {}

    def steps(silo_type: type[Any]) -> dict[str, Any]:
        thread = threading.get_ident()
        calls[thread] = calls.get(thread, 0) + 1
        return {} if calls[thread] == 1 else real(silo_type)  # the first is the check before

    return steps


def test_sizes_are_bounded_on_both_sides(place: Place) -> None:
    place.policies["silo-1"] = Policy(largest_message=1200)
    place.start("silo-1")
    with pytest.raises(RefusedError, match="above its policy's largest_message of 1200"):
        place.run("fedavg", settings={"hidden": 64})
    place.policies.clear()
    place.start("silo-1")
    with pytest.raises(WireError, match=r"sent a message of \d+ bytes, above the limit of 2000"):
        place.run("fedavg", largest_message=2000, settings={"hidden": 64})


def test_the_limit_of_a_reply_is_exact() -> None:
    with flare.Flare[fedavg.Silo]({}, ["a"], 0, largest_message=10) as engine:
        assert engine._opened("a", "train", {"state": "done", "reply": b"x" * 10}) == b"x" * 10
        with pytest.raises(WireError, match="a sent a message of 11 bytes, above the limit of 10"):
            engine._opened("a", "train", {"state": "done", "reply": b"x" * 11})


def test_every_method_says_which_kinds_it_sends() -> None:
    assert set(steps_of(fedavg.Silo)) == {"train", "validate"}
    assert kinds_of(fedavg.Silo.train) == {"weights", "counts", "metrics"}
    for method in METHODS.values():
        assert steps_of(method.silo_type), method.name


# Hostile bytes


@contextmanager
def introduced(place: Place, name: str = "silo-0") -> Iterator[SiloEndpoint]:
    endpoint = place.endpoints[name]
    config = json.dumps(make_plan("fedavg", SETTINGS, NAMES, run=RUN)["settings"])
    plan = Plan(
        run=RUN,
        method="fedavg",
        settings=config,
        seed=0,
        threads=1,
        resumed=False,
        silos=json.dumps(NAMES),
    )
    for ticket, (step, given) in enumerate(
        (("endpoint.introduce", plan), ("endpoint.prepare", Nothing())), 1
    ):
        answer = endpoint.perform(ticket, "handshake/0", step, wire.encode(given).data, 30.0)
        assert answer["state"] == "done", place.told[name]
    yield endpoint


@pytest.mark.parametrize(
    ("step", "data"),
    [
        ("__init__", wire.encode(Nothing()).data),
        ("state", wire.encode(Nothing()).data),
        ("own_weights", wire.encode(Nothing()).data),
        ("local", wire.encode(Nothing()).data),
        ("no_such_step", wire.encode(Nothing()).data),
        ("prepare", wire.encode(Nothing()).data),
        ("endpoint.train", wire.encode(Nothing()).data),
        ("endpoint.perform", wire.encode(Nothing()).data),
        ("perform", wire.encode(Nothing()).data),
        ("_run", wire.encode(Nothing()).data),
        ("train", wire.encode(Nothing()).data),
        ("train", b""),
        ("train", b"\x80\x04N."),
        ("train", b"\xff" * 100),
    ],
)
def test_an_endpoint_performs_declared_steps_on_declared_messages_only(
    place: Place, step: str, data: bytes
) -> None:
    with introduced(place) as endpoint:
        before = endpoint.ledger.total("up")
        answer = endpoint.perform(9, "training/1", step, data, 30.0)
    assert answer["state"] == "failed"
    assert answer["error"] == "WireError"
    assert endpoint.ledger.total("up") == before


def test_an_endpoint_that_was_not_introduced_does_nothing(place: Place) -> None:
    endpoint = place.endpoints["silo-0"]
    for step in ("endpoint.prepare", "endpoint.keep", "endpoint.score", "train"):
        given: Any = {
            "endpoint.keep": endpoint_module.Place("training", 1),
            "endpoint.score": endpoint_module.FinalModel({}, False),
            "train": fedavg.Weights({}),
        }.get(step, Nothing())
        ticket = len(step) + 100
        answer = endpoint.perform(ticket, "training/1", step, wire.encode(given).data, 30.0)
        assert answer["state"] == "failed", step


def test_a_ticket_is_performed_once(place: Place) -> None:
    with introduced(place) as endpoint:
        weights = {key: value * 0 for key, value in in_process("fedavg").model.state_dict().items()}
        request = wire.encode(fedavg.Weights(weights)).data
        first = endpoint.perform(7, "training/1", "train", request, 30.0)
        again = endpoint.perform(7, "training/1", "train", request, 30.0)
        asked = endpoint.perform(7, "training/1", "", b"", 30.0)
    assert first["state"] == "done"
    assert first == again == asked
    assert endpoint.perform(8, "training/1", "", b"", 0.0)["state"] == "failed"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"state": "done"},
        {"state": "done", "reply": "text"},
        {"state": "done", "reply": b"junk"},
        {"state": 7},
        {"state": "done", "reply": wire.encode(fedavg.Validation(torch.tensor([1, 2]))).data},
    ],
)
def test_an_answer_that_is_none_stops_the_run_and_names_the_silo(
    place: Place, answer: Mapping[str, Any]
) -> None:
    inner = place.line("silo-1")

    def hostile(ticket: int, where: str, step: str, *rest: Any) -> Mapping[str, Any]:
        return answer if step == "train" else inner(ticket, where, step, *rest)

    with pytest.raises(WireError, match=r"silo-1 (sent|answered)"):
        place.run("fedavg", {**place.lines, "silo-1": hostile})


def test_a_failure_cannot_smuggle_a_page_of_text(place: Place) -> None:
    inner = place.line("silo-1")

    def chatty(ticket: int, where: str, step: str, *rest: Any) -> Mapping[str, Any]:
        if step == "train":
            words = "\x1b[2J\u202e\x9b" + "x\n" * 9999
            return {"state": "failed", "error": "E\x07" * 9999, "sentence": words}
        return inner(ticket, where, step, *rest)

    record = place.run("fedavg", {**place.lines, "silo-1": chatty})
    said = next(sentence for sentence in record.said if "silo-1" in sentence)
    assert len(said) < 500
    assert said.isprintable()


def test_a_silos_classes_are_no_escape_sequences() -> None:
    odd = introduction(label_names='["\x1b[2J"]')
    with pytest.raises(FederationError) as why:
        flare.agreed_schema({"silo-0": introduction(), "silo-1": odd})
    assert str(why.value).isprintable()


def test_a_server_cannot_write_on_a_silos_terminal_as_it_likes(place: Place) -> None:
    nothing = wire.encode(Nothing()).data
    with introduced(place) as endpoint:
        weights = in_process("fedavg").weights or {}
        request = wire.encode(fedavg.Weights(weights)).data
        endpoint.perform(8, "\x1b]0;title\x07" + "x" * 5000 + "/1", "train", request, 30.0)
        endpoint.perform(9, "training/1", "\x1b[2J" + "x" * 5000, nothing, 30.0)
    told = place.told["silo-0"]
    assert any(line.startswith("?]0;title?xxx") and "round 1" in line for line in told)
    assert all(line.isprintable() and len(line) <= 1000 for line in told)
    assert {len(entry.phase) for entry in endpoint.ledger.entries} == {len("handshake"), 80}


def test_bad_data_at_a_silo_is_that_silos_error(place: Place) -> None:
    endpoint = place.endpoints["silo-1"]

    def unreadable() -> Graph:
        raise SettingsError(SECRET)

    endpoint._graph_of = unreadable
    with pytest.raises(FederationError, match="the run cannot start: silo-1") as why:
        place.run("fedavg")
    assert SECRET not in str(why.value)
