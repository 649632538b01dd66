"""A file says itself what it holds."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from mainspring.traces.arrival import Kind
from mainspring.traces.recipe import chosen_kind
from mainspring.traces.tracefile import TraceError


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("HashOwner,HashApp,HashFunction,Trigger,1", Kind.AZURE2019),
        ("\ufeffhashowner,HashApp,HashFunction,Trigger,481", Kind.AZURE2019),
        ("app,func,end_timestamp,duration", Kind.AZURE2021),
    ],
)
def test_a_files_header_tells_its_kind(tmp_path: Path, header: str, kind: Kind) -> None:
    path = tmp_path / "t.csv"
    path.write_text(header + "\n")
    assert chosen_kind(None, path) is kind
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert chosen_kind(None, path) is kind


def test_what_was_chosen_is_taken_and_synthetic_without_a_file() -> None:
    assert chosen_kind(Kind.GAMMA, None) is Kind.GAMMA
    assert chosen_kind(None, None) is Kind.SYNTHETIC


@pytest.mark.parametrize("text", ["", "time,model\n1,a\n"])
def test_a_file_of_another_schema_is_refused_with_both_headers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"t\.csv:1: .*HashOwner.*end_timestamp,duration \(2021\)"):
        chosen_kind(None, path)
