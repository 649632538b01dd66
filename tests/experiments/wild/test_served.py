"""Files through a real cluster: what is served, what is refused, and that a wrong answer is found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.experiments.wild.asking import Site, lay, predictions, site
from mainspring.experiments.wild.files import WildFile
from mainspring.experiments.wild.trial import REFUSED, SERVED, SKIPPED, WRONG, Drawing, Row, Trial
from tests.made_models import Made, save

NEGATE = "g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }"
ABSOLUTE = "g (float[N,8] x) => (float[N,8] y) { y = Abs(x) }"
LENGTHS = "g (float[N,length,8] x) => (float[N,length,8] y) { y = Softmax<axis=1>(x) }"
SCALAR = "g (float x) => (float y) { y = Exp(x) }"
UNEQUAL = (
    "g (float[4,6] x) => (seq(float) y) <int64[2] parts = {2, 4}> { y = SplitToSequence<axis=1>(x, parts) }"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("wild"), print) as each:
        yield each


@pytest.fixture
def drawing() -> Iterator[Drawing]:
    drawing = Drawing()
    yield drawing
    drawing.close()


def tried(running: Site, drawing: Drawing, graph: str, reference: str = "") -> Row:
    """Serve one graph and compare with it, or with another."""
    folder = running.run_dir.parent
    path, other = folder / "file.onnx", folder / "reference.onnx"
    save(Made("test", graph), path)
    save(Made("test", reference or graph), other)
    lay(WildFile("tried", "test", path), folder / "models")
    try:
        return Trial(WildFile("tried", "test", other), running, drawing).run()
    finally:
        shutil.rmtree(folder / "models" / "tried")


def test_rows_are_asked_for_alone_and_together(running: Site, drawing: Drawing) -> None:
    row = tried(running, drawing, NEGATE)
    assert (row.status, row.how, row.most_rows, row.sentence) == (SERVED, "batched", 16, "")
    # Four numbers of rows in three ways, and eight strangers twice at least.
    assert row.requests >= 4 * 3 + 8 * 2
    assert row.load_s > 0


def test_requests_of_any_length_are_answered(running: Site, drawing: Drawing) -> None:
    row = tried(running, drawing, LENGTHS)
    assert (row.status, row.how, row.sentence) == (SERVED, "batched, lengths", "")


def test_a_model_without_rows_is_served_whole(running: Site, drawing: Drawing) -> None:
    row = tried(running, drawing, SCALAR)
    assert (row.status, row.how, row.most_rows) == (SERVED, "whole", 0)


def test_an_answer_that_differs_is_found(running: Site, drawing: Drawing) -> None:
    row = tried(running, drawing, NEGATE, reference=ABSOLUTE)
    assert row.status == WRONG
    assert "output 'y'" in row.sentence
    assert "instead of" in row.sentence


def test_a_refusal_is_told_in_the_products_own_words(running: Site, drawing: Drawing) -> None:
    row = tried(running, drawing, UNEQUAL)
    assert row.status == REFUSED
    assert "Split instead of SplitToSequence" in row.sentence


def test_without_a_steady_answer_there_is_nothing_to_compare(running: Site, drawing: Drawing) -> None:
    noise = "g (float[N,8] x) => (float[N,8] y) { y = RandomNormalLike(x) }"
    assert tried(running, drawing, NEGATE, reference=noise).status == SKIPPED


def test_predictions_are_read_from_the_log(tmp_path: Path, drawing: Drawing) -> None:
    with site(tmp_path, print) as running:
        row = tried(running, drawing, NEGATE)
    found = predictions(running.run_dir)[row.name]
    assert found.error_p99_ms > 0
    assert found.error_p99_part > 0
    assert found.spread >= 1
