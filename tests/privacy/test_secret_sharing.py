"""Field, code, masks and seals: exact arithmetic, and shares that tell nothing."""

from __future__ import annotations

import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedmend.errors import FederationError, SettingsError
from fedmend.privacy import field
from fedmend.privacy.field import PRIME, add, add_rows, from_field, limit, subtract, times, to_field
from fedmend.privacy.lagrange import LagrangeCode, basis, determinant
from fedmend.privacy.masks import MaskGenerator
from fedmend.privacy.sealing import Sealing

elements = st.integers(0, PRIME - 1)
extremes = st.sampled_from(
    [0, 1, 2, PRIME - 1, PRIME - 2, PRIME // 2, PRIME // 2 + 1, 2**32, 2**60]
)
thresholds = st.integers(1, 6)


def array(*values: int) -> field.Elements:
    return np.array(values, dtype=np.uint64)


# Field


@given(elements | extremes, elements | extremes)
def test_field_against_whole_numbers(one: int, other: int) -> None:
    assert add(array(one), array(other)).tolist() == [(one + other) % PRIME]
    assert subtract(array(one), array(other)).tolist() == [(one - other) % PRIME]
    assert times(one, array(other)).tolist() == [one * other % PRIME]


@given(st.integers(0, 2**64 - 1))
def test_reduced(value: int) -> None:
    assert field.reduced(array(value)).tolist() == [value % PRIME]


@given(st.lists(st.tuples(elements | extremes, st.integers(0, 3)), max_size=40))
def test_add_rows_against_a_loop(pairs: list[tuple[int, int]]) -> None:
    expected = [0, 0, 0, 0]
    for value, group in pairs:
        expected[group] = (expected[group] + value) % PRIME
    rows = np.array([value for value, _ in pairs], dtype=np.uint64).reshape(-1, 1)
    groups = np.array([group for _, group in pairs], dtype=np.int64)
    assert add_rows(rows, groups, 4)[:, 0].tolist() == expected


def test_a_hundred_thousand_rows_do_not_overflow() -> None:
    rows = np.full((100_000, 2), PRIME - 1, dtype=np.uint64)
    total = add_rows(rows, np.zeros(100_000, dtype=np.int64), 1)
    assert total.tolist() == [[-100_000 % PRIME] * 2]


@given(st.floats(-1e6, 1e6), st.integers(0, 30))
def test_fixed_point_there_and_back(value: float, bits: int) -> None:
    back = from_field(to_field(np.array([value]), bits, 1, "somebody"), bits)[0]
    assert back == np.rint(value * 2.0**bits) / 2.0**bits


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 4.2e9])
def test_what_does_not_fit_is_an_error(value: float) -> None:
    with pytest.raises(FederationError, match=r"silo-3 has a value of size .* fewer fraction_bits"):
        to_field(np.array([0.0, value]), 28, 2, "silo-3")


@given(st.integers(1, 10**6), st.integers(0, 40))
def test_the_largest_number_allowed_fits_as_often_as_said(summands: int, bits: int) -> None:
    largest = limit(bits, summands) * 0.999999 - 2.0 ** (1 - bits)
    for sign in (1.0, -1.0):
        whole = int(to_field(np.array([sign * largest]), bits, summands, "it")[0])
        total = whole * summands % PRIME
        assert from_field(array(total), bits)[0] == pytest.approx(sign * largest * summands)
    with pytest.raises(FederationError, match="do not fit"):
        to_field(np.array([limit(bits, summands) * 1.000001]), bits, summands, "it")


# Lagrange code


@given(
    thresholds,
    st.integers(0, 2),
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=12),
)
def test_sum_of_encodings_decodes_to_the_sum(
    threshold: int, checks: int, messages: list[list[float]]
) -> None:
    code, masks = LagrangeCode(threshold, checks), MaskGenerator()
    values = to_field(np.array(messages), 28, len(messages), "somebody")
    shares = code.encode(values, masks.elements(threshold, *values.shape))
    sums = np.stack([add_rows(s, np.zeros(len(values), np.int64), 1) for s in shares])
    found = from_field(code.decode(sums), 28)[0]
    fixed = [[int(np.rint(x * 2.0**28)) for x in row] for row in messages]
    exact = [sum(column) for column in zip(*fixed, strict=True)]
    assert found.tolist() == [total / 2.0**28 for total in exact]
    assert code.consistent(sums)


def test_a_hundred_thousand_neighbours() -> None:
    code, masks = LagrangeCode(2), MaskGenerator()
    rng = np.random.default_rng(0)
    values = rng.uniform(-300.0, 300.0, (100_000, 2))
    values[:4] = limit(28, 100_000) * 0.99 * np.array([[1, -1], [1, -1], [-1, 1], [1, 1]])
    coded = to_field(values, 28, 100_000, "somebody")
    shares = code.encode(coded, masks.elements(2, *coded.shape))
    group = np.zeros(100_000, np.int64)
    sums = np.stack([add_rows(share, group, 1) for share in shares])
    exact = np.rint(values * 2.0**28).astype(np.int64).astype(object).sum(0)
    assert from_field(code.decode(sums), 28)[0].tolist() == [int(e) / 2.0**28 for e in exact]


@given(thresholds, st.integers(0, 2), elements, st.data())
def test_encoding_against_the_polynomial(
    threshold: int, checks: int, message: int, data: st.DataObject
) -> None:
    masks = data.draw(st.lists(elements, min_size=threshold, max_size=threshold))
    code = LagrangeCode(threshold, checks)
    shares = code.encode(array(message), np.array(masks, dtype=np.uint64)[:, None])
    betas, hidden = code.hidden_points, [message, *masks]
    for share, alpha, coefficient in zip(shares, code.share_points, code.decoding, strict=True):
        value = sum(h * b for h, b in zip(hidden, basis(betas, alpha), strict=True))
        assert int(share[0]) == value * coefficient % PRIME
    assert code.decode(shares).tolist() == [message]


@pytest.mark.parametrize("threshold", [1, 2, 3, 5])
@pytest.mark.parametrize("checks", [0, 1])
def test_any_t_shares_are_uniform_by_rank(threshold: int, checks: int) -> None:
    """Lemma 5.1 for every choice: masks map one to one onto any T shares, whatever the message."""
    code = LagrangeCode(threshold, checks)
    for columns in combinations(range(code.shares), threshold):
        bottom = [[row[j] for j in columns] for row in code.premultiplied[1:]]
        assert determinant(bottom) != 0
    for columns in combinations(range(code.shares), threshold + 1):
        whole = [[row[j] for j in columns] for row in code.premultiplied]
        assert determinant(whole) != 0, "any T + 1 shares give the message"
    assert not set(code.hidden_points) & set(code.share_points)


def test_determinant_finds_a_singular_matrix() -> None:
    assert determinant([[1, 2], [2, 4]]) == 0
    assert determinant([[0, 1], [1, 0]]) == PRIME - 1
    assert determinant([[2, 3], [1, 4]]) == 5


@pytest.mark.parametrize("message", [0, 1, PRIME - 1, PRIME // 3])
def test_shares_of_a_constant_message_look_uniform(message: int) -> None:
    code = LagrangeCode(2)
    masks = MaskGenerator(seed=message % 1000)
    constant = np.full(60_000, message, dtype=np.uint64)
    shares = code.encode(constant, masks.elements(2, 60_000))
    cell = np.uint64((PRIME + 15) // 16)
    for one, other in combinations(shares, 2):
        for share in (one, other):
            counts = np.bincount((share // cell).astype(np.int64), minlength=16)
            assert chisquare(counts).pvalue > 1e-6
            assert chisquare(np.bincount((share & np.uint64(15)).astype(int))).pvalue > 1e-6
        jointly = (one // cell * np.uint64(16) + other // cell).astype(np.int64)
        assert chisquare(np.bincount(jointly, minlength=256)).pvalue > 1e-6
    # The test has power: all three together are anything but uniform.
    assert len(np.unique(code.decode(shares))) == 1


@given(thresholds, st.integers(1, 2), st.integers(1, PRIME - 1), st.data())
def test_a_wrong_share_is_noticed(
    threshold: int, checks: int, error: int, data: st.DataObject
) -> None:
    code = LagrangeCode(threshold, checks)
    shares = code.encode(array(5, 6), MaskGenerator().elements(threshold, 2))
    assert code.consistent(shares)
    wrong = data.draw(st.integers(0, code.shares - 1))
    shares[wrong, 1] = (int(shares[wrong, 1]) + error) % PRIME
    assert not code.consistent(shares)


def test_a_code_needs_a_threshold() -> None:
    with pytest.raises(ValueError, match="threshold >= 1"):
        LagrangeCode(0)


# Masks


def test_masks_are_elements_and_never_repeat() -> None:
    masks = [MaskGenerator() for _ in range(3)]
    drawn = np.concatenate([m.elements(1000) for _ in range(10) for m in masks])
    assert int(drawn.max()) < PRIME
    assert len(np.unique(drawn)) == len(drawn)


def test_the_prime_itself_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = MaskGenerator()
    given_out = [array(PRIME, 5, 2**64 - 1), array(PRIME, 6), array(7)]
    monkeypatch.setattr(generator, "_words", lambda count: given_out.pop(0))
    assert generator.elements(3).tolist() == [7, 5, 6]


def test_seeded_masks_are_for_tests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = MaskGenerator(seed=4).elements(9), MaskGenerator(seed=4).elements(9)
    assert one.tolist() == other.tolist()
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(SettingsError, match="seeded masks hide nothing"):
        MaskGenerator(seed=4)
    assert MaskGenerator().elements(2, 3).shape == (2, 3)


# Seals


def test_a_box_opens_for_its_receiver_and_purpose_alone() -> None:
    sender, receiver, other = Sealing(), Sealing(), Sealing()
    box = sender.seal(b"secret", receiver.public, "round 1")
    assert b"secret" not in box
    assert receiver.open(box, sender.public, "round 1") == b"secret"
    for opener, peer, purpose in [
        (other, sender, "round 1"),
        (receiver, other, "round 1"),
        (receiver, sender, "round 2"),
        (sender, receiver, "round 1"),
    ]:
        with pytest.raises(FederationError, match="does not open"):
            opener.open(box, peer.public, purpose)
    changed = box[:-1] + bytes([box[-1] ^ 1])
    for bad in (changed, box[:5], b""):
        with pytest.raises(FederationError, match="does not open"):
            receiver.open(bad, sender.public, "round 1")


def test_the_same_content_never_looks_the_same() -> None:
    sender, receiver = Sealing(), Sealing()
    boxes = {sender.seal(b"same", receiver.public, "p") for _ in range(50)}
    assert len(boxes) == 50


@pytest.mark.parametrize("key", [bytes(32), b"short", b""])
def test_a_bad_public_key_is_refused(key: bytes) -> None:
    with pytest.raises(FederationError, match="public key is not valid"):
        Sealing().seal(b"x", key, "p")


def test_secrets_are_not_shown() -> None:
    sealing = Sealing()
    assert repr(sealing) == f"Sealing({sealing.fingerprint})"


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("cryptography"):
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=r"pip install 'fedmend\[privacy\]'"):
        Sealing()
    with pytest.raises(SettingsError, match=r"pip install 'fedmend\[privacy\]'"):
        MaskGenerator()
