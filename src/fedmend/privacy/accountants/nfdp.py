"""The arithmetic of FedDEP's noise-free edge-LDP: as the paper prints it, and as it composes.

Paper: FedDEP, theorem 3.1 and appendix B. Drawing d of a node's D neighbours is said to hide each
single edge with (epsilon, delta); L hops and N epochs compose L N such draws; a Bernoulli sampler
of rate r is said to amplify the result. Two columns:

- `published`: the theorem as printed, with delta~ = (1-delta)^(LN) (1-delta'), every node taken to
  have degree D, and the amplification by r.
- `recomputed`: delta~ = 1 - (1-delta)^(LN) (1-delta'), which is what the composition theorem it
  cites says (B.3); the largest epsilon and delta over the degrees present (the smallest degree is
  not the worst: d = 5 costs more at degree 6 than at degree 5), degree 0 being no guarantee; and
  r = 1, since the prototypes have left the silo before the sampler acts.

Neither is a protection fedmend vouches for: see docs/methods/edge-ldp.md. Theorem B.4 is printed
as log(1 + p e^(epsilon-1)); theorem 3.1 uses the right log(1 + p (e^epsilon - 1)), and so do both
columns.

Deltas here are mostly so close to 1 that a float cannot tell, so ln(1 - delta) is kept instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fedmend.config import make, setting
from fedmend.errors import SettingsError
from fedmend.privacy.account import Account, finite

if TYPE_CHECKING:
    from fedmend.graph import Graph

MECHANISM = "neighbour sampling (NFDP)"

MOST = 10**12
"""The largest count that is accepted: every count up to it is exact as a float."""

VACUOUS = 0.5
"""From this delta on a bound is called vacuous: it lets an edge be seen as often as not."""


@dataclass(frozen=True, slots=True)
class Bound:
    """(epsilon, delta); delta is kept as ln(1 - delta)."""

    epsilon: float
    log_rest: float

    @property
    def delta(self) -> float:
        return -math.expm1(self.log_rest) + 0.0  # + 0.0: never a negative zero

    @property
    def rest(self) -> float:
        """1 - delta."""
        return math.exp(self.log_rest)

    @property
    def holds(self) -> bool:
        """Whether there is a bound at all."""
        return math.isfinite(self.epsilon)

    def delta_words(self) -> str:
        """Delta in few digits; `1 - 2.5e-18` where it would round to 1."""
        if self.rest >= 1e-4:
            return f"{self.delta:.4g}"
        if self.log_rest == -math.inf:
            return "1"
        if self.rest >= 1e-300:
            return f"1 - {self.rest:.1e}"
        return f"1 - 10^{self.log_rest / math.log(10):.0f}"

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which knows no infinity: null stands for it."""
        log10_rest = self.log_rest / math.log(10)
        return {
            "epsilon": self.epsilon if self.holds else None,
            "delta": self.delta,
            "log10_one_minus_delta": log10_rest if math.isfinite(log10_rest) else None,
        }


NO_GUARANTEE = Bound(math.inf, -math.inf)


def single_hop(d: int, degree: int) -> Bound:
    """Lemma B.1: d of a node's neighbours drawn once, with replacement if it has d or fewer."""
    if degree == 0:
        return NO_GUARANTEE
    if d < degree:
        return Bound(-math.log1p(-d / (degree + 1)), math.log1p(-d / degree))
    log_missed = math.log1p(-1 / degree) if degree > 1 else -math.inf
    return Bound(d * math.log1p(1 / degree), d * log_missed)


def worst(bounds: Iterable[Bound]) -> Bound:
    """What holds wherever one of these does: the largest epsilon with the largest delta."""
    every = list(bounds)
    return Bound(max(b.epsilon for b in every), min(b.log_rest for b in every))


def compose(bound: Bound, times: int, delta_prime: float) -> Bound:
    """Theorem B.3 (Kairouz, Oh and Viswanath): the same bound `times` times, adaptively."""
    epsilon = bound.epsilon
    if not bound.holds:
        return NO_GUARANTEE
    composed = times * epsilon
    if delta_prime > 0:
        # (e^epsilon - 1)/(e^epsilon + 1) is tanh(epsilon/2), which does not overflow.
        smaller = min(
            math.log(math.e + epsilon * math.sqrt(times) / delta_prime), -math.log(delta_prime)
        )
        drift = times * epsilon * math.tanh(epsilon / 2)
        composed = min(composed, drift + epsilon * math.sqrt(2 * times * smaller))
    log_rest = -math.inf if delta_prime == 1 else math.log1p(-delta_prime)
    return Bound(composed, times * bound.log_rest + log_rest)


def as_printed(composed: Bound) -> Bound:
    """Theorem 3.1 prints for delta~ what is 1 - delta~: delta and the rest change places."""
    if not composed.holds:
        return NO_GUARANTEE
    rest = composed.log_rest  # ln(1 - e^rest), in the form that is exact for this size of it
    swapped = math.log(-math.expm1(rest)) if rest > -math.log(2) else math.log1p(-math.exp(rest))
    return Bound(composed.epsilon, swapped)


def amplify(bound: Bound, rate: float) -> Bound:
    """Theorem B.4: (log(1 + r (e^epsilon - 1)), r delta)."""
    if rate == 1 or not bound.holds:
        return bound
    epsilon = bound.epsilon
    if epsilon < 700:
        amplified = math.log1p(rate * math.expm1(epsilon))
    elif rate == 0:
        amplified = 0.0
    else:  # e^epsilon does not fit into a float
        amplified = max(0.0, epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon)))
    return Bound(amplified, math.log1p(-rate * bound.delta))


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the theorem is told."""

    d: int = setting(5, "neighbours drawn per node and hop", low=1, high=MOST)
    D: int = setting(15, "degree the theorem assumes every node to have", low=1, high=MOST)
    layers: int = setting(2, "hops (L)", low=1, high=MOST)
    epochs: int = setting(50, "epochs of local training (N)", low=1, high=MOST)
    rate: float = setting(1.0, "rate of the Bernoulli sampler (r)", low=0, high=1)
    delta_prime: float = setting(1e-5, "slack of the composition (delta')", low=0, high=1)


@dataclass(frozen=True, slots=True)
class Degrees:
    """The degrees the recomputed column looks at."""

    smallest: int
    largest: int | None  # None: every degree from the smallest up
    nodes: int | None = None
    isolated: int = 0

    def words(self) -> str:
        if self.largest is None:
            return f"every degree from {self.smallest} up"
        return f"the degrees {self.smallest} to {self.largest} of {self.nodes} nodes"


@dataclass(frozen=True, slots=True)
class Column:
    """One way to do the arithmetic."""

    one_hop: Bound
    composed: Bound
    sampled: Bound


@dataclass(frozen=True, slots=True)
class EdgeLDP:
    """Both columns, and what they come to in words."""

    sampling: Sampling
    degrees: Degrees
    published: Column
    recomputed: Column

    @property
    def vacuous(self) -> bool:
        """Whether the recomputed bound says nothing worth having, or does not exist."""
        return self.recomputed.sampled.delta >= VACUOUS

    @property
    def sentence(self) -> str:
        bound, degrees = self.recomputed.sampled, self.degrees
        if not bound.holds:
            verdict = (
                f"There is no guarantee: {degrees.isolated} of {degrees.nodes} nodes have no "
                "neighbour, and about degree 0 the theorem is silent"
            )
        elif self.vacuous:
            verdict = (
                f"The bound is vacuous: delta is {bound.delta_words()}, "
                "the probability with which an edge may be seen outright"
            )
        else:
            verdict = (
                f"By its own arithmetic the theorem gives epsilon {bound.epsilon:.4g} and lets an "
                f"edge be seen outright with probability {bound.delta_words()} (delta)"
            )
        draws = self.sampling.layers * self.sampling.epochs
        return (
            f"{verdict}; this is the theorem's arithmetic, not a protection fedmend vouches for, "
            f"and its L N = {draws} undercounts, since neighbours are drawn anew in every batch."
        )

    def to_account(self) -> Account:
        """The form that a run's record has; what holds is the recomputed column."""
        bound = self.recomputed.sampled
        return Account(
            mechanism=MECHANISM,
            per="an edge",
            epsilon=finite(bound.epsilon),
            delta=bound.delta,
            uses=self.sampling.layers * self.sampling.epochs,
            sentence=self.sentence,
            details=self.to_dict(),
        )

    def to_dict(self) -> dict[str, Any]:
        """For `--json`, and the details of a run's account."""
        columns = {"published": self.published, "recomputed": self.recomputed}
        return {
            "settings": asdict(self.sampling),
            "degrees": asdict(self.degrees),
            **{
                name: {row: getattr(column, row).to_dict() for row in Column.__dataclass_fields__}
                for name, column in columns.items()
            },
            "vacuous": self.vacuous,
            "sentence": self.sentence,
        }


def nfdp(
    d: int = 5,
    D: int | None = None,
    *,
    layers: int = 2,
    epochs: int = 50,
    rate: float = 1.0,
    delta_prime: float = 1e-5,
    graph: Graph | None = None,
) -> EdgeLDP:
    """What FedDEP's theorem 3.1 comes to, as published and as recomputed.

    Args:
        d: neighbours drawn per node and hop.
        D: the degree every node is assumed to have at least; the graph's smallest if left out.
        layers: hops (L).
        epochs: epochs of the local training (N).
        rate: of the Bernoulli sampler on generated neighbours (r).
        delta_prime: slack of the composition (delta').
        graph: a silo's graph, whose degrees the recomputed column takes; without one it takes
            every degree from D up.
    """
    return account(
        d, D, layers, epochs, rate, delta_prime, None if graph is None else count_degrees(graph)
    )


def account(
    d: int,
    D: int | None,
    layers: int,
    epochs: int,
    rate: float,
    delta_prime: float,
    degree_counts: dict[int, int] | None = None,
) -> EdgeLDP:
    """`nfdp` from how many nodes have each degree, of one silo or of several added up."""
    if degree_counts is not None and not degree_counts:
        raise SettingsError("the degrees of no node at all were given; leave them out instead")
    if D is None and degree_counts is None:
        raise SettingsError("D is missing: give the degree to assume (D=15), or a graph")
    given = {"d": d, "layers": layers, "epochs": epochs, "rate": rate, "delta_prime": delta_prime}
    sampling = make(Sampling, given if D is None else {**given, "D": D})
    if D is None and degree_counts:
        sampling = replace(sampling, D=min(degree_counts))
    if degree_counts is None:
        degrees = Degrees(sampling.D, None)
        # Both figures fall as the degree grows, on each side of d: these two are the worst.
        looked_at = {sampling.D, max(sampling.D, sampling.d + 1)}
    else:
        isolated = degree_counts.get(0, 0)
        nodes = sum(degree_counts.values())
        degrees = Degrees(min(degree_counts), max(degree_counts), nodes, isolated)
        looked_at = set(degree_counts)

    times = sampling.layers * sampling.epochs
    assumed = single_hop(sampling.d, sampling.D)
    printed = as_printed(compose(assumed, times, sampling.delta_prime))
    found = worst(single_hop(sampling.d, degree) for degree in looked_at)
    composed = compose(found, times, sampling.delta_prime)
    return EdgeLDP(
        sampling,
        degrees,
        published=Column(assumed, printed, amplify(printed, sampling.rate)),
        recomputed=Column(found, composed, composed),
    )


def deciding_degrees(counts: Mapping[int, int], d: int) -> dict[int, int]:
    """As few of a silo's degrees as give the same account, also added up with other silos'.

    Both figures fall as the degree grows, on each side of d: the smallest degree and the smallest
    above d decide. How many nodes have these does not: all but isolated nodes count as the largest.
    """
    isolated = counts.get(0, 0)
    deciding = {min(counts), min((each for each in counts if each > d), default=min(counts))}
    found = {**dict.fromkeys(sorted(deciding), 0), max(counts): sum(counts.values()) - isolated}
    return {**found, 0: isolated} if isolated else found


def count_degrees(graph: Graph) -> dict[int, int]:
    """How many nodes of a graph have each degree."""
    import numpy as np

    from fedmend.graph import Graph as GraphType

    if not isinstance(graph, GraphType):
        raise SettingsError(
            f"graph must be a fedmend Graph, got {type(graph).__name__}; "
            "fedmend.read_folder reads one from a folder"
        )
    degrees, counts = np.unique(graph.degree.numpy(), return_counts=True)
    return dict(zip(degrees.tolist(), counts.tolist(), strict=True))
