"""The Python models of the demonstration of graphs: pages, lines of a detector's map, texts of scores."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mainspring.cli.graph_demo.material import HERE, digits

ndimage = pytest.importorskip("scipy.ndimage", reason="scipy comes with scikit-learn")


def code(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"demo_{name}", HERE / "models" / name / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OPEN, FIND, SPELL = code("open-page"), code("find-lines"), code("spell")


def page(colour: str, size: tuple[int, int] = (320, 192)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def test_pages_of_any_size_become_numbers_of_one() -> None:
    data = OPEN.Predictor("").predict({"page": np.array([page("white"), page("black", (31, 77))], object)})[
        "data"
    ]
    assert (data.shape, data.dtype) == ((2, 3, 192, 320), np.float32)
    assert [data[0].min(), data[1].max()] == [1, -1]


@pytest.mark.parametrize("file", [b"", b"GIF89a", page("white")[:60]])
def test_what_is_no_picture_is_the_requests_fault(file: bytes) -> None:
    with pytest.raises(ValueError, match="the page can't be opened as a picture"):
        OPEN.Predictor("").predict({"page": np.array([file], object)})


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.7), st.integers(1, 40), st.integers(1, 40))
def test_connected_parts_are_those_of_scipy(seed: int, share: float, height: int, width: int) -> None:
    seen = np.random.default_rng(seed).random((height, width)) < share
    parts, _ = ndimage.label(seen, structure=np.ones((3, 3)))
    expected = [(x.start, y.start, x.stop, y.stop) for y, x in ndimage.find_objects(parts)]
    large = [box for box in expected if min(box[2] - box[0], box[3] - box[1]) >= FIND.LEAST]
    assert sorted(FIND._blobs(seen)) == sorted(large)


def test_lines_are_cut_out_from_top_to_bottom() -> None:
    seen = np.zeros((1, 192, 320), np.float32)
    seen[0, 100:110, 20:60] = seen[0, 30:40, 100:300] = 1
    data = np.full((3, 192, 320), -1, np.float32)
    data[:, 100:110, 20:60] = 1
    found = FIND.Predictor("").predict({"data": data, "seen": seen})
    # Each grows by area x 1.6 / perimeter: 8 pixels of 200 x 10, 6 of 40 x 10.
    assert found["boxes"].tolist() == [[92, 22, 308, 48], [14, 94, 66, 116]]
    assert found["lines"].shape == (2, 3, 48, 320)
    assert found["lines"][0].max() == -1
    # The second is 52 x 22, so 48 high it is 113 wide; its middle is white, and what is behind it grey.
    assert found["lines"][1][:, 24, 56].tolist() == [1, 1, 1]
    assert not found["lines"][1][:, :, 113:].any()


def test_an_empty_page_has_no_lines_and_a_full_one_not_too_many() -> None:
    empty = FIND.Predictor("").predict(
        {"data": np.zeros((3, 192, 320), np.float32), "seen": np.zeros((1, 192, 320), np.float32)}
    )
    assert [empty["lines"].shape, empty["boxes"].shape] == [(0, 3, 48, 320), (0, 4)]
    stripes: npt.NDArray[np.float32] = np.zeros((1, 192, 320), np.float32)
    stripes[0].reshape(-1, 6, 320)[:, :3] = 1
    full = FIND.Predictor("").predict({"data": np.zeros((3, 192, 320), np.float32), "seen": stripes})
    assert len(full["lines"]) == FIND.MOST


def test_repetitions_and_blanks_are_no_characters(tmp_path: Path) -> None:
    (tmp_path / "characters.txt").write_text("a\nb\n字\n", encoding="utf-8")
    positions = [[1, 1, 0, 1, 2, 2, 4, 3], [0] * 8]
    scores = np.eye(5, dtype=np.float32)[positions]
    texts = SPELL.Predictor(str(tmp_path)).predict({"scores": scores})["text"].tolist()
    assert texts == ["aab 字".encode(), b""]


def test_no_digit_is_both_trained_on_and_asked_about() -> None:
    seen, held_out = digits(held_out=False), digits(held_out=True)
    assert len(seen.labels) + len(held_out.labels) == 1_797
    both = {image.tobytes() for image in seen.images} & {image.tobytes() for image in held_out.images}
    assert len(both) < 5  # Some digits are there twice, pixel for pixel.
    assert {*seen.labels.tolist()} == {*held_out.labels.tolist()} == {*range(10)}
