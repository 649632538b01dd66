"""The benchmark of embeddings, with a small encoder: both sides answer the same texts alike."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import onnxruntime
import pytest

from mainspring.experiments.bench.embeddings import (
    LONGEST,
    SHORTEST,
    OneByOne,
    cluster,
    compare,
    predictor,
    texts,
)
from tests.gateway.test_served_texts import ask, encoder

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="a Python model of the zoo needs tokenizers"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("encoder") / "encoder.onnx"
    encoder(made)
    return made


def test_texts_have_all_lengths() -> None:
    lengths = [len(text) for text in texts()]
    assert (min(lengths), max(lengths)) >= (SHORTEST, LONGEST - 5)
    assert max(lengths) <= LONGEST


def test_both_sides_give_a_text_the_same_vector(file: Path, tmp_path: Path) -> None:
    OneByOne.session, OneByOne.predictor = onnxruntime.InferenceSession(file), predictor()
    with cluster(tmp_path, file) as target:
        status, found, _ = ask(
            f"http://127.0.0.1:{target.port}", target.path, {"model": "texts", "input": "abc"}
        )
    assert status == 200
    assert found["data"][0]["embedding"] == pytest.approx(OneByOne.embed("abc").tolist(), abs=1e-6)


def test_it_compares_what_both_answer_in_time(file: Path) -> None:
    capacity, *shares, ratio = compare(file, 1.0, 1)
    assert capacity.value > 0
    assert [0.0 <= each.value <= 100.0 for each in shares] == [True, True]
    assert ratio.at_least
