"""The one form of privacy accounts: to JSON and back, and nothing malformed gets in."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import FileFormatError
from fedmend.privacy.account import Account

GIVEN: dict[str, Any] = {
    "mechanism": "Gaussian noise on embeddings",
    "per": "a node's own row",
    "epsilon": 1.5,
    "delta": 1e-5,
    "uses": 3,
    "sentence": "Embeddings: epsilon 1.5.",
    "details": {"noise_multiplier": 2.0, "by silo": {"a": 3}},
    "drawn": True,
}


@given(
    epsilon=st.none() | st.floats(0, allow_infinity=False),
    delta=st.floats(0, 1),
    uses=st.integers(0),
    sentence=st.text(),
    details=st.dictionaries(st.text(), st.none() | st.integers() | st.text()),
)
def test_through_json_and_back(**changed: Any) -> None:
    account = Account(**{**GIVEN, **changed})
    assert Account.from_dict(json.loads(json.dumps(account.to_dict()))) == account


def test_an_infinite_epsilon_is_none_in_json() -> None:
    found = Account(**{**GIVEN, "epsilon": math.inf}).to_dict()
    assert found["epsilon"] is None
    assert Account.from_dict(found).epsilon is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"mechanism": 3}, "mechanism is no text"),
        ({"sentence": None}, "sentence is no text"),
        ({"epsilon": -0.1}, "epsilon is no number"),
        ({"epsilon": "1"}, "epsilon is no number"),
        ({"epsilon": True}, "epsilon is no number"),
        ({"epsilon": math.nan}, "epsilon is no number"),
        ({"epsilon": 10**400}, "epsilon is no number"),
        ({"delta": 1.1}, "delta is no number"),
        ({"delta": None}, "delta is no number"),
        ({"uses": -1}, "uses is no whole number"),
        ({"uses": 1.0}, "uses is no whole number"),
        ({"drawn": 1}, "drawn is neither"),
        ({"details": []}, "details is no object"),
        ({"details": {"x": math.inf}}, "details is no object"),
        ({"details": {"x": object()}}, "details is no object"),
        ({"more": 1}, "other fields"),
    ],
)
def test_malformed_accounts_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(FileFormatError, match=why):
        Account.from_dict({**GIVEN, **changed})


@pytest.mark.parametrize("given", [None, [], "account", {}])
def test_what_is_no_account_is_refused(given: Any) -> None:
    with pytest.raises(FileFormatError, match="other fields"):
        Account.from_dict(given)
