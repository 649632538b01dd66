"""Pipelines whose rows only rules for estimators, tokens and Scans keep apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.experiments.pipelines.__main__ import WANTED, tried
from mainspring.experiments.pipelines.made import PIPELINES, Pipeline

SOME = {
    *("neighbours", "gaussian-process", "calibrated-isotonic", "binned", "voting-hard-words"),
    *("characters", "tfidf-pairs-of-words", "columns-logistic"),
}


def test_there_are_fifty() -> None:
    assert len({each.name for each in PIPELINES}) == 50 > WANTED
    assert {each.name for each in PIPELINES} > SOME


@pytest.mark.parametrize(
    "pipeline", [each for each in PIPELINES if each.name in SOME], ids=lambda each: each.name
)
@pytest.mark.filterwarnings("ignore")
def test_it_takes_many_rows_and_answers_each_as_if_alone(pipeline: Pipeline, tmp_path: Path) -> None:
    found = tried(pipeline, tmp_path)
    assert (found.why, found.wrong) == ("", "")
    assert found.rows > 1
    assert found.same > 0.9
