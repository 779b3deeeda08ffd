"""The charts of a report, as Vega-Lite specifications: plain data, drawn by the page or to files.

Colours come from scales with fixed domains, so that hiding a run leaves the others' as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmend.reports.views import Drawing, RunView
from fedmend.runs.record import Projection

Spec = dict[str, Any]

COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#999933"),
    *("#44aa99", "#aa4499"),
)
"""Told apart by most eyes, on white and on black (after Okabe and Ito)."""
MISSING = "#e6194b"

MOST_POINTS = 300
"""Points of one curve; a longer run is thinned."""
MOST_SILOS = 24


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _scale(names: Sequence[str]) -> Spec:
    return {"domain": list(names), "range": [colour(i) for i in range(len(names))]}


def _base(title: str, values: list[Spec], height: int, describes: str) -> Spec:
    return {
        "title": title,
        "description": describes,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
    }


def words(metric: str) -> str:
    return metric.replace("_", " ")


def metrics_of(views: Sequence[RunView], *, once: bool = False) -> list[tuple[str, str]]:
    """Every (phase, metric) that runs noted per round: training's first, accuracy before loss.

    once: those that every run noted in a single round, which make no curve; else the others.
    """
    most: dict[tuple[str, str], int] = {}
    for view in views:
        for phase, rounds in view.record.rounds.items():
            noted = Counter(metric for metrics in rounds.values() for metric in metrics)
            for metric, times in noted.items():
                most[phase, metric] = max(times, most.get((phase, metric), 0))
    chosen = [
        pair for pair, times in most.items() if pair[1] != "selected" and (times == 1) == once
    ]
    return sorted(chosen, key=lambda pair: (pair[0] != "training", pair[0], "loss" in pair[1]))


def title_of(phase: str, metric: str) -> str:
    """What a metric is called; training is the phase that needs no saying."""
    return words(metric) if phase == "training" else f"{words(metric)} ({phase})"


def curve_key(index: int) -> str:
    """A run's name within specifications: labels may hold signs that mean something there."""
    return f"r{index}"


DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3])


def line_styles(views: Sequence[RunView]) -> list[tuple[str, list[int]]]:
    """A colour per group of runs, and a way of dashing for each run within it."""
    groups: dict[str, int] = {}
    found = []
    for i, view in enumerate(views):
        place = groups.setdefault(view.group, len(groups))
        within = sum(other.group == view.group for other in views[:i])
        found.append((colour(place), DASHES[within % len(DASHES)]))
    return found


def curves(views: Sequence[RunView], phase: str, metric: str, *, legend: bool = False) -> Spec:
    """One metric per round, a line per run. The signal `shown` lists the runs to draw."""
    values = [
        {"run": curve_key(i), "round": number, "value": value}
        for i, view in enumerate(views)
        for number, value in _thinned(view.record.rounds.get(phase, {}), metric)
    ]
    keys = [curve_key(i) for i in range(len(views))]
    names = {curve_key(i): view.label for i, view in enumerate(views)}
    styles = line_styles(views)
    shows: Spec = {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": keys, "range": [style[0] for style in styles]},
        "legend": None,
    }
    dashes: Spec = {
        **shows,
        "scale": {"domain": keys, "range": [style[1] for style in styles]},
    }
    if legend:
        label = " : ".join(
            f"datum.value === '{key}' ? {json.dumps(name)}" for key, name in names.items()
        )
        text = {"labelExpr": f"{label} : ''", "labelLimit": 400}
        look = {"title": None, "orient": "bottom", "symbolType": "stroke", **text}
        shows, dashes = {**shows, "legend": look}, {**dashes, "legend": look}
    x = {"field": "round", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1}}
    y = {
        "field": "value",
        "type": "quantitative",
        "title": words(metric),
        "scale": {"zero": False},
    }
    near = {"name": "near", "select": {**_NEAR, "fields": ["round"]}}
    tooltips = [{"field": "round", "type": "quantitative"}] + [
        {"field": key, "type": "quantitative", "title": names[key], "format": ".4f"} for key in keys
    ]
    spec = _base(
        title_of(phase, metric),
        values,
        260,
        f"{words(metric)} per round of {phase}, a line per run",
    )
    return {
        **spec,
        "params": [{"name": "shown", "value": keys}],
        "transform": [{"filter": "indexof(shown, datum.run) >= 0"}],
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": shows, "strokeDash": dashes},
            },
            {
                "transform": [{"pivot": "run", "value": "value", "groupby": ["round"]}],
                "mark": {"type": "rule", "tooltip": True},
                "encoding": {
                    "x": x,
                    "opacity": {"condition": {"value": 0.4, "param": "near", "empty": False}}
                    | {"value": 0},
                    "tooltip": tooltips,
                },
                "params": [near],
            },
        ],
    }


_NEAR = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}


def _thinned(rounds: Mapping[int, Mapping[str, float]], metric: str) -> list[tuple[int, float]]:
    """(round, value) of a metric, at most MOST_POINTS of them, the ends among them."""
    every = sorted((n, each[metric]) for n, each in rounds.items() if metric in each)
    if len(every) <= MOST_POINTS:
        return every
    step = (len(every) - 1) / (MOST_POINTS - 1)
    return [every[round(i * step)] for i in range(MOST_POINTS)]


def _bars(
    title: str,
    values: list[Spec],
    rows: Sequence[str],
    parts: Sequence[str],
    describes: str,
    *,
    row: str,
    part: str,
    unit: str,
    share: bool = False,
) -> Spec:
    """Lying bars of stacked parts; each value has `row`, `part` and `amount`."""
    axis: Spec = {"tickCount": 5}
    if unit == "bytes":
        axis["format"] = "~s"
    x: Spec = {"field": "amount", "type": "quantitative", "title": unit, "axis": axis}
    if share:
        x["stack"] = "normalize"
        axis["format"] = "%"
        x["title"] = f"share of {unit}"
    return {
        **_base(title, values, 26 * max(len(rows), 1), describes),
        "mark": {"type": "bar", "cornerRadiusEnd": 2},
        "encoding": {
            "y": {
                "field": "row",
                "type": "nominal",
                "sort": list(rows),
                "title": None,
                "axis": {"labelLimit": 215},
            },
            "x": x,
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": _scale(list(parts)),
                "legend": {"title": None, "orient": "bottom", "labelLimit": 170},
            },
            "order": {"field": "place", "type": "quantitative"},
            "tooltip": [
                {"field": "row", "type": "nominal", "title": row},
                {"field": "part", "type": "nominal", "title": part},
                {
                    "field": "amount",
                    "type": "quantitative",
                    "title": unit,
                    "format": ".2f" if unit == "seconds" else ",.0f",
                },
            ],
        },
    }


def _stacked(amounts: Mapping[tuple[str, str], float], parts: Sequence[str]) -> list[Spec]:
    return [
        {"row": row, "part": part, "amount": amount, "place": parts.index(part)}
        for (row, part), amount in amounts.items()
        if amount
    ]


def time_per_phase(views: Sequence[RunView]) -> Spec:
    """Seconds of every run by phase."""
    amounts = {
        (view.label, phase): float(seconds)
        for view in views
        for phase, seconds in view.record.measured.phases.items()
    }
    parts = list(dict.fromkeys(phase for _, phase in amounts))
    return _bars(
        "Time per phase",
        _stacked(amounts, parts),
        [view.label for view in views],
        parts,
        "seconds of each run, stacked by phase",
        row="run",
        part="phase",
        unit="seconds",
    )


def bytes_per_phase(views: Sequence[RunView]) -> Spec:
    """Bytes of every run by phase and direction."""
    amounts: Counter[tuple[str, str]] = Counter()
    for view in views:
        for (phase, way), size in view.ledger.by("phase", "direction").items():
            amounts[view.label, f"{phase}, {_way(way)}"] += size
    parts = list(dict.fromkeys(part for _, part in amounts))
    return _bars(
        "Bytes per phase",
        _stacked(amounts, parts),
        [view.label for view in views],
        parts,
        "bytes of each run, stacked by phase and direction",
        row="run",
        part="phase",
        unit="bytes",
    )


def _way(direction: str) -> str:
    return "from silos" if direction == "up" else "to silos"


def exchanged(view: RunView, direction: str) -> Spec:
    """What left each silo (up), or came to it (down), by kind of content."""
    sums = view.ledger.by("silo", "kind", "direction")
    totals: Counter[str] = Counter()
    for (silo, _, way), size in sums.items():
        if way == direction:
            totals[silo] += size
    silos = sorted(totals)
    if len(silos) > MOST_SILOS:
        silos = sorted(name for name, _ in totals.most_common(MOST_SILOS))
    amounts = {
        (silo, kind): float(size)
        for (silo, kind, way), size in sums.items()
        if way == direction and silo in silos
    }
    parts = sorted({kind for _, kind, _ in sums})
    what = "What left each silo" if direction == "up" else "What came to each silo"
    some = f" (the {MOST_SILOS} with most)" if len(totals) > MOST_SILOS else ""
    return _bars(
        what + some,
        _stacked(amounts, parts),
        silos,
        parts,
        f"{what.lower()}, in bytes, stacked by kind of content",
        row="silo",
        part="kind",
        unit="bytes",
    )


ALL_SILOS = "all silos"


def label_shares(view: RunView) -> Spec:
    """Each silo's classes beside all silos' (FedSage, figure 4)."""
    silos = view.record.data.per_silo
    whole: Counter[str] = Counter()
    for silo in silos:
        whole.update(silo.labels)
    classes = list(silos[0].labels) if silos else []
    shown = [ALL_SILOS, *(silo.name for silo in silos[:MOST_SILOS])]
    amounts = {(ALL_SILOS, name): float(whole[name]) for name in classes}
    for silo in silos[:MOST_SILOS]:
        amounts.update({(silo.name, name): float(n) for name, n in silo.labels.items()})
    some = f" (first {MOST_SILOS} of {len(silos)} silos)" if len(silos) > MOST_SILOS else ""
    return _bars(
        "Classes in each silo" + some,
        _stacked(amounts, classes),
        shown,
        classes,
        "share of each class among the labelled nodes of each silo, and of all silos together",
        row="silo",
        part="class",
        unit="nodes",
        share=True,
    )


def _columns(heads: Sequence[str], rows: Iterable[Sequence[float]]) -> Spec:
    """Numbers column by column: a third of what they take as an object each."""
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    return {head: list(column) for head, column in zip(heads, columns, strict=True)}


def _named(columns: Spec, **fields: tuple[str, Sequence[str]]) -> Spec:
    """Data from columns, with names looked up by their numbers."""
    return {
        "data": {"values": [columns]},
        "transform": [
            {"flatten": list(columns)},
            *(
                {"calculate": f"{json.dumps(list(names))}[datum.{number}]", "as": field}
                for field, (number, names) in fields.items()
            ),
        ],
    }


def drawing(graph: Drawing) -> Spec:
    """The partitioned graph; links that no silo sees in another colour."""
    links = _columns(
        ("x", "y", "x2", "y2", "kind"),
        (
            (graph.x[a], graph.y[a], graph.x[b], graph.y[b], number)
            for number, pairs in enumerate((graph.inside, graph.missing))
            for a, b in pairs
        ),
    )
    silos = list(dict.fromkeys(graph.silo))
    classes = list(dict.fromkeys(graph.label))
    silo_place = {name: i for i, name in enumerate(silos)}
    class_place = {name: i for i, name in enumerate(classes)}
    nodes = _columns(
        ("x", "y", "s", "c"),
        (
            (x, y, silo_place[silo], class_place[label])
            for x, y, silo, label in zip(graph.x, graph.y, graph.silo, graph.label, strict=True)
        ),
    )
    kinds = ["within a silo", "missing"]
    faint = max(0.25, min(0.75, 1000 / max(len(graph.inside) + len(graph.missing), 1)))
    some = "" if graph.shown == graph.nodes else f" ({graph.shown} of {graph.nodes} nodes drawn)"
    place = {
        axis: {"field": axis, "type": "quantitative", "axis": None, "scale": {"zero": False}}
        for axis in ("x", "y")
    }
    spec = _base(
        "The cut graph" + some,
        [],
        460,
        "each silo's nodes in a disc of its own; links between silos, which nobody sees, in red",
    )
    del spec["data"]
    return {
        **spec,
        "layer": [
            {
                **_named(links, kind=("kind", kinds)),
                "mark": {"type": "rule", "strokeWidth": 0.7, "opacity": faint},
                "encoding": {
                    **place,
                    "x2": {"field": "x2"},
                    "y2": {"field": "y2"},
                    "color": {
                        "field": "kind",
                        "type": "nominal",
                        "scale": {
                            "domain": kinds,
                            "range": ["#8a929b", MISSING],
                        },
                        "legend": {
                            "title": "links",
                            "orient": "bottom",
                            "symbolType": "stroke",
                            "symbolStrokeWidth": 3,
                        },
                    },
                },
            },
            {
                **_named(nodes, silo=("s", silos), **{"class": ("c", classes)}),
                "mark": {"type": "circle", "size": 14 if graph.shown > 500 else 40, "opacity": 1},
                "encoding": {
                    **place,
                    "color": {
                        "field": "silo",
                        "type": "nominal",
                        "scale": _scale(silos),
                        "legend": {"title": None, "orient": "bottom"}
                        if len(silos) <= MOST_SILOS
                        else None,
                    },
                    "tooltip": [
                        {"field": "silo", "type": "nominal"},
                        {"field": "class", "type": "nominal"},
                    ],
                },
            },
        ],
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
    }


def _grid(
    title: str, values: list[Spec], describes: str, x: Spec, y: Spec, rows: int, most: float
) -> Spec:
    """A heat map with its counts written in."""
    return {
        **_base(title, values, max(160, min(30 * rows + 40, 640)), describes),
        "encoding": {"x": x, "y": y},
        "layer": [
            {
                "mark": {"type": "rect"},
                "encoding": {
                    "color": {
                        "field": "count",
                        "type": "quantitative",
                        "scale": {"scheme": "blues", "domain": [0, max(most, 1)]},
                        "legend": None,
                    },
                    "tooltip": [
                        {"field": y["field"], "type": y["type"], "title": y["title"]},
                        {"field": x["field"], "type": x["type"], "title": x["title"]},
                        {"field": "count", "type": "quantitative", "title": "nodes"},
                    ],
                },
            },
            {
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "text": {"field": "count", "type": "quantitative"},
                    "color": {
                        "condition": {"test": f"datum.count > {max(most, 1) * 0.55}"}
                        | {"value": "white"},
                        "value": "#102030",
                    },
                },
            },
        ],
    }


def confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Spec:
    """Test nodes by true class (down) and found class (across)."""
    values = [
        {"true": names[i], "found": names[j], "count": count}
        for i, row in enumerate(counts)
        for j, count in enumerate(row)
    ]
    axis = {"type": "nominal", "sort": list(names), "axis": {"labelLimit": 130, "labelAngle": 0}}
    angle = -35 if max(map(len, names), default=0) > 4 else 0
    # Overlapping labels are left out elsewhere; slanted ones have room.
    slanted = {**axis, "axis": {"labelLimit": 110, "labelAngle": angle, "labelOverlap": angle == 0}}
    return _grid(
        "Confusion matrix of the test nodes",
        values,
        "number of test nodes by true and found class",
        {"field": "found", "title": "found class", **slanted},
        {"field": "true", "title": "true class", **axis},
        len(names),
        max((max(row) for row in counts), default=1),
    )


def predicted_counts(predicted: Sequence[float], true: Sequence[float]) -> Spec:
    """Predicted (rounded) against true numbers of missing neighbours, 10 and more together."""
    pairs = Counter(
        (min(max(round(p), 0), 10), min(max(round(t), 0), 10))
        for p, t in zip(predicted, true, strict=True)
    )
    values = [{"predicted": p, "true": t, "count": n} for (p, t), n in sorted(pairs.items())]
    order = list(range(11))
    axis = {"type": "ordinal", "axis": {"labelAngle": 0}}
    across, down = {"scale": {"domain": order}}, {"scale": {"domain": order[::-1]}}
    return _grid(
        "Missing neighbours: predicted against true",
        values,
        "number of nodes by predicted and true number of missing neighbours; 10 is 10 or more",
        {"field": "true", "title": "true number", **axis, **across},
        {"field": "predicted", "title": "predicted number", **axis, **down},
        11,
        max(pairs.values(), default=1),
    )


def projection(places: Projection) -> Spec:
    """Where generated neighbours land among the true ones, in two dimensions."""
    values = [
        {"x": round(x, 4), "y": round(y, 4), "kind": kind}
        for kind, spots in vars(places).items()
        for x, y in spots[:2000]
    ]
    axis = {"type": "quantitative", "scale": {"zero": False}, "axis": None}
    return {
        **_base(
            "Generated neighbours among the true ones",
            values,
            360,
            "two-dimensional projection of generated and true neighbours",
        ),
        "mark": {"type": "point", "filled": True, "opacity": 0.6, "size": 24},
        "encoding": {
            "x": {"field": "x", **axis},
            "y": {"field": "y", **axis},
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": {"domain": ["true", "generated"], "range": [COLOURS[0], COLOURS[1]]},
                "legend": {"title": None, "orient": "bottom"},
            },
            "shape": {"field": "kind", "type": "nominal", "legend": None},
        },
    }
