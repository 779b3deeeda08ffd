"""Predictions of a saved run for a graph's folder, written as CSV or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedmend.data.folders import read_folder
from fedmend.data.tables import write_table
from fedmend.errors import SettingsError
from fedmend.graph import UNKNOWN_LABEL
from fedmend.reports.record import read_run
from fedmend.run import choose_model, predict_with


def predict_folder(run: Path, graph: Path, out: Path, silo: str | None) -> dict[str, Any]:
    """Predict all nodes in the folder `graph` with the model in the folder `run`."""
    if out.suffix not in (".csv", ".parquet"):
        raise SettingsError(f"--out {out}: predictions are written as .csv or .parquet")
    saved = read_run(run)
    method = saved.record["method"]
    model = choose_model(method, saved.shape, saved.weights, saved.own, saved.own_weights, silo)
    read = read_folder(graph)
    prediction = predict_with(model, saved.label_names, read)
    labels = np.asarray(prediction.labels)
    columns: dict[str, Any] = {"id": prediction.node_ids, "label": labels}
    for index, name in enumerate(saved.label_names):
        columns[f"probability_{name}"] = prediction.probabilities[:, index].numpy()
    import pyarrow as pa

    write_table(out, pa.table(columns))
    known = read.y.numpy() != UNKNOWN_LABEL
    true = np.asarray(read.label_names or [""])[read.y.numpy()]
    fits = float((true[known] == labels[known]).mean()) if known.any() else None
    return {
        "method": method,
        "silo": None if saved.weights is not None else silo,
        "nodes": read.num_nodes,
        "labelled": int(known.sum()),
        "accuracy": fits,
        "out": str(out),
    }
