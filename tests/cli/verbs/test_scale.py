"""What ``mainspring scale`` takes for a kind and a count."""

from __future__ import annotations

import pytest
import typer

from mainspring.cli.verbs.scale import parse


def test_a_kind_may_have_an_equals_sign_itself() -> None:
    assert parse("emulated=4") == ("emulated", 4)
    assert parse("a=b=0") == ("a=b", 0)


@pytest.mark.parametrize(
    "text", ["emulated", "=4", "emulated=", "emulated=-1", "emulated=x", "a=" + "9" * 5000]
)
def test_what_is_no_kind_and_count_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse(text)
    assert len(str(refused.value)) < 200
