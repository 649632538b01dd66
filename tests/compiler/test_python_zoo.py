"""The zoo's Python models: what each gives for known inputs, and how it refuses others."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import compile_zoo, python_models

NEEDS = {"crop-boxes": "PIL", "decode-image": "PIL", "tokenize-text": "tokenizers", "top-labels": "numpy"}

Arrays = dict[str, npt.NDArray[Any]]


def predictor(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the `Predictor` of a model, in this process."""
    pytest.importorskip(NEEDS[name], reason="a Python model of the zoo needs the extra python-zoo")
    folder = python_models()[name]
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    import model  # type: ignore[import-not-found,unused-ignore]

    monkeypatch.setitem(sys.modules, "model", model)
    return model.Predictor(str(folder))


def picture(kind: str, size: tuple[int, int], colour: tuple[int, int, int]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def test_each_has_its_needs() -> None:
    assert {*python_models()} == {*NEEDS}


@pytest.mark.parametrize("name", NEEDS)
def test_each_compiles_once(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name], reason="a Python model of the zoo needs the extra python-zoo")
    store = Store(tmp_path)
    (first,) = compile_zoo([name], store)
    (again,) = compile_zoo([name], store)
    assert (first.kept, again.kept) == (False, True)
    assert first.manifest == again.manifest
    assert (first.manifest.source.kind, first.manifest.source.path) == ("zoo", name)


def test_a_name_that_is_nearly_one(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="did you mean 'crop-boxes'"):
        compile_zoo(["crop-box"], Store(tmp_path))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(640, 480), (200, 900), (31, 17), (9000, 1)])
def test_pictures_are_decoded(kind: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    decode = predictor("decode-image", monkeypatch)
    found = decode.predict({"image": np.array([picture(kind, size, (255, 0, 0))])})["data"]
    assert (found.shape, found.dtype) == ((1, 3, 224, 224), np.float32)
    expected = (np.array([1, 0, 0]) - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(found[0], np.broadcast_to(expected[:, None, None], (3, 224, 224)), atol=0.05)


def test_what_is_no_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = predictor("decode-image", monkeypatch)
    whole = picture("PNG", (300, 300), (1, 2, 3))
    for wrong in (b"", b"GIF89a", picture("BMP", (8, 8), (0, 0, 0))):
        with pytest.raises(ValueError, match="is neither a JPEG nor a PNG file"):
            decode.predict({"image": np.array([wrong])})
    for wrong in (whole[:40], whole[: len(whole) // 2]):
        with pytest.raises(ValueError, match="the image"):
            decode.predict({"image": np.array([wrong])})
    with pytest.raises(ValueError, match="has 8000 x 8000 pixels, which is too many"):
        decode.predict({"image": np.array([picture("PNG", (8000, 8000), (0, 0, 0))])})


def test_boxes_are_cut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    crop = predictor("crop-boxes", monkeypatch)
    image = np.zeros((100, 200, 3), np.uint8)
    image[20:40, 50:90] = (255, 128, 0)
    boxes = np.array([[50, 20, 90, 40], [0, 0, 10, 10], [5, 5, 5, 9], [150, 90, 999, np.nan]], np.float32)
    found = crop.predict({"image": image, "boxes": boxes})
    assert found["count"].tolist() == [2]
    assert found["lines"].shape == (2, 3, 32, 128)
    np.testing.assert_allclose(found["lines"][0].mean((1, 2)), [1, 128 / 255, 0], atol=1e-3)
    assert not found["lines"][1].any()
    none = crop.predict({"image": image, "boxes": np.zeros((1, 4), np.float32)})
    assert (none["lines"].shape, none["count"].tolist()) == ((0, 3, 32, 128), [0])


def test_texts_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = predictor("tokenize-text", monkeypatch)
    found = tokenize.predict({"text": np.array(["Grüße".encode()])})
    assert found["input_ids"].shape == found["attention_mask"].shape == (1, 512)
    assert found["count"].tolist() == [[7]]
    assert found["attention_mask"][0].tolist() == [1] * 7 + [0] * 505
    assert tokenize.tokenizer.decode(found["input_ids"][0, :7].tolist()) == "Grüße"
    found = tokenize.predict({"text": np.array([b"a" * 4000, b"", b"ab"])})
    assert found["count"].tolist() == [[4000], [0], [2]]
    assert found["attention_mask"].sum(axis=1).tolist() == [512, 0, 2]
    with pytest.raises(ValueError, match="the text is not UTF-8"):
        tokenize.predict({"text": np.array([b"\xff\xfe"])})


def test_the_likeliest_classes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = predictor("top-labels", monkeypatch)
    scores = np.zeros((2, 12), np.float32)
    scores[0, [11, 3, 7]] = (9, 8, 7)
    found = name.predict({"scores": scores})
    assert found["labels"][0].tolist() == ["11", "three", "seven", "zero", "one"]
    shares = np.exp(scores[0]) / np.exp(scores[0]).sum()
    np.testing.assert_allclose(found["probabilities"][0, :3], shares[[11, 3, 7]], rtol=1e-5)
    few = name.predict({"scores": np.array([[1, 2]], np.float32)})
    assert few["labels"][0].tolist() == ["one", "zero", "", "", ""]
    assert few["probabilities"][0, 2:].tolist() == [0, 0, 0]
