"""Errors that cross processes, as those of an application of Ray Serve do."""

from __future__ import annotations

import pickle

import pytest

from mainspring.client.errors import ERROR_OF_REASON, DeadlineUnreachable, MainspringError, error_of
from mainspring.messages.clients import ErrorReply
from mainspring.messages.codes import Reason


@pytest.mark.parametrize("reason", list(ERROR_OF_REASON))
def test_an_error_is_the_same_in_another_process(reason: Reason) -> None:
    error = error_of(ErrorReply(key=1, reason=reason, detail="so it is", earliest_finish_left_ns=70_000_000))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert isinstance(copy, MainspringError)
    assert (copy.detail, copy.reason) == (error.detail, reason)
    if isinstance(copy, DeadlineUnreachable):
        assert copy.earliest_finish_ms == 70.0
