"""`docs/benchmarks.md`, written wholly from the kept results, others' figures and remarks.

Remarks are written by hand in `benchmarks/remarks/NAME.md` and stand at the end of a section, so
that writing the page again keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import HERE, Row
from fedmend.evaluation.summary import summarise
from fedmend.files import read_json, write_bytes

Result = dict[str, Any]

INTRODUCTION = """\
# Benchmarks

<!-- Written by `python -m benchmarks report` from benchmarks/results, benchmarks/published.json and
benchmarks/remarks. Change those, not this page. -->

`make bench` measures everything on this page again; `make bench ARGS="speed growth"` a part of it;
`make bench ARGS=--quick` shows in a few minutes that it works, without touching this page.
CiteSeer and PubMed are needed for the full page: `--data-root DIR` or
`FEDMEND_DATA` names the folder with their Planetoid files. Times are of the machine named in each
section and are never tested; targets stand beside them. Accuracy is the matter of suites, beside
the published figures: [results](results/README.md).
"""

NAMES = {
    "cora": "Cora",
    "citeseer": "CiteSeer",
    "pubmed": "PubMed",
    "sage": "GraphSAGE",
    "gcn": "GCN",
    "fedavg": "FedAvg",
    "fedsage": "FedSage",
    "fedsage+": "FedSage+",
    "feddep": "FedDEP",
    "feddep-no-dgen": "FedDEP without DGen",
    "feddep-no-proto": "FedDEP without Proto",
    "feddep-no-nfdp": "FedDEP without NFDP",
    "oracle": "true neighbours",
    "local": "Local",
    "global": "Global",
}


def write(results: Path, page: Path, names: Sequence[str] | None = None) -> None:
    """Write the page from whatever results there are, or only those of `names`."""
    published = read_json(HERE / "published.json")
    parts = [INTRODUCTION]
    for name, (title, section) in SECTIONS.items():
        file = results / f"{name}.json"
        if not file.exists() or (names is not None and name not in names):
            continue
        result = read_json(file)
        parts += [f"## {title}\n", *section(result, published), *_remarks(name), _origin(result)]
    write_bytes(page, ("\n".join(parts).rstrip() + "\n").encode())


def _remarks(name: str) -> list[str]:
    file = HERE / "remarks" / f"{name}.md"
    return [file.read_text(encoding="utf-8").strip() + "\n"] if file.exists() else []


def _origin(result: Result) -> str:
    machine, versions = result["machine"], result["versions"]
    notes = "".join(f" {note}." for note in result["notes"])
    used = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"<sub>`{result['command']}`, {result['date']}, commit {result['commit']}; "
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']:.0f} GB, "
        f"load before {machine['load_before']}; {used}.{notes}</sub>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _name(key: str) -> str:
    return NAMES.get(key, key)


def met(value: float, target: float) -> str:
    """Whether a figure is at most its target."""
    return "met" if value <= target else "**not met**"


# Mending


def _mending_cost(result: Result, published: Result) -> list[str]:  # noqa: ARG001  # same for all
    by_kind: dict[str, list[Row]] = {}
    for row in result["rows"]:
        by_kind.setdefault(row["kind"], []).append(row)
    parts = []
    if "run" in by_kind:
        parts += [
            "### Time and memory\n",
            "Each line a process of its own, two silos side by side.\n",
            table(
                ["", "seconds", "of which", "MB", "target", ""],
                [
                    [
                        row["what"],
                        f"{row['seconds']:.1f}",
                        ", ".join(f"{name} {each:.1f}" for name, each in row["phases"].items()),
                        f"{row['peak_mb']:.0f}",
                        row["target"],
                        row["verdict"],
                    ]
                    for row in by_kind["run"]
                ],
            ),
        ]
    if "bytes" in by_kind:
        parts += [
            "### Bytes\n",
            "Up and down, all silos together, by phase. Table 1 of FedDEP counts what the "
            "generators cost beyond FedAvg.\n",
            table(
                ["", "phase", "up", "down", "the paper's count"],
                [
                    [
                        _name(row["method"]),
                        row["phase"],
                        f"{row['up']:,}",
                        f"{row['down']:,}",
                        row["formula"],
                    ]
                    for row in by_kind["bytes"]
                ],
            ),
        ]
    return parts


def _deep_neighbours(result: Result, _: Result) -> list[str]:
    return [
        f"Cora, random split, M={result['settings']['silos']}, "
        f"{len(result['rows'][0]['seeds'])} seeds, test accuracy ± 95% interval. *Zeros*: the "
        "whole graph with all mended embeddings zero, the paper's inference. *With them*: the "
        "silos' own graphs with the mended embeddings. *Spread*: how far generated embeddings are "
        "from their mean, beside the local GNN's. *Right*: rows whose nearest own prototype is of "
        "their node's class, of training / test nodes.\n",
        table(
            ["neighbours", "zeros", "with them", "spread", "local GNN right", "generated right"],
            [_deep_line(row["what"], row["seeds"]) for row in result["rows"]],
        ),
    ]


def _deep_line(what: str, seeds: Sequence[Row]) -> list[str]:
    def right(key: str) -> str:
        roles = (summarise([seed[key][role] for seed in seeds]).mean for role in ("train", "test"))
        return " / ".join(f"{mean:.2f}" for mean in roles)

    def accuracy(key: str) -> str:
        found = summarise([seed[key] for seed in seeds])
        return f"{found.mean:.4f} ± {found.interval:.4f}"

    cells = [what, accuracy("zeros"), accuracy("with_them")]
    if "spread" not in seeds[0]:
        return [*cells, "", "", ""]
    spread = summarise([seed["spread"] for seed in seeds]).mean
    return [*cells, f"{spread:.3f}", right("embeddings_right"), right("generated_right")]


# FedGGR


def _fedggr(result: Result, _: Result) -> list[str]:
    return [
        "Each line a process of its own, two threads. A round's seconds include its share of the "
        "search after the last round; memory is that of the whole run.\n",
        table(
            ["", "s/round", "of which silos", "MB", "target", ""],
            [_fedggr_cost(row) for row in result["rows"]],
        ),
    ]


def _fedggr_cost(row: Row) -> list[str]:
    target = row.get("target")
    verdicts = (
        (met(row["round_seconds"], target["seconds"]), met(row["peak_mb"], target["memory_mb"]))
        if target
        else ()
    )
    return [
        row["what"],
        f"{row['round_seconds']:.2f}",
        f"{row['silos_seconds']:.2f}",
        f"{row['peak_mb']:.0f}",
        f"{target['seconds']:g} s, {target['memory_mb']:.0f} MB" if target else "",
        ", ".join(verdicts),
    ]


# Speed


def _speed(result: Result, published: Result) -> list[str]:
    settings = result["settings"]
    targets = settings["targets"]
    full = [row for row in result["rows"] if row["kind"] == "full batch"]
    memory = published["openfgl"]["memory_mb"]
    setup = settings["full_batch"]
    return [
        f"FedAvg with {settings['silos']} Louvain silos, one torch thread; medians of "
        f"{settings['repeats']} turns of {settings['rounds']} rounds; what is compared takes turns "
        "in one process, and ratios are medians of each turn's ratio. A round of fedmend is "
        "everything it does: messages to bytes and back, the ledger, validation of the received "
        "weights, averaging.\n",
        "### Full batch, beside a bare loop and OpenFGL\n",
        f"{setup['local_epochs']} local epochs a round, hidden {setup['hidden']}, milliseconds per "
        "round. The *bare loop* is hand-written FedAvg on CSR products without messages, counting "
        "or validation: a yardstick. OpenFGL's figures were measured earlier on "
        f"a machine of the same kind, not in this run; it took {memory[0]}-{memory[1]} MB.\n",
        table(
            [
                "",
                "bare loop",
                "fedmend",
                "x bare",
                "two workers",
                "quickest",
                "OpenFGL",
                "target",
                "",
            ],
            [
                [
                    _where(row),
                    _ms(row["bare_seconds"]),
                    _ms(row["one_worker_seconds"]),
                    f"{row['of_bare']:.2f}",
                    _ms(row["two_workers_seconds"]),
                    _ms(row["quickest_seconds"]),
                    _ms(row["openfgl_seconds"]),
                    *_fifth(row, targets["of_openfgl"]),
                ]
                for row in full
            ],
        ),
        "The target is a fifth of OpenFGL's time, for the better median of one and two workers; "
        "*quickest* is the quickest turn of both. Milliseconds of another day are as good as the "
        "machine's mood on both days; the next table is of one run.\n",
        "### Full batch, beside OpenFGL's steps in the same run\n",
        "What OpenFGL does in a round, written anew with PyG (`benchmarks/openfgl_steps.py`), two "
        "torch threads, taking turns with fedmend's rounds of one worker in one process; "
        "milliseconds per round.\n",
        table(
            ["", "OpenFGL's steps", "fedmend", "share", "target", ""],
            [
                [
                    _where(row),
                    _ms(row["openfgl_steps_seconds"]),
                    _ms(row["beside_steps_seconds"]),
                    f"{row['of_openfgl_steps']:.2f}",
                    f"≤ {targets['of_openfgl']}",
                    met(row["of_openfgl_steps"], targets["of_openfgl"]),
                ]
                for row in full
            ],
        ),
        "### Beside plain centralised PyG training\n",
        "The same number of node visits (every training node once per local epoch), milliseconds "
        "per round; PyG trains only, without validation. Full batch as above; mini-batch: batch "
        f"{settings['mini_batch']['batch_size']}, fan-out {settings['mini_batch']['fan_out']}, "
        f"hidden {settings['mini_batch']['hidden']}, PyG's layers on blocks drawn by fedmend's "
        "sampler (NeighborLoader needs compiled extras).\n",
        table(
            ["", "visits", "PyG", "fedmend", "x PyG", "target", ""],
            [
                [
                    f"{_where(row)}, {row['kind']}",
                    f"{row['node_visits_per_round']:,}",
                    _ms(row["pyg_seconds"]),
                    _ms(row["beside_pyg_seconds"]),
                    f"{row['of_pyg']:.2f}",
                    f"≤ {targets['of_pyg']}",
                    met(row["of_pyg"], targets["of_pyg"]),
                ]
                for row in result["rows"]
            ],
        ),
        "### Memory\n",
        "Peak of a process that loads, cuts and runs FedAvg, full batch, two workers.\n",
        table(
            ["", "MB", "target", ""],
            [
                [
                    _where(row),
                    f"{row['memory_mb']:.0f}",
                    f"< {targets['memory_mb']:.0f}",
                    met(row["memory_mb"], targets["memory_mb"]),
                ]
                for row in full
            ],
        ),
    ]


def _where(row: Row) -> str:
    return f"{_name(row['dataset'])}, {_name(row['backbone'])}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def _fifth(row: Row, share: float) -> list[str]:
    if row["openfgl_seconds"] is None:
        return ["", ""]
    target = share * row["openfgl_seconds"]
    best = min(row["one_worker_seconds"], row["two_workers_seconds"])
    return [f"≤ {1000 * target:.0f}", met(best, target)]


# HiFGL


def _hifgl_speed(result: Result, _: Result) -> list[str]:
    settings = result["settings"]
    targets, release = settings["targets"], settings["release"]
    return [
        f"HiFGL, GCN of two layers of {settings['hidden']}, {settings['silos']} random silos, T=1, "
        f"every neighbour heard; {settings['turns']} turns of {settings['epochs']} epochs with "
        "secret sharing on and off, in one process, one worker. Milliseconds per epoch: median "
        "and quickest on the clock, and median of processor time, which other programs distort "
        "less; *times* is the ratio of the latter. The authors' release, in clear, was measured "
        "earlier.\n",
        table(
            ["", "on", "quickest", "target", "", "processor on", "off", "times", "", "release"],
            [
                [
                    _name(row["dataset"]),
                    _ms(row["seconds_on"]),
                    _ms(row["quickest_on"]),
                    f"< {1000 * targets['seconds'][row['dataset']]:.0f}",
                    met(row["seconds_on"], targets["seconds"][row["dataset"]]),
                    _ms(row["processor_on"]),
                    _ms(row["processor_off"]),
                    f"{row['times']:.1f}",
                    met(row["times"], targets["times"]),
                    _ms(release.get(row["dataset"])),
                ]
                for row in result["rows"]
            ],
        ),
        "Passing the raw features, once before training, and the peak of a process that loads, "
        "cuts and trains:\n",
        table(
            ["", "input pass s", "peak MB", "target", ""],
            [
                [
                    _name(row["dataset"]),
                    f"{row['input_seconds']:.1f}",
                    f"{row['memory_mb']:.0f}",
                    f"< {targets['memory_mb']:.0f}",
                    met(row["memory_mb"], targets["memory_mb"]),
                ]
                for row in result["rows"]
            ],
        ),
        "Bytes of an epoch over all silos, both ways (what a relay passes on is counted again). "
        "*Shares, once*: messages x 2 passes x (T+1) shares x classes x 8 bytes, what the "
        "protocol must move at least. *Section 5.2*: O(dT) for each directed edge, that is "
        "(T+1) hidden-size embeddings forward along every edge, one layer, at 8 bytes.\n",
        table(
            [
                *("MB", "all, on", "sealed and shares", "weights, gradients", "all, off"),
                *("messages a pass", "shares, once", "section 5.2"),
            ],
            [
                [
                    _name(row["dataset"]),
                    _mb(sum(row["bytes_on"].values())),
                    _mb(row["bytes_on"].get("sealed", 0) + row["bytes_on"].get("shares", 0)),
                    _mb(row["bytes_on"].get("weights", 0) + row["bytes_on"].get("gradients", 0)),
                    _mb(sum(row["bytes_off"].values())),
                    f"{row['messages']:,}",
                    _mb(row["share_bytes"]),
                    _mb(row["paper_bytes"]),
                ]
                for row in result["rows"]
            ],
        ),
    ]


def _mb(size: float) -> str:
    return f"{size / 1e6:.2f}"


# Growth


def _growth(result: Result, _: Result) -> list[str]:
    settings = result["settings"]
    targets = settings["targets"]
    parts = [
        f"Contextual block models of mean degree {settings['degree']} with {settings['features']} "
        f"features, cut at random into {settings['silos']} silos; FedSage, {settings['rounds']} "
        "rounds, one worker per core; each line is a process of its own. A random cut into ten "
        "leaves a tenth of the edges inside silos; generating, cutting and testing see all.\n"
    ]
    for mode in dict.fromkeys(row["mode"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["mode"] == mode]
        parts += [f"### {mode.capitalize()}\n", _growth_table(rows), _per_million(rows)]
    largest = [row for row in result["rows"] if row["nodes"] == targets["at"]]
    if largest:
        parts += ["### Against the targets\n", _growth_targets(largest, targets)]
    return parts


def _growth_table(rows: Sequence[Row]) -> str:
    return table(
        [
            "nodes",
            "edges",
            "in silos",
            "generate s",
            "cut s",
            "set up s",
            "round s",
            "test s",
            "peak MB",
            "generate MB",
        ],
        [
            [
                f"{row['nodes']:,}",
                f"{row['edges']:,}",
                f"{row['edges_in_silos']:,}",
                f"{row['generate_seconds']:.2f}",
                f"{row['cut_seconds']:.2f}",
                f"{row['set_up_seconds']:.2f}",
                f"{row['round_seconds']:.2f}",
                f"{row['evaluation_seconds']:.2f}",
                f"{row['peak_mb']:.0f}",
                f"{row['generate_mb']:.0f}",
            ]
            for row in rows
        ],
    )


def _per_million(rows: Sequence[Row]) -> str:
    """Constant figures down a column mean linear growth."""
    keys = ("generate_seconds", "cut_seconds", "round_seconds", "evaluation_seconds")
    return "Per million edges of the whole graph (a constant column is linear growth):\n\n" + table(
        ["nodes", "generate s", "cut s", "round s", "test s", "MB above the imports"],
        [
            [
                f"{row['nodes']:,}",
                *(f"{1e6 * row[key] / row['edges']:.2f}" for key in keys),
                f"{1e6 * (row['peak_mb'] - row['import_mb']) / row['edges']:.0f}",
            ]
            for row in rows
        ],
    )


def _growth_targets(rows: Sequence[Row], targets: Row) -> str:
    size = f"{targets['at']:,} nodes"
    checks = []
    for row in rows:
        checks += [
            (
                f"{size}, {row['mode']}: a round",
                row["round_seconds"],
                targets["round"]["seconds"],
                "s",
            ),
            (f"{size}, {row['mode']}: peak", row["peak_mb"], targets["round"]["memory_mb"], "MB"),
        ]
    slowest = max(row["generate_seconds"] for row in rows)
    checks += [
        (f"{size}: generating", slowest, targets["csbm"]["seconds"], "s"),
        (
            f"{size}: peak while generating",
            max(row["generate_mb"] for row in rows),
            targets["csbm"]["memory_mb"],
            "MB",
        ),
    ]
    return table(
        ["", "measured", "target", ""],
        [
            [what, f"{value:,.1f} {unit}", f"< {target:,.0f} {unit}", met(value, target)]
            for what, value, target, unit in checks
        ],
    )


# Start-up and sampling


def _startup(result: Result, _: Result) -> list[str]:
    return [
        f"Wall time of a new process, median of {result['settings']['repeats']}.\n",
        table(
            ["", "seconds", "slowest", "target", ""],
            [
                [
                    f"`{row['what']}`",
                    f"{row['seconds']:.3f}",
                    f"{row['slowest']:.3f}",
                    "" if row["target"] is None else f"< {row['target']}",
                    "" if row["target"] is None else met(row["seconds"], row["target"]),
                ]
                for row in result["rows"]
            ],
        ),
    ]


def _sampling(result: Result, _: Result) -> list[str]:
    settings = result["settings"]
    return [
        f"Drawing {settings['fan_out']} neighbours per node of a graph with {settings['nodes']:,} "
        f"nodes of mean degree {settings['degree']}, one thread; the plain loop calls Python's "
        "`random.sample` and `random.choices` node by node, on neighbour lists made beforehand.\n",
        table(
            ["nodes drawn for", "fedmend, µs/node", "plain loop, µs/node", "ratio"],
            [
                [
                    f"{row['nodes']:,}",
                    f"{row['fedmend_us']:.2f}",
                    f"{row['loop_us']:.2f}",
                    f"{row['ratio']:.1f}",
                ]
                for row in result["rows"]
            ],
        ),
    ]


def _kernels(result: Result, _: Result) -> list[str]:
    return [
        "Whole commands, one thread, each line a process of its own; the same command with every "
        "kernel is the measure, and both take turns. Processor time (user and system, the start of "
        "the program included) as a multiple of it: above 1 the kernel wins. A kernel stays where "
        "it wins 10% or more of some whole run.\n",
        table(
            ["command", "without", "turns", "processor time, s", "x with it", "MB"],
            [
                [
                    f"{row['what']}: `{row['command']}`" if not row["without"] else "",
                    row["without"] or "(with all)",
                    str(row["turns"]),
                    f"{row['cpu']:.2f}",
                    f"{row['cpu_x']:.2f}",
                    f"{row['mb']:.0f}",
                ]
                for row in result["rows"]
            ],
        ),
    ]


# Two source trees


def _before_after(result: Result, _: Result) -> list[str]:
    settings = result["settings"]
    allowed = settings["allowed"]
    return [
        f"Whole commands, one thread, each line a process of its own; {settings['turns']} turns of "
        f"commit {settings['before']} and of this one. Processor time is user and system, the "
        f"program's start included; the ratios are medians of the turns' own, {allowed} is "
        "allowed.\n",
        table(
            ["command", "s before", "s after", "ratio", "MB before", "MB after", "ratio", ""],
            [
                [
                    f"{row['what']}: `{row['command']}`",
                    *(f"{each:.2f}" for each in (*row["cpu"], row["cpu_x"])),
                    *(f"{each:.0f}" for each in row["mb"]),
                    f"{row['mb_x']:.2f}",
                    met(max(row["cpu_x"], row["mb_x"]), allowed),
                ]
                for row in result["rows"]
            ],
        ),
    ]


# Deployment


def _deployment(result: Result, _: Result) -> list[str]:
    settings, rows = result["settings"], result["rows"]
    targets = settings["targets"]
    runs, exchanges, memory, many = (
        [row for row in rows if row["kind"] == kind]
        for kind in ("run", "exchange", "memory", "many")
    )
    return [
        "A server and silos as processes of their own on one machine, mutual TLS over loopback; "
        "beside it the same run in-process. *The same* means: weights equal bit for bit.\n",
        f"### Cora, {settings['silos']} silos, {settings['rounds']} rounds\n",
        "From `submit` to the run's folder, the federation being up (which took "
        f"{runs[0]['seconds_to_connect']:.1f} s: server, silos, connections). The first round is "
        "counted from `submit` too: job processes start, import torch and read their graphs.\n",
        table(
            ["", "first round s", "deployed s", "in-process s", "target s", "", "weights"],
            [
                [
                    _name(row["method"]),
                    f"{row['to_first_round']:.1f}",
                    f"{row['deployed_seconds']:.1f}",
                    f"{row['in_process_seconds']:.1f}",
                    f"< {_deployed_target(row, targets):.0f}",
                    met(row["deployed_seconds"], _deployed_target(row, targets)),
                    "the same" if row["same"] else "**different**",
                ]
                for row in runs
            ],
        ),
        f"The target is {targets['fixed']:.0f} s and {targets['times']:.0f} times in-process.\n",
        "### One exchange\n",
        f"A round of {settings['silos']} silos on graphs of a few nodes, mean of "
        f"{settings['exchanges']}: the message to every silo, a step of almost no work, the reply. "
        "What it takes more than in-process is the deployment's.\n",
        table(
            ["each way", "deployed ms", "in-process ms", "more ms", "weights"],
            [
                [
                    row["what"],
                    _ms(row["step_seconds"]),
                    _ms(row["in_process_step_seconds"]),
                    _ms(row["step_seconds"] - row["in_process_step_seconds"]),
                    "the same" if row["same"] else "**different**",
                ]
                for row in exchanges
            ],
        ),
        "### Memory\n",
        "The most each process held (resident, shared libraries counted in each) in the first run "
        "above. *command* is `fedmend server` or `fedmend silo`, *FLARE* its long-running child, "
        "*job* the process of the run.\n",
        table(["process", "MB"], [[row["what"], f"{row['mb']:.0f}"] for row in memory]),
        f"### {settings['many']} silos\n",
        *(
            f"{row['silos']} silos and a server on {result['machine']['cores']} cores: connected "
            f"after {row['seconds_to_connect']:.0f} s; FedAvg on Cora, {row['rounds']} rounds, "
            f"{row['deployed_seconds']:.0f} s from `submit` to the folder, {row['lost']} silos "
            f"lost, weights {'the same' if row['same'] else '**different**'}; all processes "
            f"together held at most {row['memory_mb'] / 1000:.1f} GB.\n"
            for row in many
        ),
    ]


def _deployed_target(row: Row, targets: Row) -> float:
    return float(targets["fixed"] + targets["times"] * row["in_process_seconds"])


Section = Callable[[Result, Result], list[str]]
SECTIONS: dict[str, tuple[str, Section]] = {
    "mending_cost": ("What mending costs", _mending_cost),
    "deep_neighbours": ("FedDEP: what deep neighbours are worth", _deep_neighbours),
    "fedggr_cost": ("FedGGR: what a round costs", _fedggr),
    "speed": ("Speed", _speed),
    "hifgl_speed": ("HiFGL: speed, memory and bytes", _hifgl_speed),
    "growth": ("Growth", _growth),
    "startup": ("Start-up", _startup),
    "sampling": ("Neighbour sampling", _sampling),
    "before_after": ("Before the redesign and after it", _before_after),
    "kernels": ("Kernels", _kernels),
    "deployment": ("Deployment", _deployment),
}
