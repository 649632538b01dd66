from __future__ import annotations

import pytest

from mainspring.messages.choices import did_you_mean, one_of


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("fiffo", "; did you mean 'fifo'?"),
        ("EDF", "; did you mean 'edf'?"),
        ("gpu", ""),
        ("", ""),
        ("zzz" * 1_000, ""),
    ],
)
def test_the_nearest_word_is_named(word: str, meant: str) -> None:
    assert did_you_mean(word, ("edf", "", "fifo")) == meant


def test_all_words_are_named_in_their_order() -> None:
    assert one_of("tnv", ("onnxruntime", "tvm")) == "onnxruntime, tvm; did you mean 'tvm'?"
    assert one_of("GPU", ("cpu", "cuda")) == "cpu, cuda; did you mean 'cuda'?"
    assert one_of("x", ("onnxruntime", "tvm")) == "onnxruntime, tvm"
