"""The accountant against the paper's figures, enumeration and the optimal composition."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from typing import Any

import pytest
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters
from hypothesis import given
from hypothesis import strategies as st

import fedmend
from fedmend.errors import SettingsError
from fedmend.privacy.accountants.nfdp import (
    MOST,
    Bound,
    EdgeLDP,
    account,
    amplify,
    as_printed,
    compose,
    deciding_degrees,
    nfdp,
    single_hop,
)
from tests.tiny import plain_graph

counts = st.integers(1, 200)
slacks = st.sampled_from([0.0, 1e-300, 1e-9, 1e-5, 0.01, 0.3, 0.9, 1.0])
rates = st.floats(0, 1)


def ring(nodes: int, isolated: int = 0) -> Any:
    """Every node has two neighbours, but for those who have none."""
    edges = [(node, (node + 1) % nodes) for node in range(nodes)]
    return plain_graph(nodes + isolated, edges)


def no_less(larger: float, smaller: float) -> bool:
    """Up to rounding."""
    return larger >= smaller - 1e-12 * max(1.0, abs(smaller))


# The paper's figures


@pytest.mark.parametrize(
    ("d", "D", "exact", "epsilon"),
    [
        (5, 15, math.log(16 / 11), 0.3747),
        (5, 10, math.log(11 / 6), 0.6061),
        (5, 3, 5 * math.log(4 / 3), 1.4384),
    ],
)
def test_section_4_5_is_one_hop_and_one_epoch(d: int, D: int, exact: float, epsilon: float) -> None:
    found = nfdp(d, D, layers=1, epochs=1, rate=1)
    for column in (found.published, found.recomputed):
        for bound in (column.one_hop, column.composed, column.sampled):
            assert bound.epsilon == pytest.approx(exact, rel=1e-14)
            assert round(bound.epsilon, 4) == epsilon


def test_the_smallest_degree_is_not_the_worst() -> None:
    five, six = single_hop(5, 5), single_hop(5, 6)
    assert (round(five.epsilon, 3), round(five.delta, 3)) == (0.912, 0.672)
    assert (round(six.epsilon, 3), round(six.delta, 3)) == (1.253, 0.833)
    # "Degrees of at least 5" allows 6.
    assert nfdp(5, 5).recomputed.one_hop == six
    assert nfdp(5, 5).published.one_hop == five
    # With degree 5 alone in the graph, 5 it is.
    assert account(5, 5, 2, 50, 1.0, 1e-5, {5: 9}).recomputed.one_hop == five


def test_the_papers_setting_is_vacuous() -> None:
    found = nfdp(d=5, D=15, layers=2, epochs=50, rate=0.5)
    assert found.vacuous
    assert "vacuous" in found.sentence
    assert "1 - 2.5e-18" in found.sentence
    assert "not a protection fedmend vouches for" in found.sentence
    assert "undercounts" in found.sentence
    rest = (2 / 3) ** 100 * (1 - 1e-5)
    assert found.recomputed.sampled.delta == 1
    assert found.recomputed.sampled.rest == pytest.approx(rest, rel=1e-12)
    # The misprint: as published, the same number is delta itself.
    assert found.published.composed.delta == pytest.approx(rest, rel=1e-12)
    assert found.published.sampled.delta == pytest.approx(rest / 2, rel=1e-12)
    # Only the published column is amplified.
    epsilon = found.published.composed.epsilon
    assert found.published.sampled.epsilon == pytest.approx(
        math.log(1 + (math.exp(epsilon) - 1) / 2)
    )
    assert found.recomputed.sampled == found.recomputed.composed


def test_a_bound_that_says_something_is_not_called_vacuous() -> None:
    found = nfdp(1, 10_000, layers=2, epochs=5)
    assert not found.vacuous
    assert "vacuous" not in found.sentence
    assert "not a protection fedmend vouches for" in found.sentence


# Against plain formulas and enumeration


@given(st.integers(1, 40), st.integers(1, 40), counts, slacks.filter(lambda x: 0 < x < 1))
def test_is_the_theorem_as_it_is_written(d: int, D: int, times: int, slack: float) -> None:
    if d < D:
        epsilon, delta = math.log((D + 1) / (D + 1 - d)), d / D
    else:
        epsilon, delta = d * math.log((D + 1) / D), 1 - ((D - 1) / D) ** d
    hop = single_hop(d, D)
    assert hop.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert hop.delta == pytest.approx(delta, rel=1e-9)
    u = min(
        math.sqrt(math.log(math.e + epsilon * math.sqrt(times) / slack)),
        math.sqrt(math.log(1 / slack)),
    )
    tilde = min(
        times * epsilon,
        times * epsilon * (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1)
        + epsilon * u * math.sqrt(2 * times),
    )
    rest = (1 - delta) ** times * (1 - slack)
    composed = compose(hop, times, slack)
    assert composed.epsilon == pytest.approx(tilde, rel=1e-9)
    assert composed.delta == pytest.approx(1 - rest, rel=1e-9)
    assert as_printed(composed).delta == pytest.approx(rest, rel=1e-6, abs=1e-300)


def drawn(d: int, degree: int) -> dict[Any, float]:
    """How likely each collection of drawn neighbours is, counted one by one."""
    lists: list[tuple[int, ...]]
    if d < degree:
        lists = list(itertools.combinations(range(degree), d))
    else:
        lists = [tuple(sorted(each)) for each in itertools.product(range(degree), repeat=d)]
    return {key: count / len(lists) for key, count in Counter(lists).items()}


def least_delta(one: dict[Any, float], other: dict[Any, float], epsilon: float) -> float:
    """The smallest delta for which (epsilon, delta) holds between two distributions."""
    return max(
        sum(max(0.0, p - math.exp(epsilon) * b.get(key, 0.0)) for key, p in a.items())
        for a, b in ((one, other), (other, one))
    )


@pytest.mark.parametrize(("d", "degree"), [(1, 2), (2, 3), (2, 5), (3, 6), (3, 2), (4, 3), (5, 2)])
def test_one_hop_covers_one_edge_more(d: int, degree: int) -> None:
    bound = single_hop(d, degree)
    needed = least_delta(drawn(d, degree), drawn(d, degree + 1), bound.epsilon)
    assert needed <= bound.delta + 1e-12


def test_one_hop_does_not_cover_the_change_of_the_way_to_draw() -> None:
    """A neighbour drawn twice tells that there are at most d of them: the lemma overlooks it."""
    five, six = drawn(5, 5), drawn(5, 6)
    needed = least_delta(five, six, epsilon=100)
    assert needed == pytest.approx(1 - math.factorial(5) / 5**5)  # 0.9616: some neighbour twice
    assert needed > max(single_hop(5, 5).delta, single_hop(5, 6).delta)


# Against the optimal composition


def optimal_delta(hop: Bound, times: int, epsilon: float) -> float:
    """The least delta of `times` (epsilon, delta) mechanisms at this epsilon, exactly.

    Kairouz, Oh and Viswanath, theorem 3.3: what the worst such mechanism gives, term by term.
    """
    p = 1 / (1 + math.exp(-hop.epsilon))
    inner = 0.0
    for k in range(times + 1):
        loss = (times - 2 * k) * hop.epsilon
        if loss > epsilon:
            mass = math.comb(times, k) * p ** (times - k) * (1 - p) ** k
            inner += mass * -math.expm1(epsilon - loss)
    return 1 - hop.rest**times * (1 - inner)


def optimal_epsilon(hop: Bound, times: int, delta: float) -> float:
    low, high = 0.0, times * hop.epsilon
    if optimal_delta(hop, times, low) <= delta:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if optimal_delta(hop, times, middle) <= delta else (middle, high)
    return high


@given(
    st.integers(1, 20),
    st.integers(1, 2000),
    st.integers(1, 60),
    st.sampled_from([1e-6, 1e-3, 0.1, 0.5]),
)
def test_never_below_the_optimal_composition(d: int, D: int, times: int, slack: float) -> None:
    hop = single_hop(d, D)
    ours = compose(hop, times, slack)
    assert optimal_delta(hop, times, ours.epsilon) <= ours.delta + 1e-12


@pytest.mark.parametrize(
    ("d", "D", "layers", "epochs", "slack"),
    [
        (5, 15, 1, 1, 1e-5),
        (5, 15, 2, 2, 1e-5),
        (5, 10, 1, 3, 1e-3),
        (5, 3, 1, 1, 1e-5),
        (5, 5, 1, 2, 1e-3),
        (1, 100, 2, 10, 1e-3),
        (2, 500, 3, 20, 1e-6),
        (1, 1000, 2, 50, 1e-5),
        (1, 1000, 2, 50, 1e-2),
        (1, 10000, 2, 200, 0.1),
    ],
)
def test_never_below_dp_accounting(d: int, D: int, layers: int, epochs: int, slack: float) -> None:
    found = nfdp(d, D, layers=layers, epochs=epochs, delta_prime=slack).recomputed
    times = layers * epochs
    step = 1e-5 if found.one_hop.epsilon < 0.05 else 1e-4
    losses = from_privacy_parameters(
        DifferentialPrivacyParameters(found.one_hop.epsilon, found.one_hop.delta),
        value_discretization_interval=step,
    )
    optimal = losses.self_compose(times).get_epsilon_for_delta(found.composed.delta)
    allowance = times * step  # it rounds every loss up to the next step
    assert found.composed.epsilon >= optimal - allowance
    # And the exact formula of these tests is what dp-accounting computes.
    exact = optimal_epsilon(found.one_hop, times, found.composed.delta)
    assert exact == pytest.approx(optimal, abs=allowance)


# What must not go down


def epsilons(found: EdgeLDP) -> list[float]:
    columns = (found.published, found.recomputed)
    return [b.epsilon for c in columns for b in (c.one_hop, c.composed, c.sampled)]


@given(counts, counts, counts, counts, rates, slacks, st.data())
def test_grows_with_epochs_layers_and_rate(
    d: int, D: int, layers: int, epochs: int, rate: float, slack: float, data: st.DataObject
) -> None:
    base = account(d, D, layers, epochs, rate, slack)
    longer = account(d, D, layers, data.draw(st.integers(epochs, 10**6)), rate, slack)
    deeper = account(d, D, data.draw(st.integers(layers, 10**6)), epochs, rate, slack)
    oftener = account(d, D, layers, epochs, data.draw(st.floats(rate, 1)), slack)
    for more in (longer, deeper, oftener):
        assert all(map(no_less, epsilons(more), epsilons(base)))
        assert more.recomputed.sampled.log_rest <= base.recomputed.sampled.log_rest
        assert more.recomputed.sampled.delta >= base.recomputed.sampled.delta


@given(counts, counts, counts, slacks, st.data())
def test_grows_with_d_on_each_side_of_the_degree(
    d: int, D: int, times: int, slack: float, data: st.DataObject
) -> None:
    larger = data.draw(st.integers(d, max(d, D - 1)) if d < D else st.integers(d, 1000))
    base, more = (account(each, D, 1, times, 0.5, slack) for each in (d, larger))
    assert all(map(no_less, epsilons(more), epsilons(base)))


def test_not_across_the_degree() -> None:
    assert single_hop(15, 15).epsilon < single_hop(14, 15).epsilon


@given(st.integers(1, MOST), st.integers(1, MOST), st.integers(1, MOST), slacks)
def test_delta_alone_decides(d: int, D: int, times: int, slack: float) -> None:
    """1 - delta is at most e^-epsilon: a delta below one half means an epsilon below ln 2."""
    composed = compose(single_hop(d, D), times, slack)
    assert composed.log_rest <= -composed.epsilon * (1 - 1e-12)


# Sizes at which plain formulas overflow


@given(
    st.integers(1, MOST),
    st.integers(1, MOST),
    st.integers(1, MOST),
    st.integers(1, MOST),
    rates,
    st.floats(0, 1),
)
def test_every_allowed_size_has_an_answer(
    d: int, D: int, layers: int, epochs: int, rate: float, slack: float
) -> None:
    found = account(d, D, layers, epochs, rate, slack)
    for column in (found.published, found.recomputed):
        for bound in (column.one_hop, column.composed, column.sampled):
            assert bound.holds
            assert bound.epsilon >= 0
            assert 0 <= bound.delta <= 1
            assert 0 <= bound.rest <= 1
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_million_epochs() -> None:
    found = nfdp(5, 3, epochs=10**6, rate=0.5)
    once = found.recomputed.one_hop.epsilon
    assert found.published.composed.epsilon > 700  # e^epsilon would overflow
    assert found.published.sampled.epsilon == pytest.approx(
        found.published.composed.epsilon - math.log(2)
    )
    assert found.recomputed.composed.epsilon <= 2 * 10**6 * once
    assert found.recomputed.composed.delta == 1
    assert found.recomputed.composed.log_rest == pytest.approx(2e6 * 5 * math.log(2 / 3), rel=1e-9)
    assert found.recomputed.composed.delta_words() == "1 - 10^-1760913"


def test_tiny_figures_keep_their_digits() -> None:
    bound = single_hop(1, MOST)
    assert bound.epsilon == pytest.approx(1e-12, rel=1e-9)
    assert bound.delta == pytest.approx(1e-12, rel=1e-9)
    small = amplify(Bound(1e-12, -1e-12), 1e-6)
    assert small.epsilon == pytest.approx(1e-18, rel=1e-9)
    assert small.delta == pytest.approx(1e-18, rel=1e-9)


def test_amplification_at_its_ends() -> None:
    for epsilon in (0.1, 10.0, 699.9, 700.1, 1e9):
        bound = Bound(epsilon, -1.0)
        assert amplify(bound, 1) == bound
        assert amplify(bound, 0) == Bound(0.0, 0.0)
        half = amplify(bound, 0.5)
        assert half.epsilon == pytest.approx(epsilon + math.log((1 + math.exp(-epsilon)) / 2))
        assert half.delta == pytest.approx(bound.delta / 2)


# Graphs


def test_takes_the_degrees_of_the_graph() -> None:
    star = plain_graph(8, [(0, leaf) for leaf in range(1, 8)])
    found = fedmend.privacy.nfdp(d=5, D=15, graph=star)
    assert (found.degrees.smallest, found.degrees.largest, found.degrees.nodes) == (1, 7, 8)
    assert found.published == nfdp(d=5, D=15).published
    # A node with one neighbour always draws it.
    assert found.recomputed.one_hop.epsilon == pytest.approx(5 * math.log(2))
    assert found.recomputed.one_hop.delta == 1
    assert found.vacuous


def test_isolated_nodes_have_no_guarantee() -> None:
    found = nfdp(1, 15, layers=1, epochs=1, graph=ring(5, isolated=2))
    assert not found.recomputed.sampled.holds
    assert found.published.sampled.holds
    assert "no guarantee: 2 of 7 nodes have no neighbour" in found.sentence
    saved = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert saved["recomputed"]["sampled"] == {
        "epsilon": None,
        "delta": 1.0,
        "log10_one_minus_delta": None,
    }


def test_without_d_assumed_the_smallest_degree_is_taken() -> None:
    assert nfdp(1, graph=ring(6)).sampling.D == 2
    assert nfdp(1, graph=ring(6)).published == nfdp(1, 2).published
    neither = nfdp(1, graph=ring(6, isolated=1))
    assert not neither.published.sampled.holds
    assert not neither.recomputed.sampled.holds


def test_several_silos_are_their_degrees_together() -> None:
    both = account(5, 15, 1, 1, 1.0, 1e-5, {6: 1, 20: 4}).recomputed
    apart = [account(5, 15, 1, 1, 1.0, 1e-5, {degree: 1}).recomputed for degree in (6, 20)]
    assert both.one_hop.epsilon == max(each.one_hop.epsilon for each in apart)
    assert both.one_hop.delta == max(each.one_hop.delta for each in apart)


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8), min_size=1, max_size=3),
    st.integers(1, 9),
)
def test_a_few_degrees_of_each_silo_give_the_account_of_all(silos: list[list[int]], d: int) -> None:
    everyone = Counter(degree for each in silos for degree in each)
    few: Counter[int] = Counter()
    for each in silos:
        told = deciding_degrees(Counter(each), d)
        assert len(told) <= 4
        few.update(told)
    found, expected = (account(d, None, 2, 5, 0.5, 1e-5, dict(c)) for c in (few, everyone))
    assert found.to_dict() == expected.to_dict()


# Bad arguments


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"d": 0}, ["d=0", "1 to"]),
        ({"d": 2.5}, ["d=2.5", "a whole number"]),
        ({"d": True}, ["d=True", "a whole number"]),
        ({"D": 0}, ["D=0", "1 to"]),
        ({"D": 10**13}, ["D=10000000000000"]),
        ({"D": None}, ["D is missing", "a graph"]),
        ({"layers": 0}, ["layers=0"]),
        ({"epochs": -1}, ["epochs=-1"]),
        ({"epochs": 10**400}, ["epochs=1"]),
        ({"rate": 1.5}, ["rate=1.5", "0 to 1"]),
        ({"rate": math.nan}, ["rate=nan", "finite"]),
        ({"delta_prime": -0.1}, ["delta_prime=-0.1"]),
        ({"delta_prime": math.inf}, ["delta_prime=inf"]),
        ({"graph": "folder"}, ["must be a fedmend Graph", "got str", "read_folder"]),
    ],
)
def test_bad_arguments(given: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        nfdp(**{"d": 5, "D": 15, **given})
    for part in parts:
        assert part in str(error.value)


def test_no_degrees_at_all() -> None:
    with pytest.raises(SettingsError, match="no node at all"):
        account(5, 15, 2, 50, 1.0, 1e-5, {})
