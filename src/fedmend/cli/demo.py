"""`fedmend demo`: what federation is worth, in under a minute."""

from __future__ import annotations

from fedmend.cli import common

METHODS = ("local", "fedsage", "global")


def demo() -> None:
    """Local, FedSage and Global on the bundled Cora with 5 silos."""
    import tempfile
    from pathlib import Path

    err = common.err_console()
    err.print("Cora: 2708 papers, 7 subjects; its citations are cut into 5 silos (Louvain).")
    err.print("Training each silo alone, all together without sharing data, and on pooled data ...")
    with tempfile.TemporaryDirectory() as folder, common.Display(len(METHODS)) as display:
        from fedmend.reports import tables
        from fedmend.runs import plan as plans

        plan = plans.Plan(plans.Source("cora", 5), (0,), {})
        found = plans.compare(METHODS, plan, Path(folder), display.watch)
    console = common.out_console()
    console.print(tables.comparison(found))
    console.print(tables.demo_sentence(found))
    console.print("Next: fedmend run fedsage --dataset cora --silos 5 --seeds 3")
