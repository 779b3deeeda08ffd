"""Predictions of a saved run for a graph's folder, written as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedmend.runs import node_memory
from fedmend.data.folders import read_folder
from fedmend.data.tables import write_table
from fedmend.errors import SettingsError, UnknownNameError
from fedmend.graph import UNKNOWN_LABEL
from fedmend.runs.record import SavedRun, read_run
from fedmend.runs.train import choose_model, predict_remembering, predict_with


def predict_folder(run: Path, graph: Path, out: Path, silo: str | None) -> dict[str, Any]:
    """Predict all nodes in the folder `graph` with the model in the folder `run`."""
    if out.suffix not in (".csv", ".parquet"):
        raise SettingsError(f"--out {out}: predictions are written as .csv or .parquet")
    saved = read_run(run)
    if silo is not None:
        _check_silo(saved, silo)
    method = saved.record.method
    model = choose_model(saved.record, saved.weights, saved.own_weights, silo)
    read = read_folder(graph)
    memory = node_memory.read(run)
    if memory is None or silo is None:
        record = saved.record
        prediction = predict_with(model, record.label_names, read, record.feature_names_hash)
    else:
        prediction = predict_remembering(memory, saved.record, model, silo, read)
    labels = np.asarray(prediction.labels)
    columns: dict[str, Any] = {"id": prediction.node_ids, "label": labels}
    for index, name in enumerate(saved.record.label_names):
        columns[f"probability_{name}"] = prediction.probabilities[:, index].numpy()
    import pyarrow as pa

    write_table(out, pa.table(columns))
    new = None if memory is None or silo is None else memory.places(silo, read.node_ids) < 0
    known = read.y.numpy() != UNKNOWN_LABEL
    true = np.asarray(read.label_names or [""])[read.y.numpy()]
    fits = float((true[known] == labels[known]).mean()) if known.any() else None
    return {
        "method": method,
        "silo": None if saved.weights is not None and memory is None else silo,
        "shared_model": saved.weights is not None,
        "new": None if new is None else int(new.sum()),
        "alone": memory is not None and silo is None,
        "nodes": read.num_nodes,
        "labelled": int(known.sum()),
        "accuracy": fits,
        "out": str(out),
    }


def _check_silo(saved: SavedRun, silo: str) -> None:
    """Refuse a silo that did not take part: the shared model would answer all the same."""
    known = saved.record.silos
    if silo not in known:
        raise UnknownNameError("silo", silo, known)
