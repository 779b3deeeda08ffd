"""`fedmend predict RUN --graph DIR`: labels and probabilities for a graph's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common


def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    graph: Annotated[Path, typer.Option("--graph", help="A folder with nodes and edges.")],
    out: Annotated[Path, typer.Option("--out", help="File to write: .csv or .parquet.")] = Path(
        "predictions.csv"
    ),
    silo: Annotated[
        str | None,
        typer.Option(
            "--silo",
            help="Whose nodes these are: for methods with a model per silo, and for fedggr.",
        ),
    ] = None,
    json: common.JsonOption = False,
) -> None:
    """Predict every node of a graph, seen in training or not."""
    from fedmend.runs.predict import predict_folder

    with common.spinner("Predicting ..."):
        done = predict_folder(run, graph, out, silo)
    if json:
        common.print_json(done)
        return
    console = common.out_console()
    whose = "the shared model" if done["shared_model"] else f"{done['silo']}'s own model"
    console.print(
        f"{done['nodes']} nodes predicted with {whose} of {done['method']}: {out}", soft_wrap=True
    )
    if done["new"] is not None:
        console.print(f"{done['new']} of them are new to {done['silo']} since training.")
    if done["without_rows"]:
        console.print(
            f"What those bring along in {done['method']} takes the server's part of the run, which "
            "is not in this folder: they were predicted without."
        )
    if done["alone"]:
        console.print(
            f"Their rows of {done['method']} were left out: name the silo they belong to (--silo)."
        )
    if done["accuracy"] is not None:
        console.print(f"Of {done['labelled']} nodes with a known label {done['accuracy']:.1%} fit.")
    if done["test_accuracy"] is not None:
        console.print(f"Of {done['test_nodes']} test nodes {done['test_accuracy']:.1%} fit.")
