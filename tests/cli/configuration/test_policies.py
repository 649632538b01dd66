"""Policies and their options from the command line."""

from __future__ import annotations

import pytest

from mainspring.cli.configuration.policies import check_policy, parse_options
from mainspring.messages.tables import ConfigError


def test_values_are_read_as_toml_or_are_text() -> None:
    texts = ["a=1", "b=2.5", "c=true", "d=soon", 'e="x=y"', "f=x=y"]
    assert parse_options(texts) == {"a": 1, "b": 2.5, "c": True, "d": "soon", "e": "x=y", "f": "x=y"}


@pytest.mark.parametrize("text", ["", "a", "a=", "=1"])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="given as key=value"):
        parse_options([text])


def test_a_policy_without_such_an_option_is_refused_before_anything_starts() -> None:
    check_policy("clockwork")
    with pytest.raises(ConfigError, match="policy 'clockwork' has no option 'speed'"):
        check_policy("clockwork", {"speed": 2})
