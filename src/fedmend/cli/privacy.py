"""`fedmend privacy ...`: accountants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli import common

app = typer.Typer(help="What a method's privacy claim comes to.", no_args_is_help=True)


@app.callback()
def _privacy() -> None:
    """What a method's privacy claim comes to."""


@app.command("nfdp")
def nfdp(
    drawn: Annotated[int, typer.Option("--d", help="Neighbours drawn per node and hop.")] = 5,
    degree: Annotated[
        int | None,
        typer.Option("--D", help="Degree assumed of every node; the graph's smallest if left out."),
    ] = None,
    layers: Annotated[int, typer.Option("--layers", help="Hops (L).")] = 2,
    epochs: Annotated[int, typer.Option("--epochs", help="Epochs of training (N).")] = 50,
    rate: Annotated[float, typer.Option("--rate", help="Rate of the Bernoulli sampler (r).")] = 1.0,
    delta_prime: Annotated[
        float, typer.Option("--delta-prime", help="Slack of the composition.")
    ] = 1e-5,
    graph: Annotated[
        Path | None, typer.Option("--graph", help="A silo's folder, for the degrees in it.")
    ] = None,
    json: common.JsonOption = False,
) -> None:
    """FedDEP's noise-free edge-LDP (theorem 3.1), as published and as recomputed."""
    from fedmend.privacy.accountants.nfdp import nfdp as account

    read = None
    if graph is not None:
        from fedmend.data.folders import read_folder

        with common.spinner(f"Reading {graph} ..."):
            read = read_folder(graph)
    found = account(
        drawn,
        degree,
        layers=layers,
        epochs=epochs,
        rate=rate,
        delta_prime=delta_prime,
        graph=read,
    )
    if json:
        common.print_json(found.to_dict())
        return
    from fedmend.reports.accounts import edge_ldp_notes, edge_ldp_table

    console = common.out_console()
    console.print(edge_ldp_table(found))
    for line in (*edge_ldp_notes(found), found.sentence):
        console.print(line)
