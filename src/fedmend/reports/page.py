"""A report: runs as one HTML file that opens offline and asks nobody for anything.

Everything in it may come from files of others, so every text is escaped, and the page forbids
itself every request (its content security policy), code from elsewhere and `eval`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedmend.files import write_bytes
from fedmend.reports import charts, guards, vega
from fedmend.reports.comparing import holm, paired
from fedmend.reports.summary import summarise_runs
from fedmend.reports.tables import figure, human_bytes
from fedmend.reports.views import RunView, generated_spread, same_group
from fedmend.runs.record import Record

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


ALIKE = 0.2
"""Below this share of the true neighbours' spread, generated ones are said to be alike."""
MOST_DRAWINGS = 3
"""Drawings of cut graphs in one page: each may take a tenth of a megabyte."""


class Page:
    """Collects HTML and the charts it refers to."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.charts: dict[str, charts.Spec] = {}

    def add(self, *parts: str) -> None:
        self.parts += parts

    def chart(
        self, name: str, spec: charts.Spec, *, curve: bool = False, many: bool = False
    ) -> str:
        """A place for a chart; a curve can be read by keyboard, one of many marks is a canvas."""
        self.charts[name] = spec
        says = _t(spec["description"])
        title = f'<div class="card"><h4>{_t(spec["title"])}</h4>'
        if not curve:
            return (
                f'{title}<div class="chart" data-chart="{name}" role="figure" '
                f'data-renderer="{"canvas" if many else "svg"}" '
                f'aria-label="{says}"></div></div>'
            )
        return (
            f'{title}<div class="chart" data-chart="{name}" data-curve="yes" '
            f'tabindex="0" role="figure" aria-label="{says}; arrow keys read it out" '
            f'aria-describedby="{name}-readout"></div>'
            f'<div class="readout" id="{name}-readout" aria-live="polite"></div></div>'
        )


def _t(text: Any) -> str:
    return html.escape(str(text), quote=True)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Cells are escaped here."""
    head = "".join(f'<th scope="col">{_t(each)}</th>' for each in heads)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{_t(row[0])}</th>'
        + "".join(f"<td>{_t(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    said = f"<caption>{_t(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{_t(caption or heads[0])}">'
        f"<table>{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def build(views: Sequence[RunView]) -> tuple[str, dict[str, charts.Spec]]:
    """The page of these runs, and its charts by name."""
    page = Page()
    _headline(page, views)
    _curves(page, views)
    _costs(page, views)
    _splits(page, views)
    _runs(page, views)
    return _whole(page, views), page.charts


def write(path: Path, text: str) -> None:
    """Write the page completely or not at all."""
    write_bytes(path, text.encode())


def write_figures(
    folder: Path, views: Sequence[RunView], specs: Mapping[str, charts.Spec]
) -> list[Path]:
    """Every chart as SVG and PNG."""
    stills = dict(specs)
    for number, (phase, metric) in enumerate(charts.metrics_of(views)):
        stills[f"curve-{number}"] = charts.curves(views, phase, metric, legend=True)
    written = []
    for name, spec in stills.items():
        for suffix, data in (("svg", vega.svg(spec).encode()), ("png", vega.png(spec))):
            path = folder / f"{name}.{suffix}"
            write_bytes(path, data)
            written.append(path)
    return written


def _headline(page: Page, views: Sequence[RunView]) -> None:
    groups = same_group(views)
    page.add("<h1>fedmend report</h1>")
    runs = f"{len(views)} runs of {len(groups)} settings" if len(views) > 1 else "One run"
    page.add(f'<p class="soft">{_t(runs)}.</p>', '<section id="headline"><h2>Result</h2>')
    by_data: dict[str, dict[str, list[RunView]]] = {}
    for name, group in groups.items():
        by_data.setdefault(group[0].where, {})[name] = group
    for where, here in by_data.items():
        _result_table(page, where, here)
    page.add("</section>")


def _result_table(page: Page, where: str, groups: Mapping[str, Sequence[RunView]]) -> None:
    records = {name: [view.record for view in group] for name, group in groups.items()}
    some = next(iter(records.values()))[0]
    share = some.data.missing_share
    cut = "unknown" if share is None else f"{share:.1%}"
    skew = "unknown"
    if some.data.per_silo:
        skew = f"{guards.label_skew(some):.2f} (0: all silos alike; towards 1: different classes)"
    page.add(
        f"<h3>{_t(where)}</h3><p>Edges between silos: {_t(cut)}. Label skew: {_t(skew)}. "
        f"Tested by {_t(some.evaluation)}.</p>"
    )
    for warning in guards.warnings(records):
        page.add(f'<p class="warning"><strong>Do not compare as is:</strong> {_t(warning)}.</p>')
    base = next(iter(records))
    tests = holm(
        [
            test
            for name, runs in records.items()
            if name != base and (test := paired(name, runs, base, records[base]))
        ]
    )
    by_row = {test.row: test for test in tests}
    rows = []
    for name, runs in records.items():
        summary = summarise_runs(runs)
        test = by_row.get(name)
        against = p = ""
        if test is not None:
            width = f" ± {test.difference.interval:.4f}" if test.difference.count > 1 else ""
            against = f"{test.difference.mean:+.4f}{width}"
            p = "" if test.adjusted is None else f"{test.adjusted:.3f}"
        rows.append(
            [
                name,
                str(len(runs)),
                figure(summary.accuracy),
                figure(summary.macro_f1),
                *([against, p] if len(records) > 1 else []),
                f"{summary.seconds.mean:.1f} s",
                "all raw data" if summary.pooled else human_bytes(summary.bytes_up),
            ]
        )
    extra = [f"against {base}", "p"] if len(records) > 1 else []
    heads = ["method", "seeds", "test accuracy", "macro-F1", *extra]
    heads += ["time", "left the silos"]
    page.add(_table(heads, rows, f"Results on {where}"))
    page.add(
        '<p class="soft">± is the 95% interval over seeds. Differences are paired by seed and '
        "split; p is of the paired t test, Holm-adjusted. Selection used validation nodes only.</p>"
    )


def _curves(page: Page, views: Sequence[RunView]) -> None:
    metrics = charts.metrics_of(views)
    once = charts.metrics_of(views, once=True)
    if not metrics and not once:
        return
    page.add('<section id="rounds"><h2>Round by round</h2>')
    if len(views) > 1:
        page.add("<fieldset><legend>Runs shown</legend>")
        for i, (view, style) in enumerate(zip(views, charts.line_styles(views), strict=True)):
            dashes = " ".join(map(str, style[1]))
            page.add(
                f'<label><input type="checkbox" checked data-run="{charts.curve_key(i)}" '
                f'data-name="{_t(view.label)}">'
                '<svg class="swatch" viewBox="0 0 28 6" aria-hidden="true">'
                f'<path d="M0 3h28" stroke="{style[0]}" stroke-width="4" '
                f'stroke-dasharray="{dashes}"/></svg>{_t(view.label)}</label>'
            )
        page.add(
            '<div><button type="button" data-show="all">all</button> '
            '<button type="button" data-show="none">none</button></div></fieldset>'
        )
    page.add('<div class="cards">')
    for number, (phase, metric) in enumerate(metrics):
        page.add(page.chart(f"curve-{number}", charts.curves(views, phase, metric), curve=True))
    page.add("</div>")
    if once:
        page.add(_noted_once(views, once))
    page.add("</section>")


def _noted_once(views: Sequence[RunView], metrics: Sequence[tuple[str, str]]) -> str:
    """A table of what has one value per run: a curve of one point would show nothing."""
    rows = []
    for view in views:
        cells = []
        for phase, metric in metrics:
            rounds = view.record.rounds.get(phase, {}).values()
            noted = next((each[metric] for each in rounds if metric in each), None)
            cells.append("" if noted is None else f"{noted:,.6g}")
        if any(cells):
            rows.append([view.label, *cells])
    return _table(
        ["run", *(charts.title_of(*pair) for pair in metrics)], rows, "Noted once per run"
    )


def _costs(page: Page, views: Sequence[RunView]) -> None:
    page.add('<section id="costs"><h2>Time and bytes</h2><div class="cards">')
    page.add(page.chart("time", charts.time_per_phase(views)))
    if any(view.ledger.total() for view in views):
        page.add(page.chart("bytes", charts.bytes_per_phase(views)))
    page.add("</div></section>")


def _splits(page: Page, views: Sequence[RunView]) -> None:
    by_hash: dict[str, list[RunView]] = {}
    for view in views:
        by_hash.setdefault(view.hash, []).append(view)
    page.add('<section id="silos"><h2>The silos</h2>')
    for number, (split, there) in enumerate(by_hash.items()):
        record = there[0].record
        title = there[0].where
        if record.split.seed is not None:
            title += f", split seed {record.split.seed}"
        opened = " open" if number == 0 else ""
        page.add(f'<details{opened}><summary>{_t(title)}</summary><div class="cards">')
        if record.data.per_silo:
            page.add(page.chart(f"labels-{number}", charts.label_shares(there[0])))
        drawing = next((v.retraced.drawing for v in there if v.retraced.drawing), None)
        if drawing is not None and number < MOST_DRAWINGS:
            page.add(page.chart(f"graph-{number}", charts.drawing(drawing), many=True))
        page.add("</div>")
        if drawing is None:
            page.add(f'<p class="soft">No drawing: {_t(there[0].retraced.note)}</p>')
        page.add(_silo_table(record), f"<p>Split hash <code>{_t(split)}</code></p></details>")
    page.add("</section>")


def _silo_table(record: Record) -> str:
    silos, missing = record.data.per_silo, record.data.missing_links
    if not silos:
        return f"<p>Silos, each known to itself alone: {_t(', '.join(record.silos))}.</p>"
    keys = ("nodes", "edges", "train_nodes", "val_nodes", "test_nodes")
    rows = [[silo.name, *(f"{getattr(silo, key):,}" for key in keys)] for silo in silos[:50]]
    said = "Silos" if missing is None else f"Missing links between silos: {missing:,}"
    return _table(["silo", "nodes", "edges", "train", "val", "test"], rows, said)


def _runs(page: Page, views: Sequence[RunView]) -> None:
    page.add('<section id="runs"><h2>Run by run</h2>')
    for number, view in enumerate(views):
        record = view.record
        opened = " open" if number == 0 else ""
        page.add(f"<details{opened}><summary>{_t(view.label)}</summary>")
        for sentence in record.said:
            page.add(f"<p>{_t(sentence)}</p>")
        page.add("<h3>What left each silo</h3>")
        if record.pooled:
            page.add("<p>Everything: all raw data was pooled in one place.</p>")
        else:
            page.add('<div class="cards">')
            page.add(page.chart(f"up-{number}", charts.exchanged(view, "up")))
            page.add(page.chart(f"down-{number}", charts.exchanged(view, "down")))
            page.add("</div>", _bytes_table(view))
        _privacy(page, record)
        _generator(page, number, record)
        page.add("<h3>Confusion</h3>")
        if view.retraced.confusion is not None:
            names = record.label_names
            spec = charts.confusion(names, view.retraced.confusion)
            page.add(f'<div class="cards">{page.chart(f"confusion-{number}", spec)}</div>')
        else:
            page.add(f'<p class="soft">None: {_t(view.retraced.note)}</p>')
        page.add(_settings(view), "</details>")
    page.add("</section>")


def _bytes_table(view: RunView) -> str:
    sums = view.ledger.by("silo", "kind", "direction")
    silos = sorted({silo for silo, _, _ in sums})[:50]
    kinds = sorted({kind for _, kind, _ in sums})
    rows = [
        [
            silo,
            *(
                " / ".join(human_bytes(sums.get((silo, kind, way), 0)) for way in ("up", "down"))
                for kind in kinds
            ),
        ]
        for silo in silos
    ]
    return _table(["silo", *kinds], rows, "Bytes that left / came to each silo, by kind")


_BOUNDS = {
    "one_hop": "one hop, one epoch",
    "composed": "composed over hops and epochs",
    "sampled": "after the Bernoulli sampler",
}


def _privacy(page: Page, record: Record) -> None:
    """Every account that the run has."""
    for account in record.privacy:
        page.add(f"<h3>Privacy: {_t(account.mechanism)}</h3>", f"<p>{_t(account.sentence)}</p>")
        holds = account.epsilon is not None
        facts = {
            "per": account.per,
            "epsilon": f"{account.epsilon:.4g}" if holds else "no guarantee",
            "delta": _delta(account.delta, account.details) if holds else "no guarantee",
            "uses": f"{account.uses:,}",
        }
        page.add(_table(list(facts), [list(facts.values())], "What it is worth"))
        published, recomputed = (account.details.get(each) for each in _COLUMNS)
        if isinstance(published, Mapping) and isinstance(recomputed, Mapping):
            page.add(_theorem(published, recomputed))
        else:
            page.add(_chosen(account.details))
        settings = account.details.get("settings")
        if isinstance(settings, Mapping):
            page.add(_chosen(settings))


_COLUMNS = ("published", "recomputed")


def _theorem(*columns: Mapping[str, Any]) -> str:
    """FedDEP's theorem, bound by bound: what a file holds of it may be anything."""
    rows = []
    for key, name in _BOUNDS.items():
        cells = []
        for column in columns:
            bound = column.get(key)
            bound = bound if isinstance(bound, Mapping) else {}
            epsilon = bound.get("epsilon")
            cells += ["no guarantee" if epsilon is None else _number(epsilon)]
            cells += ["no guarantee" if epsilon is None else _delta(bound.get("delta"), bound)]
        rows.append([name, *cells])
    heads = ["", "epsilon, published", "delta", "epsilon, recomputed", "delta"]
    return _table(heads, rows, "FedDEP's theorem 3.1 as printed, and as recomputed")


def _chosen(settings: Mapping[str, Any]) -> str:
    words = ", ".join(f"{key}={_number(value)}" for key, value in settings.items())
    return f'<p class="soft">For {_t(words)}.</p>' if words else ""


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _delta(delta: Any, more: Mapping[str, Any]) -> str:
    rest = more.get("log10_one_minus_delta")
    near = isinstance(delta, int | float) and delta > 0.999
    if near and isinstance(rest, int | float) and rest < -3:
        return f"1 − 10^{rest:.1f}"
    return _number(delta)


def _generator(page: Page, number: int, record: Record) -> None:
    made = record.generator
    if made is None:
        return
    page.add('<h3>The neighbour generator</h3><div class="cards">')
    page.add(page.chart(f"generator-{number}", charts.predicted_counts(made.predicted, made.true)))
    if made.projection is not None:
        page.add(page.chart(f"projection-{number}", charts.projection(made.projection)))
    page.add("</div>")
    spread = None if made.projection is None else generated_spread(made.projection)
    if spread is not None:
        alike = ": they are much alike, and tell little of the node they belong to"
        page.add(
            f'<p class="soft">Generated neighbours vary {spread:.2f} times as much as true ones '
            f"along the axes drawn{alike if spread < ALIKE else ''}.</p>"
        )


def _settings(view: RunView) -> str:
    record = view.record
    facts = {
        "method": record.method,
        "seed": record.seed,
        "dataset": record.dataset,
        "evaluation": record.evaluation,
        "split": record.split.how,
        "split seed": record.split.seed,
        "split hash": record.split.hash,
        "run": record.engine.run,
        "finished": record.measured.finished,
        **record.settings,
        **{f"version of {name}": number for name, number in record.versions.items()},
    }
    rows = "".join(
        f'<tr><th scope="row">{_t(key)}</th><td class="left"><code>{_t(value)}</code></td></tr>'
        for key, value in facts.items()
        if value is not None
    )
    return f'<h3>Settings</h3><div class="wide" tabindex="0"><table>{rows}</table></div>'


def _asset(name: str) -> str:
    return files("fedmend.reports").joinpath("assets", name).read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element, whatever texts are in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda sign: f"\\u{ord(sign.group()):04x}", text)


def _whole(page: Page, views: Sequence[RunView]) -> str:
    methods = ", ".join(dict.fromkeys(view.record.method for view in views))
    links = {"headline": "Result", "rounds": "Rounds", "costs": "Time and bytes"}
    links |= {"silos": "Silos", "runs": "Run by run"}
    nav = "".join(f'<li><a href="#{key}">{name}</a></li>' for key, name in links.items())
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>fedmend: {_t(methods)}</title>",
            f'<link rel="icon" href="data:,"><style>{_asset("page.css")}</style></head><body>',
            '<a class="skip" href="#headline">Skip to the result</a>',
            f'<nav aria-label="Parts of this page"><ul>{nav}</ul></nav><main>',
            *page.parts,
            "</main>",
            f'<script type="application/json" id="charts">{embedded(page.charts)}</script>',
            f"<script>{vega.code()}</script>",
            f"<script>{_asset('page.js')}</script>",
            "</body></html>\n",
        ]
    )
