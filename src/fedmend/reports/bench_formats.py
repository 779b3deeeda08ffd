"""A suite's blocks for the terminal, Markdown, CSV, LaTeX and HTML: the same cells in every one."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group
from rich.text import Text

from fedmend.evaluation.summary import Share, Summary
from fedmend.reports.benches import Block, Line
from fedmend.reports.layouts import FirstThatFits, across_or_below

SURE = 0.05
"""Below this adjusted p a row counts as different from the base row."""

MARKS = {"above": "▲", "within": "≈", "below": "▼", "": ""}

HEADS = (
    *("row", "ours", "published", "difference", "", "against {base}", "p", "recovered"),
    *("seconds", "left"),
)


def _heads(block: Block) -> list[str]:
    return [head.format(base=block.base) for head in HEADS]


def _texts(line: Line) -> list[str]:
    name = _name(line)
    if line.accuracy is None:
        state = f"failed ({line.failed})" if line.failed else ("no tests" if line.seeds else "...")
        return [name, state, *[""] * (len(HEADS) - 2)]
    beside, test = line.published, line.paired
    ours = _figure(line.accuracy) + (f" ({line.failed} failed)" if line.failed else "")
    published = ["", "", ""]
    if beside is not None:
        std = "" if beside.published_std is None else f" ± {beside.published_std:.4f}"
        width = "" if beside.interval is None else f" ± {beside.interval:.4f}"
        published = [
            f"{beside.published:.4f}{std}",
            f"{beside.difference:+.4f}{width}",
            f"{MARKS[beside.mark]} {beside.mark}".strip(),
        ]
    against = ["", ""]
    if test is not None:
        width = f" ± {test.difference.interval:.4f}" if test.difference.count > 1 else ""
        against = [
            f"{test.difference.mean:+.4f}{width}",
            "" if test.adjusted is None else _p(test.adjusted),
        ]
    cost = f"{line.seconds or 0.0:.1f}", line.sent
    return [name, ours, *published, *against, _recovered(line.recovered), *cost]


def _name(line: Line) -> str:
    return f"{line.label}*" if line.baseline else line.label


def _recovered(share: Share | str | None) -> str:
    if isinstance(share, Share):
        return f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"
    return share or ""


def _figure(summary: Summary) -> str:
    width = f" ± {summary.interval:.4f}" if summary.count > 1 else ""
    return f"{summary.mean:.4f}{width}"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _columns(block: Block) -> list[int]:
    """The columns that say something: without published figures theirs are left out."""
    texts = [_texts(line) for line in block.lines]
    return [i for i in range(len(HEADS)) if i < 2 or any(row[i] for row in texts)]


@dataclass(frozen=True)
class Overview:
    """Blocks side by side: their rows' mean accuracies, a column per block."""

    heads: list[str]
    rows: list[list[str]]


def overviews(blocks: Sequence[Block], *, by_dataset: bool = False) -> list[Overview]:
    """The blocks of one split in one table, or of one split and dataset; none where it is alone."""
    groups: dict[tuple[str, ...], list[Block]] = {}
    for block in blocks:
        place = (block.split, block.dataset) if by_dataset else (block.split,)
        groups.setdefault(place, []).append(block)
    return [_overview(group) for group in groups.values() if len(group) > 1]


def _overview(blocks: Sequence[Block]) -> Overview:
    lines = [{line.label: line for line in block.lines} for block in blocks]
    labels = {label: line for by_label in lines for label, line in by_label.items()}
    heads = [f"{block.dataset}, {block.silos} silos" for block in blocks]
    rows = [
        [_name(line), *(_at_a_glance(by_label.get(label)) for by_label in lines)]
        for label, line in labels.items()
    ]
    return Overview([blocks[0].split, *heads], rows)


def _at_a_glance(line: Line | None) -> str:
    """A mean, and whether it differs from the base row's."""
    if line is None or line.accuracy is None:
        return ""
    test = line.paired
    sure = test is not None and test.adjusted is not None and test.adjusted < SURE
    sign = (" ↑" if test.difference.mean > 0 else " ↓") if test and sure else ""
    return f"{line.accuracy.mean:.4f}{sign}"


def notes(blocks: Sequence[Block]) -> list[str]:
    """What the columns mean."""
    found = []
    lines = [line for block in blocks for line in block.lines]
    if any(line.accuracy and line.accuracy.count > 1 for line in lines):
        found.append("ours: mean test accuracy ± 95% interval over seeds.")
    if any(line.published for line in lines):
        found.append(
            "published: mean ± standard deviation as printed; difference: ours minus published ± "
            "95% interval (Welch), marked ▲ above, ≈ within or ▼ below it."
        )
    if any(line.paired for line in lines):
        found.append(
            "against: paired by seed and split ± 95% interval; p: paired t test, Holm-adjusted "
            "within the table."
        )
    if overviews(blocks) and any(line.paired for line in lines):
        bases = ", ".join(sorted({block.base for block in blocks}))
        found.append(f"↑ ↓: above or below {bases} with p < {SURE}.")
    ends = sorted({line.between for line in lines if line.between and line.recovered})
    if ends:
        named = "; ".join(f"{low} to {high}" for low, high in ends)
        found.append(
            f"recovered: how far a row goes on the way from one row to another ({named}), with "
            "Fieller's 95% interval; undefined where the way's own interval contains zero."
        )
    if any(line.baseline for line in lines):
        found.append("*: sees all training nodes' features in one place and no edge.")
    found.append(
        "label skew: mean distance (total variation) of the silos' label shares from the whole's. "
        "All selection is by validation nodes."
    )
    return found


def terminal(block: Block) -> Group:
    """For the terminal; warnings in front, since they decide whether to read on."""
    heads = ["row", "ours", "published", "difference", f"against {block.base}", "recovered", "cost"]
    rows = [_stacked(line) for line in block.lines]
    shown = [i for i in range(len(heads)) if i < 2 or any(row[i] for row in rows)]
    colours = {"▲": "green", "▼": "red"}
    coloured = [[Text(row[i], style=colours.get(row[i][:1], "")) for i in shown] for row in rows]
    parts: list[Any] = [Text(block.title, style="bold"), Text(block.about, style="dim")]
    parts += [Text(f"Warning: {each}", style="bold red") for each in block.warnings]
    table = across_or_below([heads[i] for i in shown], coloured, lines=box.SIMPLE_HEAD)
    return Group(*parts, table)


def terminal_overviews(blocks: Sequence[Block]) -> list[FirstThatFits]:
    """For the terminal, a table per dataset."""
    colours = {"↑": "green", "↓": "red"}
    return [
        across_or_below(
            each.heads,
            [[Text(text, style=colours.get(text[-1:], "")) for text in row] for row in each.rows],
            lines=box.SIMPLE_HEAD,
        )
        for each in overviews(blocks, by_dataset=True)
    ]


def _stacked(line: Line) -> list[str]:
    """A row whose figures stand above their intervals, so that it fits 80 columns."""
    name, ours, published, difference, mark, against, p, won, seconds, sent = _texts(line)
    two = [text.replace(" ±", "\n±") for text in (ours, published, difference, against)]
    two[2] = f"{mark[:1]} {two[2]}".strip()
    if p:
        figure, _, interval = two[3].partition("\n")
        two[3] = f"{figure}\n{interval}\np {p}"
    won = won.replace(" (", "\n(").replace("to ", "to\n")
    sent = sent.replace(" data", "\ndata")
    return [name, *two, won, f"{seconds} s\n{sent}" if seconds else ""]


def markdown(blocks: Sequence[Block]) -> str:
    """Pipe tables; the overview first."""
    parts = []
    for each in overviews(blocks):
        parts += [*_pipe_table(each.heads, each.rows), ""]
    for block in blocks:
        heads, columns = _heads(block), _columns(block)
        rows = [[_texts(line)[i] for i in columns] for line in block.lines]
        parts.append(f"## {block.title}\n\n{_capital(block.about)}.\n")
        parts += [f"**Warning:** {each}.\n" for each in block.warnings]
        parts += [*_pipe_table([heads[i] for i in columns], rows), ""]
    parts += [f"- {note}" for note in notes(blocks)]
    return "\n".join(parts) + "\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _pipe_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = ["---", *["---:"] * (len(heads) - 1)]
    escaped = [[text.replace("|", "\\|") for text in row] for row in rows]
    return [f"| {' | '.join(texts)} |" for texts in (heads, line, *escaped)]


CSV_COLUMNS = (
    *("dataset", "split", "silos", "row", "method", "seeds", "failed", "accuracy", "std"),
    *("interval", "macro_f1", "published", "published_std", "difference", "difference_interval"),
    *("mark", "base", "against_base", "against_base_interval", "p", "p_adjusted", "seconds"),
    *("recovered", "recovered_low", "recovered_high"),
    *("sent", "evaluation", "ratio", "missing_share", "label_skew", "warnings"),
)


def to_csv(blocks: Sequence[Block]) -> str:
    """One line per row of every block, all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for block in blocks:
        for line in block.lines:
            ours, f1, beside, test = line.accuracy, line.macro_f1, line.published, line.paired
            values = [
                *(block.dataset, block.split, block.silos, line.label, line.method),
                *(len(line.seeds), line.failed),
                *((ours.mean, ours.std, ours.interval) if ours else (None,) * 3),
                f1.mean if f1 else None,
                *(
                    (
                        beside.published,
                        beside.published_std,
                        beside.difference,
                        beside.interval,
                        beside.mark,
                    )
                    if beside
                    else (None,) * 5
                ),
                block.base,
                *(
                    (test.difference.mean, test.difference.interval, test.p, test.adjusted)
                    if test
                    else (None,) * 4
                ),
                line.seconds,
                *(
                    (won.value, won.low, won.high)
                    if isinstance(won := line.recovered, Share)
                    else (won, None, None)
                ),
                *(line.sent, block.evaluation, block.ratio),
                *(block.missing_share, block.label_skew, "; ".join(block.warnings)),
            ]
            writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()


_TEX = {
    **{"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_"},
    **{"{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "▲": r"$\uparrow$", "▼": r"$\downarrow$", "≈": r"$\approx$", "<": "$<$"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)


def latex(blocks: Sequence[Block]) -> str:
    """A table environment per block; needs booktabs."""
    parts = ["% \\usepackage{booktabs}"]
    for block in blocks:
        heads, columns = _heads(block), _columns(block)
        parts += [r"\begin{table}", r"\centering"]
        parts.append(rf"\caption{{{_tex(block.title)}: {_tex(block.about)}.}}")
        parts.append(rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}")
        parts += [r"\toprule", " & ".join(_tex(heads[i]) for i in columns) + r" \\", r"\midrule"]
        parts += [
            " & ".join(_tex(_texts(line)[i]) for i in columns) + r" \\" for line in block.lines
        ]
        parts += [r"\bottomrule", r"\end{tabular}"]
        parts += [f"% Warning: {each}" for each in block.warnings]
        parts += [r"\end{table}", ""]
    parts += [f"% {note}" for note in notes(blocks)]
    return "\n".join(parts) + "\n"


_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:auto;padding:1rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.above{color:#0a7d33}.below{color:#c62828}.warning{color:#c62828;font-weight:600}
@media(prefers-color-scheme:dark){body{background:#14171a;color:#e6e6e6}
.above{color:#5fd38a}.below,.warning{color:#ff8a80}}
"""


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """One page with all tables, no script and no request."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for each in overviews(blocks):
        parts += _html_table(each.heads, each.rows)
    for block in blocks:
        heads, columns = _heads(block), _columns(block)
        parts.append(f"<h2>{html.escape(block.title)}</h2>")
        parts.append(f"<p>{html.escape(_capital(block.about))}.</p>")
        parts += [f'<p class="warning">Warning: {html.escape(w)}.</p>' for w in block.warnings]
        rows = [[_texts(line)[i] for i in columns] for line in block.lines]
        marks = [line.published.mark if line.published else "" for line in block.lines]
        parts += _html_table([heads[i] for i in columns], rows, marks)
    parts.append("<ul>" + "".join(f"<li>{html.escape(n)}</li>" for n in notes(blocks)) + "</ul>")
    return "\n".join(parts) + "</body></html>\n"


def _html_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[str] | None = None
) -> list[str]:
    cells = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads)
    parts = [f'<div class="wide" tabindex="0"><table><thead><tr>{cells}</tr></thead>']
    for mark, row in zip(marks or [""] * len(rows), rows, strict=True):
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in row)
        parts.append(f'<tr class="{mark}">{cells}</tr>')
    return [*parts, "</table></div>"]
