"""Predictions of a saved run for a graph's folder, written as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmend.data.folders import read_folder
from fedmend.data.tables import write_table
from fedmend.errors import DataError, FileFormatError, SettingsError, UnknownNameError
from fedmend.graph import UNKNOWN_LABEL, Graph
from fedmend.models.predictor import Predictor, model_with, predict
from fedmend.runs.node_memory import FILE
from fedmend.runs.record import SavedRun, read_run
from fedmend.runs.train import choose, own_or_shared, predict_with


def predictor_of(saved: SavedRun, silo: str) -> Predictor:
    """What a silo predicts with, from a run's folder."""
    record, memory = saved.record, saved.memory
    if silo not in record.silos:  # the shared model would answer all the same
        raise UnknownNameError("silo", silo, record.silos)
    weights = own_or_shared(record, saved.weights, saved.own_weights, silo)
    shared = saved.weights is not None
    if memory is None or silo not in memory.ids:
        return Predictor(record.model, weights, shared, np.empty(0, dtype=str))
    method, settings = choose(record.method, record.settings)
    insert = method.newcomers(settings, record.seed, silo)
    bare = Predictor(record.model, weights, shared, memory.ids[silo], insert=insert)
    try:
        return bare.remembering(memory.silos[silo], memory.server)
    except (DataError, LookupError, ValueError, TypeError) as error:
        raise FileFormatError(
            f"what {saved.folder / FILE} remembers of {silo}'s nodes does not fit the run: {error}"
        ) from error


def predict_folder(run: Path, graph: Path, out: Path, silo: str | None) -> dict[str, Any]:
    """Predict all nodes in the folder `graph` with the model in the folder `run`."""
    if out.suffix not in (".csv", ".parquet"):
        raise SettingsError(f"--out {out}: predictions are written as .csv or .parquet")
    saved = read_run(run)
    record = saved.record
    silo = silo or record.engine.silo  # in a deployed silo's own folder it is clear whose it is
    predictor = None if silo is None else predictor_of(saved, silo)
    predict_for: Callable[[Graph], Tensor]
    if predictor is None:
        weights = own_or_shared(record, saved.weights, saved.own_weights, None)
        predict_for = partial(predict, model_with(record.model, weights))
    else:
        predict_for = predictor.predict
    read = read_folder(graph)
    prediction = predict_with(predict_for, record, read)
    labels = np.asarray(prediction.labels)
    columns: dict[str, Any] = {"id": prediction.node_ids, "label": labels}
    for index, name in enumerate(record.label_names):
        columns[f"probability_{name}"] = prediction.probabilities[:, index].numpy()
    import pyarrow as pa

    write_table(out, pa.table(columns))
    new = None
    if predictor is not None and len(predictor.ids):
        new = int((predictor.places(read) < 0).sum())
    return {
        "method": record.method,
        "silo": silo,
        "shared_model": record.shared_model,
        "new": new,
        "alone": silo is None and saved.memory is not None,
        "without_rows": new if predictor is not None and not predictor.can_insert() else None,
        "nodes": read.num_nodes,
        **_fits(read, labels),
        "out": str(out),
    }


def _fits(read: Graph, labels: NDArray[Any]) -> dict[str, Any]:
    """Shares of nodes that were found right: of all with a known label, and of test nodes."""
    known = read.y.numpy() != UNKNOWN_LABEL
    right = np.asarray(read.label_names or [""])[read.y.numpy()] == labels
    test = known & read.test_mask.numpy()
    return {
        "labelled": int(known.sum()),
        "accuracy": float(right[known].mean()) if known.any() else None,
        "test_nodes": int(test.sum()),
        "test_accuracy": float(right[test].mean()) if test.any() else None,
    }
