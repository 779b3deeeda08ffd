"""Draws docs/images/overview.png: the silos with their cut edges, and what federation wins back.

    python tools/draw_overview.py

Needs matplotlib (in the dev extra). Figures are measured when it runs: seed 0, Cora, 5 silos.
"""

from __future__ import annotations

import random
from pathlib import Path

import igraph
import matplotlib
import numpy as np

import fedmend as fm

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

COLOURS = ("#4477aa", "#228833", "#ccbb44", "#aa3377", "#66ccee")
CUT = "#ee6677"
OUT = Path(__file__).parent.parent / "docs" / "images" / "overview.png"


def main() -> None:
    silos = fm.split(fm.load("cora"), silos=5, how="louvain", seed=0)
    whole, assignment = silos.whole, silos.assignment
    if whole is None or assignment is None:
        raise SystemExit("split() gives the whole graph")
    place = np.concatenate([_disc(graph, silo) for silo, graph in enumerate(silos.silos.values())])
    place[np.concatenate([silos.rows(name) for name in silos.names])] = place.copy()
    edges = whole.edges.numpy()
    cut = assignment[edges[0]] != assignment[edges[1]]

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.6), width_ratios=(1.5, 1), constrained_layout=True
    )
    segments = place[edges.T]
    left.add_collection(LineCollection(segments[~cut], colors="#bbbbbb", linewidths=0.3))
    left.add_collection(LineCollection(segments[cut], colors=CUT, linewidths=0.5, alpha=0.5))
    left.scatter(*place.T, s=3, c=[COLOURS[silo] for silo in assignment], zorder=2, linewidths=0)
    left.set_aspect("equal")
    left.autoscale_view()
    left.set_title(
        f"Cora in 5 silos; red: the {silos.statistics().missing_share:.0%} of citations that no "
        "silo sees"
    )
    left.axis("off")

    names = {"local": "alone", "fedsage": "together\n(FedSage)", "global": "pooled"}
    scores = {name: fm.train(name, silos, seed=0).accuracy for name in names}
    bars = right.bar(
        [names[name] for name in scores],
        [100 * score for score in scores.values()],
        color=("#bbbbbb", COLOURS[0], "#dddddd"),
    )
    right.bar_label(bars, fmt="%.1f%%")
    right.set_ylim(0, 100)
    right.set_ylabel("test accuracy, whole graph")
    right.set_title("What training together is worth")
    right.spines[["top", "right"]].set_visible(False)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, dpi=110)
    print(f"{OUT.name}: {scores}")


def _disc(graph: fm.Graph, silo: int) -> NDArray[np.float64]:
    """A silo's nodes within a disc of its own, drawn by its own edges; the discs form a ring."""
    random.seed(silo)
    drawn = igraph.Graph(n=graph.num_nodes, edges=graph.edges.T.tolist())
    spot = np.array(drawn.layout_fruchterman_reingold(niter=1000, grid=False).coords)
    spot -= np.median(spot, axis=0)
    far = np.linalg.norm(spot, axis=1, keepdims=True)
    spot *= np.minimum(1.0, np.percentile(far, 90) / np.maximum(far, 1e-9))
    spot *= 0.9 / np.abs(spot).max()
    angle = 2 * np.pi * silo / len(COLOURS) + np.pi / 2
    return np.asarray(spot + 1.75 * np.array([1.5 * np.cos(angle), np.sin(angle)]))


if __name__ == "__main__":
    main()
