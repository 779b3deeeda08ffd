"""Runs as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from fedmend.data.partition import PartitionStatistics
from fedmend.evaluation.summary import Summary
from fedmend.reports.layouts import (
    FirstThatFits,
    across_or_below,
    figures_table,
    one_below_the_other,
)
from fedmend.reports.summary import MethodSummary, paired_difference, summarise_runs
from fedmend.runs.record import Figures

MOST_SILOS = 12
"""With more silos than this, a table shows the extremes and the total instead of every one."""


def human_bytes(count: float) -> str:
    """`3.1 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def figure(summary: Summary | None) -> str:
    """`0.861 ± 0.004` (95% interval), or the figure alone where there is one seed."""
    if summary is None:
        return "no test nodes"
    interval = f" ± {summary.interval:.4f}" if summary.count > 1 else ""
    return f"{summary.mean:.4f}{interval}"


def sent(summary: MethodSummary) -> str:
    """The bytes that left the silos; for pooled methods, words."""
    return "all raw data" if summary.pooled else human_bytes(summary.bytes_up)


def split_words(run: Figures) -> str:
    """Dataset and split of a run in a few words."""
    data = run.data
    share = data.missing_share
    cut = "" if share is None else f", {share:.1%} of the edges cut"
    name = run.dataset or "own graph"
    return f"{name}, {data.silos} silos ({run.split.how}{cut}), {run.evaluation}"


def headline(runs: Sequence[Figures]) -> Text:
    """The result of one method in a few lines."""
    summary = summarise_runs(runs)
    seeds = f" over {len(runs)} seeds (95% interval)" if len(runs) > 1 else ""
    lines = [
        f" on {split_words(runs[0])}",
        f"  accuracy {figure(summary.accuracy)}   macro-F1 {figure(summary.macro_f1)}{seeds}",
        f"  {summary.seconds.mean:.1f} s, left the silos: {sent(summary)}, "
        f"came to them: {'nothing' if summary.pooled else human_bytes(summary.bytes_down)}",
    ]
    return Text.assemble((summary.method, "bold"), "\n".join(lines))


def what_left(run: Figures) -> FirstThatFits | str:
    """The table "what left each silo" of one run, by kind of content."""
    if run.pooled:
        return "What left each silo: everything. All raw data was pooled in one place."
    left: Mapping[str, Mapping[str, int]] = run.bytes.left_by_silo
    kinds = sorted({kind for each in left.values() for kind in each})
    title = f"What left each silo (seed {run.seed})"
    totals = {silo: sum(each.values()) for silo, each in left.items()}
    shown = list(left)
    caption = None
    if len(shown) > MOST_SILOS:
        by_size = sorted(shown, key=lambda silo: (totals[silo], silo))
        shown = [by_size[0], by_size[len(by_size) // 2], by_size[-1]]
        caption = f"least, middle and most of {len(left)} silos"
    rows = [
        [silo, *(human_bytes(left[silo].get(kind, 0)) for kind in kinds), human_bytes(totals[silo])]
        for silo in shown
    ]
    if len(left) > 1:
        sums = [human_bytes(sum(each.get(kind, 0) for each in left.values())) for kind in kinds]
        rows.append([f"all {len(left)}", *sums, human_bytes(sum(totals.values()))])
    heads = ["silo", *kinds, "total"]
    down = figures_table(heads, title=title, caption=caption)
    for i, row in enumerate(rows):
        if i == len(shown):
            down.add_section()
        down.add_row(*row)
    across = figures_table(["", *(row[0] for row in rows)], title=title, caption=caption)
    for i, head in enumerate(heads[1:], start=1):
        if head == "total":
            across.add_section()
        across.add_row(head, *(row[i] for row in rows))
    narrow = one_below_the_other(heads, rows, title=title, caption=caption)
    return FirstThatFits([down, across, narrow])


def comparison(found: Mapping[str, Sequence[Figures]]) -> FirstThatFits:
    """Methods side by side; the difference is to the first one, paired by seed and split."""
    base_name, base = next(iter(found.items()))
    seeds = len(base)
    title = split_words(base[0]) + (f", {seeds} seeds" if seeds > 1 else "")
    caption = None
    if seeds > 1:
        caption = "± is the 95% interval over seeds; differences are paired by seed and split"
    heads = ["method", "accuracy", "macro-F1"]
    if len(found) > 1:
        heads.append(f"against {base_name}")
    heads += ["seconds", "left the silos"]
    rows = []
    for name, runs in found.items():
        summary = summarise_runs(runs)
        row = [name, figure(summary.accuracy), figure(summary.macro_f1)]
        if len(found) > 1:
            row.append("" if name == base_name else _difference(runs, base))
        rows.append([*row, f"{summary.seconds.mean:.1f}", sent(summary)])
    two_lines = {f"against {base_name}": f"against\n{base_name}", heads[-1]: "left the\nsilos"}
    stacked = [[text.replace(" ±", "\n±") for text in row] for row in rows]
    return FirstThatFits(
        [
            figures_table(heads, rows, title=title, caption=caption),
            figures_table(
                [two_lines.get(each, each) for each in heads], stacked, title=title, caption=caption
            ),
            one_below_the_other(heads, rows, title=title, caption=caption),
        ]
    )


def _difference(runs: Sequence[Figures], base: Sequence[Figures]) -> str:
    difference = paired_difference(runs, base)
    if difference is None:
        return "not comparable"
    interval = f" ± {difference.interval:.4f}" if difference.count > 1 else ""
    return f"{difference.mean:+.4f}{interval}"


def partition_table(statistics: PartitionStatistics) -> FirstThatFits:
    """A cut graph: a row per silo."""
    heads = ["silo", "nodes", "edges", "train", "val", "test", "classes"]
    rows = []
    shown = statistics.per_silo[:MOST_SILOS]
    for silo in shown:
        classes = sum(count > 0 for count in silo.labels.values())
        counts = (silo.nodes, silo.edges, silo.train_nodes, silo.val_nodes, silo.test_nodes)
        rows.append([silo.name, *map(str, counts), f"{classes} of {len(silo.labels)}"])
    if len(shown) < len(statistics.per_silo):
        rows.append(["...", *[""] * 6])
    return across_or_below(heads, rows, title="Silos")


def partition_row(statistics: PartitionStatistics) -> str:
    """The papers' table 1 row."""
    row = (
        f"M={statistics.silos}  |V_i|={statistics.mean_nodes:.0f}  "
        f"|E_i|={statistics.mean_edges:.0f}"
    )
    if statistics.missing_links is None or statistics.missing_share is None:
        return f"{row}  missing links unknown"
    return f"{row}  ΔE={statistics.missing_links}  ΔE/|E|={statistics.missing_share:.4f}"


def demo_sentence(found: Mapping[str, Sequence[Figures]]) -> str:
    """What local, fedsage and global side by side show, in words made from their figures."""
    score = {name: summarise_runs(runs).accuracy for name, runs in found.items()}
    local, together, pooled = score["local"], score["fedsage"], score["global"]
    if local is None or together is None or pooled is None:
        return "Nothing was tested."
    gain = 100 * (together.mean - local.mean)
    gap = 100 * (pooled.mean - together.mean)
    distance = f"{gap:.1f} points below" if gap >= 0.05 else "level with"
    if gap <= -0.05:
        distance = f"{-gap:.1f} points above"
    verb = "gains" if gain >= 0 else "loses"
    return (
        f"Training together {verb} {abs(gain):.0f} points over training alone and ends {distance} "
        "pooling everything; no node, feature or edge left a silo, only weights and counts."
    )
