"""`train`: one method on one federation with one seed, from silos to a `Result`."""

from __future__ import annotations

import hashlib
import json
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmend import methods
from fedmend.runs import node_memory
from fedmend.config import MOST_THREADS, make
from fedmend.data.partition import Partition
from fedmend.engines.base import EngineBase, Watch
from fedmend.engines.computing import computing_with
from fedmend.engines.inprocess import Fault, InProcess
from fedmend.errors import DataError, SettingsError, UnknownNameError
from fedmend.evaluation.evaluate import Scores, check_mode, evaluate, model_with, predict
from fedmend.evaluation.generated import Generated, compare_generated
from fedmend.federation import Schema, SiloBase
from fedmend.files import plain, typed
from fedmend.graph import Graph, feature_arrays, hash_of_names, is_sparse
from fedmend.methods import Method
from fedmend.models.backbones import Backbone, ModelShape
from fedmend.runs.node_memory import NodeMemory
from fedmend.privacy.ledger import Kind, Ledger
from fedmend.privacy.account import Account
from fedmend.runs import record as records
from fedmend.runs.record import Data, Engine, Figures, Generator, Record, Split

POOLED = "everyone"
"""The one silo of a method that runs on the whole graph."""


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of every node of a graph, and the most probable class of each."""

    node_ids: Any
    label_names: tuple[str, ...]
    probabilities: Tensor

    @property
    def labels(self) -> list[str]:
        return [self.label_names[index] for index in self.probabilities.argmax(1).tolist()]


@dataclass(frozen=True)
class Result:
    """What a run gives: figures, the ledger, the model, and the record of how it came about."""

    method: Method
    shape: ModelShape
    label_names: tuple[str, ...]
    weights: dict[str, Tensor] | None
    own: dict[str, dict[str, Tensor]]
    scores: Scores | None
    ledger: Ledger
    history: dict[str, dict[int, dict[str, float]]]
    record: Record = field(repr=False)
    memory: NodeMemory | None = field(default=None, repr=False)

    @property
    def accuracy(self) -> float:
        """Test accuracy in the run's evaluation mode."""
        return self._scored().accuracy

    @property
    def macro_f1(self) -> float:
        """Test macro-F1 in the run's evaluation mode."""
        return self._scored().macro_f1

    def _scored(self) -> Scores:
        if self.scores is None:
            raise DataError("nothing was tested: no silo has test nodes")
        return self.scores

    @property
    def seconds(self) -> float:
        return self.record.measured.seconds

    @property
    def model(self) -> Backbone:
        """The shared model; for methods with a model per silo use `model_of(silo)`."""
        return self.model_of(None)

    def model_of(self, silo: str | None) -> Backbone:
        """The model that predicts for `silo`: the shared one, or the silo's own."""
        return choose_model(self.record, self.weights, self.own.__getitem__, silo)

    def predict(self, graph: Graph, silo: str | None = None) -> Prediction:
        """Predict every node of a graph, seen in training or not.

        silo: whose model predicts, where there is one per silo; and whose nodes the graph's are,
            where nodes bring something along (FedGGR): those with ids of before bring what they
            got in training, new ones get theirs now.
        """
        model = self.model_of(silo)
        if self.memory is None or silo is None:
            return predict_with(model, self.label_names, graph, self.record.feature_names_hash)
        return predict_remembering(self.memory, self.record, model, silo, graph)

    def save(self, folder: str | Path) -> Path:
        """Write the run's folder (see `fedmend.runs.record`)."""
        path = Path(folder)
        node_memory.write(path, self.memory)
        records.write_run(path, self.record, self.weights, self.own, self.ledger)
        return path


def choose_model(
    record: Record,
    weights: Mapping[str, Tensor] | None,
    own_weights: Callable[[str], Mapping[str, Tensor]],
    silo: str | None,
) -> Backbone:
    """The shared model, or the named silo's own where the method has one per silo."""
    shape, method, own = record.model, record.method, record.silos_with_own_model
    if weights is not None:
        return model_with(shape, weights)
    if silo is None:
        raise SettingsError(
            f"{method} ends with a model per silo: name one (--silo NAME; {', '.join(own)})"
        )
    if silo not in own:
        raise UnknownNameError("silo", silo, own)
    return model_with(shape, own_weights(silo))


def predict_with(
    model: Backbone, label_names: tuple[str, ...], graph: Graph, names: str = ""
) -> Prediction:
    """Predict with a model, after checking that the graph fits it.

    names: a hash of the features' names that it was trained on; "" where they had none.
    """
    if graph.num_features != model.shape.num_features:
        raise DataError(
            f"the graph has {graph.num_features} features, the model was trained on "
            f"{model.shape.num_features}"
        )
    if names and graph.feature_names is not None and hash_of_names(graph.feature_names) != names:
        raise DataError(
            "the graph's features have other names, or another order, than those the model was "
            "trained on: give its columns the same names in the same order"
        )
    return Prediction(graph.node_ids, label_names, predict(model, graph))


def predict_remembering(
    memory: NodeMemory, record: Record, model: Backbone, silo: str, graph: Graph
) -> Prediction:
    """Predict a silo's graph as it is now, with what the run remembers of its nodes."""
    chosen, settings = choose(record.method, record.settings)
    if silo not in memory.ids:
        raise UnknownNameError("silo", silo, memory.ids)
    names = record.feature_names_hash
    without = predict_with(model, record.label_names, graph, names)  # checks that the graph fits
    if chosen.predict_silo is None:
        return without
    found = chosen.predict_silo(memory, settings, record.seed, model, silo, graph)
    return replace(without, probabilities=found)


def train(
    method: str,
    silos: Partition,
    *,
    seed: int = 0,
    evaluation: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 0,
    threads: int = 1,
    checkpoint_every: int = 10,
    watch: Watch | None = None,
    faults: Iterable[Fault] = (),
    timeout: float | None = None,
    dataset: str | None = None,
    source: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train `method` on `silos` and test the result.

    Args:
        method: a name from `fedmend methods`.
        silos: a partition from `split`, `read_silos` or made by hand.
        seed: of everything random in training; the split has its own.
        evaluation: `global-graph`, `own-subgraph` or `cross-edges`; by default the method's own
            (fedggr: `own-subgraph`), else the first where the whole graph is known.
        out: a folder for record, weights, ledger and checkpoints.
        resume: go on from the checkpoint in `out`, if there is one, to the identical result.
        workers: silos trained side by side (0 = one per core); does not change the result.
        threads: torch threads of each silo.
        checkpoint_every: rounds between checkpoints.
        watch: progress callbacks.
        faults, timeout: losses and delays to inject.
        dataset: the data's name, for the record.
        source: how the silos were made, for the record.
        settings: of the method: `fedmend methods NAME` lists them.
    """
    started = time.perf_counter()
    chosen, config = choose(method, settings)
    if resume and out is None:
        raise SettingsError("resume needs the folder of the run to go on with: give out=...")
    if checkpoint_every < 1:
        raise SettingsError(f"checkpoint_every={checkpoint_every} is not allowed: at least 1")
    if workers < 0 or not 1 <= threads <= MOST_THREADS:
        raise SettingsError(
            f"workers={workers}, threads={threads} is not allowed: workers from 0 (one per core), "
            f"threads from 1 to {MOST_THREADS}"
        )
    seed = operator.index(seed)  # numpy's whole numbers too
    mode = evaluation or default_mode(silos, chosen)
    check_mode(mode, silos, predict_together=chosen.needs_border)
    graphs = _graphs(chosen, silos, config)
    any_graph = next(iter(graphs.values()))
    named = next((g.feature_names for g in silos.silos.values() if g.feature_names), None)
    schema = Schema(any_graph.num_features, any_graph.label_names, hash_of_names(named))
    if config.min_silos > len(graphs):
        raise SettingsError(f"min_silos={config.min_silos}, but there are {len(graphs)} silos")
    what = identity(chosen, config, silos, seed, mode)
    # Building too with fixed threads: waking more of them for small matrices only costs time.
    extra = _extra_knowledge(chosen, silos)
    with computing_with(threads):
        built = [
            chosen.silo_type(name, graph, config, seed, **extra.get(name, {}))
            for name, graph in sorted(graphs.items())
        ]
    folder = None if out is None else Path(out)
    engine = InProcess(
        built,
        schema,
        seed,
        workers=workers,
        threads=threads,
        faults=faults,
        timeout=timeout,
        watch=watch,
        checkpoint_file=None if folder is None else folder / records.CHECKPOINT,
        checkpoint_every=checkpoint_every,
        # Threads too: another number of them may round differently.
        fingerprint=fingerprint({**what, "threads": threads}, graphs, extra),
        resume=resume,
    )
    set_up = time.perf_counter() - started
    with engine:
        weights = chosen.server(engine, config)
        own = (
            {name: each for name, silo in engine.silos.items() if (each := silo.own_weights())}
            if weights is None
            else {}
        )
        given = {name: silo.probabilities() for name, silo in engine.silos.items()}
        together = {name: each for name, each in given.items() if each is not None}
        shape = config.shape(schema)
        testing = time.perf_counter()
        tested = [silos.whole] if mode == "global-graph" else list(silos.silos.values())
        has_tests = any(bool(g.test_mask.any()) for g in tested if g is not None)
        mended = {
            name: brought
            for name, silo in engine.silos.items()
            if (brought := silo.mended_embeddings()) is not None
        }
        own_graphs = {
            name: mine
            for name, silo in engine.silos.items()
            if (mine := silo.mended_graph()) is not None
        }
        if not chosen.silo_type.mended_anywhere and mode != "own-subgraph":
            mended = {}
        scores = (
            evaluate(shape, weights, own, silos, mode, mended, together or None, own_graphs)
            if has_tests
            else None
        )
    # Nothing travels when everything is in one place: all raw data was pooled instead.
    ledger = Ledger() if chosen.pooled else engine.ledger
    if chosen.sees_beyond:
        count_surroundings(ledger, silos, graphs)
    now = time.perf_counter()
    facts = {name: chosen.privacy_facts(config, graph) for name, graph in graphs.items()}
    record = make_record(
        what,
        engine,
        ledger,
        dataset=dataset,
        source=None if source is None else dict(source),
        data=Data(**vars(silos.statistics())),
        about=Engine(name="in-process", threads=threads),
        shape=shape,
        shared=weights is not None,
        own=own,
        pooled=chosen.pooled,
        scores=scores,
        privacy=chosen.privacy(config, facts),
        generator=_generated(engine.silos, silos),
        inside=_inside_silos(engine.silos),
        seconds=now - started,
        phases={"set-up": set_up, **engine.timings.phases, "evaluation": now - testing},
        workers=engine.workers,
    )
    memory = _memory(engine, graphs)
    result = Result(
        chosen,
        shape,
        schema.label_names,
        weights,
        own,
        scores,
        ledger,
        engine.history,
        record,
        memory,
    )
    if folder is not None:
        result.save(folder)
    return result


def choose(method: str, settings: Mapping[str, Any]) -> tuple[Method, Any]:
    """The method of this name and its settings, checked."""
    chosen = methods.find(method)
    return chosen, make(chosen.settings_type, _with_fixed(chosen, settings))


def make_record(
    what: Mapping[str, Any],
    engine: EngineBase[Any],
    ledger: Ledger,
    *,
    data: Data,
    about: Engine,
    shape: ModelShape,
    shared: bool,
    own: Iterable[str],
    scores: Scores | None,
    privacy: Iterable[Account],
    seconds: float,
    phases: Mapping[str, float],
    workers: int | None = None,
    inside: Mapping[str, Mapping[str, int]] | None = None,
    **others: Any,
) -> Record:
    """The record of a finished run, whichever engine it ran on.

    what: the run's identity; data: what is known of the silos; about: the engine; shared: whether
    there is a shared model; own: silos with a model of their own; privacy: accounts of the method,
    to which the engine's are added; phases: seconds of each; others: further fields.
    """
    return Record(
        **what,
        data=data,
        engine=about,
        versions=records.versions(),
        model=shape,
        label_names=engine.schema.label_names,
        feature_names_hash=engine.schema.feature_names_hash,
        shared_model=shared,
        silos_with_own_model=tuple(sorted(own)),
        privacy=(*privacy, *engine.accounts),
        result=scores,
        rounds=engine.history,
        said=tuple(engine.sentences),
        bytes=records.sent(ledger, inside),
        measured=records.measured_now(
            seconds=seconds, phases=phases, steps=engine.timings.steps, workers=workers
        ),
        **others,
    )


def _memory(engine: InProcess[Any], graphs: Mapping[str, Graph]) -> NodeMemory | None:
    if not engine.remembered:
        return None
    silos = {name: silo.remembered() for name, silo in engine.silos.items()}
    ids = {name: graph.node_ids for name, graph in sorted(graphs.items())}
    return NodeMemory(engine.remembered, silos, ids)


def _inside_silos(silos: Mapping[str, SiloBase]) -> dict[str, dict[str, int]] | None:
    """Bytes between silos and their devices, where a method tells the two apart."""
    inside = {name: each for name, silo in silos.items() if (each := silo.inside()) is not None}
    counted = {
        name: {
            f"{direction} {message} {kind}": size
            for (direction, message, kind), size in each.by("direction", "message", "kind").items()
        }
        for name, each in inside.items()
    }
    return counted or None


def _with_fixed(method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings and those the method's name implies, which must not be contradicted."""
    for key, value in method.fixed.items():
        if key in given and given[key] != value:
            raise SettingsError(
                f"{method.name} means {key}={value}; for {key}={given[key]} use another method"
            )
    return {**given, **method.fixed}


def configure(method: str, given: Mapping[str, Any]) -> Any:
    """The settings object of a method's run; an error if a setting is unknown or not allowed."""
    return choose(method, given)[1]


def _graphs(method: Method, silos: Partition, settings: Any) -> dict[str, Graph]:
    for name in silos.silos:
        if not records.is_file_name(name):
            raise SettingsError(
                f"a silo cannot be called {name!r}: its name becomes a file's, so at most 200 "
                "bytes of printable characters, no / or \\, and no dot in front"
            )
    if not method.pooled and not method.sees_beyond:
        return dict(silos.silos)
    if silos.whole is None:
        raise DataError(
            f"method {method.name!r} needs the whole graph in one place, which these silos do not "
            "come with"
        )
    if method.sees_beyond:
        return {name: silos.with_surroundings(name, settings.hops) for name in silos.names}
    return {POOLED: silos.whole}


def _generated(built: Mapping[str, SiloBase], silos: Partition) -> Generator | None:
    """How the generated neighbours compare with the true ones, where both are known."""
    found = {
        name: Generated(*made)
        for name, silo in sorted(built.items())
        if (made := silo.generated_neighbours()) is not None
    }
    if not found or silos.whole is None:
        return None
    compared: Generator = typed(Generator, compare_generated(found, silos))
    return compared


def count_surroundings(ledger: Ledger, silos: Partition, graphs: Mapping[str, Graph]) -> None:
    """Count what a silo was shown of other silos' nodes as if it had been sent."""
    for name, graph in graphs.items():
        own = silos.silos[name]
        # Feature values and pairs of node indices, of what is not the silo's own.
        values = graph.x.values()[own.x.values().numel() :] if is_sparse(graph.x) else graph.x
        values = values if is_sparse(graph.x) else values[own.num_nodes :]
        size = values.nbytes + 16 * (graph.num_edges - own.num_edges)
        ledger.count("set-up", 0, name, "down", "oracle.Surroundings", {Kind.RAW: size})


def _extra_knowledge(method: Method, silos: Partition) -> dict[str, dict[str, Any]]:
    """What silos of this method get beside their graph, by silo."""
    if not method.needs_border:
        return {}
    try:
        borders = silos.borders
    except DataError as error:
        raise DataError(f"method {method.name!r} needs the silos' borders: {error}") from error
    return {name: {"border": border} for name, border in borders.items()}


def default_mode(silos: Partition, method: Method) -> str:
    """The method's own, else `global-graph` where the whole graph is known."""
    if method.evaluation is not None:
        return method.evaluation
    return "global-graph" if silos.whole is not None else "own-subgraph"


def identity(
    method: Method, settings: Any, silos: Partition | None, seed: int, mode: str
) -> dict[str, Any]:
    """What a run is: the part of its record that decides everything else in it.

    Of silos that nobody sees together (None), the split has no hash.
    """
    split = Split(how="deployed", seed=None, hash=None)
    if silos is not None:
        split = Split(how=silos.how, seed=silos.seed, hash=silos.hash)
    return {
        "method": method.name,
        "settings": asdict(settings),
        "seed": seed,
        "evaluation": mode,
        "split": split,
        "content_hash": None if silos is None else silos.content_hash,
    }


def is_same_run(
    run: Figures,
    method: str,
    settings: Mapping[str, Any],
    silos: Partition,
    seed: int,
    evaluation: str | None,
) -> bool:
    """Whether a record, or its figures, are of the run that `train` would make of these."""
    chosen, config = choose(method, settings)
    mode = evaluation or default_mode(silos, chosen)
    return run.is_of(identity(chosen, config, silos, seed, mode))


def fingerprint(
    what: Mapping[str, Any],
    graphs: Mapping[str, Graph],
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Identifies a run to its checkpoints; more rounds of the same are still the same run."""
    settings = {key: value for key, value in what["settings"].items() if key != "rounds"}
    whole = {**what, "settings": settings, "torch": torch.__version__}
    text = json.dumps(plain(whole), sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for _, graph in sorted(graphs.items()):
        for part in feature_arrays(graph.x):
            digest.update(part.data)
    for _, known in sorted((extra or {}).items()):
        for part in known["border"].arrays():
            digest.update(part.data)
    return digest.hexdigest()
