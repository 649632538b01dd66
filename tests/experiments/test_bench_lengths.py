"""The benchmark of lengths: its text, its figures, Triton's configuration, and without the model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from mainspring.experiments.bench import foreign, lengths, minilm
from mainspring.experiments.bench.triton import server
from mainspring.messages.model import OpenDim, Symbol, TensorSpec, Term
from tests.scheduler.hand import spec


def missing() -> Path:
    raise foreign.Unavailable("there is no wheel of it for this machine")


def turn(side: str, factor: float, requests: int, in_time: int) -> lengths.Turn:
    return lengths.Turn(side, factor, 10.0, requests, in_time, {}, 0.0, 0, 1)


def test_sentences_are_as_long_as_their_pieces() -> None:
    short, long = minilm.sentences("It is a short one. " + "Wordings " * 200 + ".")
    assert len(short) == 2 + 6, "four words, one of them of two pieces, and the mark; begin and end"
    assert len(long) == minilm.LONGEST
    assert minilm.sentences("Same words here.\n\nSame words here.")[0].tolist() == (
        minilm.sentences("Same words here.")[0].tolist()
    )


def test_the_text_has_sentences_of_many_lengths() -> None:
    every = [len(ids) for ids in minilm.drawn(500, seed=1)]
    assert len({*every}) > 40
    assert 10 < minilm.median_length(minilm.sentences()) < minilm.LONGEST // 2


def test_padding_is_masked() -> None:
    tensors = minilm.tensors(np.arange(1, 6), 8)
    assert tensors["input_ids"].tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert minilm.tensors(np.arange(1, 6))["input_ids"].shape == (1, 5)
    assert minilm.tensors(np.arange(1, 6), 3)["input_ids"].tolist() == [[1, 2, 3]]


def test_figures_are_ratios_of_the_sides() -> None:
    turns = [
        *(turn(lengths.OPEN, 1.0, 100, done) for done in (80, 90, 100)),
        *(turn(lengths.LONGEST, 1.0, 200, done) for done in (80, 100, 60)),
        turn(lengths.OPEN, 0.0, 100, 100),
    ]
    found = {lengths.OPEN: lengths.Error(3.0, 10.0, 50), lengths.MEDIAN: lengths.Error(1.5, 10.0, 50)}
    rows = {row.name: row for row in lengths.figures(turns, found, {}, 10.0)}
    ratio = rows["1 x: goodput, open over padded"]
    assert ratio.value == pytest.approx(90 / 40)
    assert ratio.met
    error = rows["prediction error, p99: open over fixed"]
    assert (error.value, error.met) == (2.0, False)


def test_memory_that_grows_misses_its_target() -> None:
    steady, _ = lengths.memory_figures(lengths.Memory(100 << 20, 101 << 20, 101 << 20, 1_000), 1 << 20)
    grown, _ = lengths.memory_figures(lengths.Memory(100 << 20, 130 << 20, 130 << 20, 1_000), 1 << 20)
    assert (steady.met, grown.met) == (True, False)


def test_triton_has_open_dimensions_as_such(tmp_path: Path) -> None:
    ids = TensorSpec("ids", "int64", (128,), (OpenDim(0, (Term(0),)),))
    hidden = TensorSpec("hidden", "float32", (128, 4), (OpenDim(0, (Term(0),)),))
    open_spec = msgspec.structs.replace(
        spec("m"), inputs=(ids,), outputs=(hidden,), symbols=(Symbol("seq", (16, 128)),)
    )
    server.write_repository(tmp_path, {"m": onnx.ModelProto()}, open_spec, 8)
    config = (tmp_path / "m" / "config.pbtxt").read_text()
    assert 'input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } ]' in config
    assert 'output [ { name: "hidden" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]' in config


def test_without_the_model_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(minilm, "model_file", missing)
    lengths.main()
    assert "skipped: there is no wheel of it" in capsys.readouterr().out
