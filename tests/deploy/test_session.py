"""FLARE's errors as ours: one line each, whichever it is."""

from __future__ import annotations

import pytest
from nvflare.fuel.flare_api import api_spec

from fedmend.deploy.session import explained, flare_errors
from fedmend.errors import FederationError, RefusedError


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (api_spec.NoConnection("x"), "the connection to the server is lost; try again"),
        (api_spec.SessionExpired("x"), "the connection to the server is lost; try again"),
        (api_spec.InternalError("a\nb"), "cannot look: FLARE says InternalError: a b"),
        (api_spec.NoReply(), "cannot look: FLARE says NoReply: no more"),
        (RuntimeError("\x1b[1m"), "cannot look: FLARE says RuntimeError: ?[1m"),
    ],
)
def test_what_flare_raises_is_one_line(error: Exception, says: str) -> None:
    with pytest.raises(FederationError) as why, explained("look"):
        raise error
    assert str(why.value) == says


def test_a_role_that_may_not() -> None:
    with pytest.raises(RefusedError, match="this kit's role may not look"), explained("look"):
        raise api_spec.AuthorizationError


def test_all_of_flares_errors_are_known() -> None:
    wanted = {"InvalidJobDefinition", "InternalError", "SessionClosed", "NoReply", "JobNotFound"}
    assert wanted <= {each.__name__ for each in flare_errors()}


def test_a_bug_stays_one() -> None:
    with pytest.raises(TypeError), explained("look"):
        raise TypeError
