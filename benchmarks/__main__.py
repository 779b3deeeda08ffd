"""`python -m benchmarks [NAME ...]`: measure, keep the figures, write the page."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from benchmarks.common import Measured, Options, machine, save, say
from fedmend.config import from_pairs
from fedmend.errors import FedmendError

NAMES = {
    "mending_cost": "seconds, memory and bytes of FedSage+ and FedDEP",
    "deep_neighbours": "what embeddings of missing neighbours are worth to FedDEP",
    "fedggr_cost": "seconds and memory of FedGGR's rounds",
    "speed": "FedAvg's rounds beside a bare loop, OpenFGL and plain PyG",
    "hifgl_speed": "HiFGL's seconds, memory and bytes, secret sharing on and off",
    "growth": "seconds and memory from 10 thousand to a million nodes",
    "startup": "how quickly the command line answers",
    "sampling": "the neighbour sampler beside a plain loop",
    "before_after": "every method's runs in two source trees (--before PATH)",
    "kernels": "whole runs with each kernel and without it",
    "deployment": "a server and silos as processes, beside the in-process engine",
}

# Options that only some benchmarks heed: ignoring one in silence would mislead.
HEEDED = {
    "before": ("before_after",),
    "set": ("growth",),
    "datasets": ("speed", "hifgl_speed", "kernels"),
}


def parse(arguments: list[str]) -> tuple[list[str], Options]:
    """The benchmarks to run, and how."""
    listed = "\n".join(f"  {name:15} {text}" for name, text in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(
            f"{listed}\n  {'report':15} only write docs/benchmarks.md again from what is kept\n\n"
            "Without a name all are run but before_after. Full runs are kept in\n"
            "benchmarks/results and written to docs/benchmarks.md; --quick and runs with other\n"
            "settings go to benchmarks/.cache."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--data-root", type=Path, help="folder with CiteSeer's and PubMed's files")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting (growth)",
    )
    parser.add_argument("--before", type=Path, help="a checkout to compare with (before_after)")
    parser.add_argument("--datasets", type=_words, help="only these datasets")
    given = parser.parse_args(arguments)
    wrong = [name for name in given.names if name not in (*NAMES, "report")]
    if wrong:
        parser.error(f"there is no benchmark {wrong[0]!r}; there are: {', '.join(NAMES)}, report")
    names = list(dict.fromkeys(given.names)) or [name for name in NAMES if name != "before_after"]
    for option, by in HEEDED.items():
        if getattr(given, option) and any(name not in by for name in names):
            parser.error(f"--{option} is for {' and '.join(by)} only: name what to run")
    if given.data_root is not None and not given.data_root.is_dir():
        parser.error(f"--data-root {given.data_root} is not a folder")
    options = Options(
        quick=given.quick,
        data_root=given.data_root,
        settings=from_pairs(given.set),
        datasets=given.datasets,
        before=given.before,
    )
    return names, options


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def main(arguments: list[str]) -> None:
    """Run the benchmarks one after the other; the page is written after each."""
    names, options = parse(arguments)
    aside = options.quick or options.exploring
    for name in names:
        if name != "report":
            say(f"== {name}: {NAMES[name]}")
            before = machine()
            # Imported only now: a process that starts others should not hold what it measures.
            module = importlib.import_module(f"benchmarks.{name}")
            measure: Callable[[Options], Measured] = getattr(module, name)
            found = measure(options)
            save(options.results, name, f"python -m benchmarks {name}", before, found)
        report.write(options.results, options.page, names if aside else None)
    if aside:
        print(options.page.read_text(encoding="utf-8"))
    say(f"written: {options.page}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FedmendError as error:
        sys.exit(f"benchmarks: {error}")
    except KeyboardInterrupt:
        sys.exit("benchmarks: stopped; finished cells are kept")
