"""Log settings: what is set is what is logged, and what has no counterpart is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mainspring.gateway.oip.datatypes import Unfit, Unserved
from mainspring.gateway.services import change_log, log_settings

LOGGER = logging.getLogger("mainspring")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    before = LOGGER.level
    LOGGER.setLevel(logging.WARNING)
    yield LOGGER
    LOGGER.setLevel(before)


def test_what_is_logged_is_what_was_set(logger: logging.Logger) -> None:
    assert log_settings() == {
        "log_file": "",
        "log_info": False,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    change_log({"log_info": True, "log_verbose_level": 2, "log_error": None})
    assert logging.getLogger("mainspring.gateway").isEnabledFor(logging.DEBUG)
    assert log_settings()["log_verbose_level"] == 1
    change_log({"log_verbose_level": 0, "log_info": False, "log_warning": False})
    assert logger.level == logging.ERROR
    change_log({"log_error": False})
    assert logger.level == logging.CRITICAL


@pytest.mark.parametrize(
    ("wanted", "kind", "said"),
    [
        ({"nothing": 1}, Unfit, "there is no log setting 'nothing'"),
        ({"log_info": 1}, Unfit, "true or false"),
        ({"log_verbose_level": -1}, Unfit, "whole number from 0"),
        ({"log_verbose_level": True}, Unfit, "whole number from 0"),
        ({"log_verbose_level": 1}, Unserved, "log_info can't be off while"),
        ({"log_error": False}, Unserved, "log_error can't be off while"),
        ({"log_file": "/tmp/log"}, Unserved, "standard error"),
        ({"log_info": True, "log_format": "ISO8601"}, Unserved, "--log-format"),
    ],
)
def test_log_settings_that_are_refused_change_nothing(
    logger: logging.Logger, wanted: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        change_log(wanted)
    assert logger.level == logging.WARNING
