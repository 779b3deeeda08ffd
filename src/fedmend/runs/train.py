"""`train`: one method on one federation with one seed, from silos to a `Result`."""

from __future__ import annotations

import hashlib
import json
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmend import methods
from fedmend.config import MOST_THREADS, make
from fedmend.data.partition import Partition
from fedmend.engines.base import EngineBase, Final, Watch
from fedmend.engines.computing import computing_with
from fedmend.engines.inprocess import Fault, InProcess
from fedmend.errors import DataError, SettingsError, UnknownNameError
from fedmend.evaluation.evaluate import Scores, check_mode, evaluate
from fedmend.evaluation.generated import Generated, compare_generated
from fedmend.federation import Schema, SiloBase
from fedmend.files import plain, typed
from fedmend.graph import Graph, feature_arrays, hash_of_names, is_sparse
from fedmend.methods import Method
from fedmend.models.backbones import Backbone, ModelShape
from fedmend.models.predictor import Predictor, Weights, model_with, predict
from fedmend.plugins.registry import origins
from fedmend.privacy.account import Account, no_account
from fedmend.privacy.ledger import Kind, Ledger
from fedmend.privacy.noise import PublicNoise
from fedmend.runs import node_memory
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
    predictors: dict[str, Predictor] = field(default_factory=dict, repr=False)
    remembered: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

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
        return model_with(
            self.shape,
            own_or_shared(self.record, self.weights, self.own.__getitem__, silo),
        )

    def predict(self, graph: Graph, silo: str | None = None) -> Prediction:
        """Predict every node of a graph, seen in training or not.

        silo: whose nodes these are: it predicts with its own model, where there is one per silo,
            and with what it remembers of its nodes (FedGGR, FedSage+), known by their ids.
        """
        predict_for: Callable[[Graph], Tensor]
        if silo is None:
            predict_for = partial(predict, self.model)
        else:
            if silo not in self.predictors:
                raise UnknownNameError("silo", silo, self.predictors)
            predict_for = self.predictors[silo].on(self.record.evaluation).predict
        return predict_with(predict_for, self.record, graph)

    def save(self, folder: str | Path) -> Path:
        """Write the run's folder (see `fedmend.runs.record`)."""
        path = Path(folder)
        memory = node_memory.of(self.predictors, self.remembered, self.record.evaluation)
        records.write_run(path, self.record, self.weights, self.own, memory, self.ledger)
        return path


def own_or_shared(
    record: Record, shared: Weights | None, own: Callable[[str], Weights], silo: str | None
) -> Weights:
    """The shared weights, or the named silo's own where the method has a model per silo."""
    if shared is not None:
        return shared
    known = record.silos_with_own_model
    if silo is None:
        raise SettingsError(
            f"{record.method} ends with a model per silo: name one (--silo NAME; "
            f"{', '.join(known)})"
        )
    if silo not in known:
        raise UnknownNameError("silo", silo, known)
    return own(silo)


def predict_with(
    probabilities_of: Callable[[Graph], Tensor], record: Record, graph: Graph
) -> Prediction:
    """Predict a graph's nodes, after checking that it fits what the run was trained on."""
    if graph.num_features != record.model.num_features:
        raise DataError(
            f"the graph has {graph.num_features} features, the model was trained on "
            f"{record.model.num_features}"
        )
    names = record.feature_names_hash
    if names and graph.feature_names is not None and hash_of_names(graph.feature_names) != names:
        raise DataError(
            "the graph's features have other names, or another order, than those the model was "
            "trained on: give its columns the same names in the same order"
        )
    return Prediction(graph.node_ids, record.label_names, probabilities_of(graph))


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
    _check_options(out, resume, checkpoint_every, workers, threads)
    seed = operator.index(seed)  # numpy's whole numbers too
    mode = evaluation or default_mode(silos, chosen)
    check_mode(mode, silos, predict_together=chosen.needs_border)
    graphs = _graphs(chosen, silos, config)
    if config.min_silos > len(graphs):
        raise SettingsError(f"min_silos={config.min_silos}, but there are {len(graphs)} silos")
    what = identity(chosen, config, silos, seed, mode)
    extra = _extra_knowledge(chosen, silos)
    with computing_with(threads):
        # Building too with fixed threads: waking more of them for small matrices costs time.
        built = [
            chosen.silo_type(
                name, graph, config, seed, noise=PublicNoise(seed, name), **extra.get(name, {})
            )
            for name, graph in sorted(graphs.items())
        ]
    engine = InProcess(
        built,
        _schema(silos, graphs),
        seed,
        workers=workers,
        threads=threads,
        faults=faults,
        timeout=timeout,
        watch=watch,
        checkpoint_file=None if out is None else Path(out) / records.CHECKPOINT,
        checkpoint_every=checkpoint_every,
        # Threads too: another number of them may round differently.
        fingerprint=fingerprint({**what, "threads": threads}, graphs, extra),
        resume=resume,
    )
    predictors: dict[str, Predictor] = {}

    def test(weights: Weights | None) -> Final:
        for name, silo in engine.silos.items():
            if (found := silo.predictor(weights)) is not None:
                found = found.knowing(engine.remembered)
                predictors.update(dict.fromkeys(silos.names if chosen.pooled else [name], found))
        return _tested(chosen, engine, silos, graphs, predictors, mode)

    with engine:
        weights, ledger, record = carry_out(
            engine,
            chosen,
            config,
            test,
            started,
            what,
            dataset=dataset,
            source=None if source is None else dict(source),
            data=Data(**vars(silos.statistics())),
            engine=Engine(name="in-process", threads=threads),
            pooled=chosen.pooled,
            workers=engine.workers,
        )
        # What only one process that holds all silos can know.
        record = replace(record, generator=_generated(engine.silos, silos))
    own = {n: dict(each.weights) for n, each in predictors.items() if not each.shared}
    result = Result(
        chosen,
        record.model,
        record.label_names,
        weights,
        own,
        record.result,
        ledger,
        engine.history,
        record,
        predictors,
        engine.remembered,
    )
    if out is not None:
        result.save(out)
    return result


def carry_out(
    run: EngineBase[Any],
    method: Method,
    config: Any,
    test: Callable[[Weights | None], Final],
    started: float,
    what: Mapping[str, Any],
    *,
    workers: int | None = None,
    **about: Any,
) -> tuple[dict[str, Tensor] | None, Ledger, Record]:
    """A run on any engine, from its server's first question to its record.

    test: of the models that it ends with, as this engine can; started: when it all began; what:
    the run's identity; about: what else stands in its record.
    """
    set_up = time.perf_counter() - started
    weights = method.server(run, config)
    testing = time.perf_counter()
    final = test(weights)
    now = time.perf_counter()
    phases = {"set-up": set_up, **run.timings.phases, "evaluation": now - testing}
    accounts = privacy_accounts(method, config, final.privacy_facts, run.names)
    model = config.shape(run.schema)
    record = Record(
        **what,
        **about,
        versions=records.versions(),
        plugins=origins(
            method=method.name,
            backbone=model.backbone,
            partitioner=what["split"].how,
            dataset=str(about.get("dataset")).partition(":")[0],
            metric=config.metric,
        ),
        model=model,
        label_names=run.schema.label_names,
        feature_names_hash=run.schema.feature_names_hash,
        shared_model=weights is not None,
        silos_with_own_model=tuple(sorted(final.own)),
        privacy=tuple(accounts),
        result=final.scores,
        rounds=run.history,
        said=tuple(run.sentences),
        bytes=records.sent(final.ledger, final.inside),
        measured=records.measured_now(
            seconds=now - started, phases=phases, steps=run.timings.steps, workers=workers
        ),
    )
    return weights, final.ledger, record


def choose(method: str, settings: Mapping[str, Any]) -> tuple[Method, Any]:
    """The method of this name and its settings, checked."""
    chosen = methods.find(method)
    return chosen, make(chosen.settings_type, _with_fixed(chosen, settings))


def privacy_accounts(
    method: Method, config: Any, facts: Mapping[str, Mapping[str, float]], silos: Sequence[str]
) -> list[Account]:
    """The method's privacy accounts, from what silos told of themselves at the end of the run."""
    try:
        found = method.privacy(config, facts)
    except (LookupError, ValueError, ArithmeticError, SettingsError) as error:
        # Counts that cannot be, or a package that is not there: the run itself is finished.
        why = str(error) if isinstance(error, SettingsError) else "some silo's counts cannot be"
        return [no_account(why if facts else "no silo was left to ask")]
    missing = sorted(set(silos) - set(facts))
    if not missing:
        return found
    said = f"Not counted, since lost by then: {', '.join(missing)}."
    return [
        replace(
            each, sentence=f"{each.sentence} {said}", details={**each.details, "without": missing}
        )
        for each in found
    ]


def _tested(
    method: Method,
    engine: InProcess[Any],
    silos: Partition,
    graphs: Mapping[str, Graph],
    predictors: Mapping[str, Predictor],
    mode: str,
) -> Final:
    """The test where all silos are in one process, and what left each of them."""
    asked = [silos.whole] if mode == "global-graph" else list(silos.silos.values())
    has_tests = any(bool(graph.test_mask.any()) for graph in asked if graph is not None)
    # Nothing travels when everything is in one place: all raw data was pooled instead.
    ledger = Ledger() if method.pooled else engine.ledger
    if method.sees_beyond:
        count_surroundings(ledger, silos, graphs)
    return Final(
        evaluate(predictors, silos, mode) if has_tests else None,
        [name for name, each in predictors.items() if not each.shared],
        {name: silo.privacy_facts() for name, silo in engine.silos.items()},
        ledger,
        _inside_silos(engine.silos),
    )


def _check_options(
    out: str | Path | None, resume: bool, checkpoint_every: int, workers: int, threads: int
) -> None:
    if resume and out is None:
        raise SettingsError("resume needs the folder of the run to go on with: give out=...")
    if checkpoint_every < 1:
        raise SettingsError(f"checkpoint_every={checkpoint_every} is not allowed: at least 1")
    if workers < 0 or not 1 <= threads <= MOST_THREADS:
        raise SettingsError(
            f"workers={workers}, threads={threads} is not allowed: workers from 0 (one per core), "
            f"threads from 1 to {MOST_THREADS}"
        )


def _schema(silos: Partition, graphs: Mapping[str, Graph]) -> Schema:
    some = next(iter(graphs.values()))
    named = next((g.feature_names for g in silos.silos.values() if g.feature_names), None)
    return Schema(some.num_features, some.label_names, hash_of_names(named))


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
