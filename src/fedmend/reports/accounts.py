"""Privacy accounts as tables for the terminal; apart from the other tables, which load torch."""

from __future__ import annotations

from rich.table import Table

from fedmend.privacy.accountants.nfdp import Bound, EdgeLDP


def edge_ldp_table(account: EdgeLDP) -> Table:
    """Theorem 3.1 as published and as recomputed, one figure per line."""
    sampling = account.sampling
    title = f"Noise-free edge-LDP, d = {sampling.d} of D = {sampling.D} neighbours"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("")
    table.add_column("published", justify="right")
    table.add_column("recomputed", justify="right")
    published, recomputed = account.published, account.recomputed
    for name, one, other in (
        ("one hop, one epoch", published.one_hop, recomputed.one_hop),
        (
            f"composed {sampling.layers} x {sampling.epochs} times",
            published.composed,
            recomputed.composed,
        ),
        (f"after sampling at rate {sampling.rate:g}", published.sampled, recomputed.sampled),
    ):
        table.add_row(name, "epsilon", _epsilon(one), _epsilon(other))
        table.add_row("", "delta", _delta(one), _delta(other), end_section=True)
    return table


def edge_ldp_notes(account: EdgeLDP) -> list[str]:
    """What the two columns mean, a line each."""
    smallest, assumed = account.degrees.smallest, account.sampling.D
    broken = f", and the smallest degree is {smallest}, not {assumed}" if smallest < assumed else ""
    return [
        f"published: as printed, though its delta shrinks the longer one trains{broken}.",
        f"recomputed: delta as composed, the worst over {account.degrees.words()}, not amplified "
        "(the prototypes have left the silo before the sampler acts).",
    ]


def _epsilon(bound: Bound) -> str:
    if not bound.holds:
        return "no guarantee"
    return f"{bound.epsilon:.4f}" if bound.epsilon >= 1e-3 else f"{bound.epsilon:.3g}"


def _delta(bound: Bound) -> str:
    return bound.delta_words() if bound.holds else "no guarantee"
