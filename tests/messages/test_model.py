"""What tensors may hold, and how many bytes their rows take."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mainspring.messages.model import (
    DTYPES,
    ModelSpec,
    OpenDim,
    Profile,
    Symbol,
    TensorSpec,
    Term,
    is_dtype,
    slot_bytes,
)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_rows_of_numbers_take_what_numpy_says(dtype: str) -> None:
    assert is_dtype(dtype)
    assert slot_bytes(dtype) is None
    assert TensorSpec("x", dtype, (3, 5)).row_bytes == 15 * np.dtype(dtype).itemsize


def test_rows_of_bfloat16_and_of_slots_take_what_they_hold() -> None:
    assert TensorSpec("x", "bfloat16", (3, 5)).row_bytes == 30
    assert TensorSpec("x", "S64", ()).row_bytes == slot_bytes("S64") == np.dtype("S64").itemsize
    assert TensorSpec("x", "S7", (2,)).row_bytes == 14


@pytest.mark.parametrize("dtype", ["", "S", "S0", "S-1", "S9999999999", "S4 ", "s4", "float", "object", "U4"])
def test_other_dtypes_are_none(dtype: str) -> None:
    assert not is_dtype(dtype)
    assert slot_bytes(dtype) is None


HEIGHT, WIDTH = Symbol("height", (32, 64, 100), least=3), Symbol("width", (64, 128))
STRIDED = (Term(0, 1, 1, 2), Term(1, 1, -4, 3))
"""Of a convolution with strides 2 and 3."""
IMAGE = TensorSpec("image", "uint8", (3, 100, 128), (OpenDim(1, (Term(0),)), OpenDim(2, (Term(1),))))
PIXELS = TensorSpec("pixels", "float32", (8 * 50 * 41, 5), (OpenDim(0, STRIDED, scale=8),))


def model_with_symbols() -> ModelSpec:
    shaped = {"64x128": {1: 70, 4: 200}, "100x128": {1: 100, 4: 300}}
    return ModelSpec(
        name="det",
        weights_hash="w",
        executable="e",
        batch_sizes=(1, 4),
        weights_bytes=1,
        extents=(1,),
        inputs=(IMAGE,),
        outputs=(PIXELS,),
        profiles={"cpu": Profile({1: 100, 4: 300}, 7, shaped)},
        symbols=(HEIGHT, WIDTH),
    )


def test_open_dimensions_follow_the_sizes() -> None:
    assert IMAGE.at((33, 70)) == TensorSpec("image", "uint8", (3, 33, 70))
    assert PIXELS.at((33, 70)).shape == (8 * ((33 + 1) // 2) * ((70 - 4) // 3), 5)
    assert PIXELS.at((100, 128)).shape == PIXELS.shape
    fixed = TensorSpec("x", "int8", (2, 3))
    assert fixed.at(()) is fixed


def test_sizes_belong_to_the_smallest_bucket_that_holds_them() -> None:
    model = model_with_symbols()
    assert model.bucket_of((3, 1)) == (32, 64)
    assert model.bucket_of((32, 65)) == (32, 128)
    assert model.bucket_of((100, 128)) == (100, 128)
    for sizes, name in (((101, 1), "height is 101"), ((2, 1), "height is 2"), ((3, 0), "width is 0")):
        with pytest.raises(ValueError, match=f"{name}; the model takes height from 3 to 100, width from 1"):
            model.bucket_of(sizes)
    with pytest.raises(ValueError, match=r"compile it with `--max height=101`, or .* parameter max\.height"):
        model.bucket_of((101, 1))
    with pytest.raises(ValueError, match="1 sizes were given for the symbols height from 3"):
        model.bucket_of((5,))


def test_buckets_ascend_by_the_space_that_they_take() -> None:
    model = model_with_symbols()
    assert model.buckets == ((32, 64), (32, 128), (64, 64), (100, 64), (64, 128), (100, 128))
    assert model.executables == ("e", *[model.at(each).executable for each in model.buckets])


def test_a_bucket_is_a_model_of_fixed_shapes() -> None:
    bucket = model_with_symbols().at((64, 128))
    assert (bucket.name, bucket.executable, bucket.symbols) == ("det@64x128", "e@64x128", ())
    assert bucket.inputs[0] == TensorSpec("image", "uint8", (3, 64, 128))
    assert bucket.outputs[0].shape == (8 * 32 * 41, 5)
    assert bucket.profiles == {"cpu": Profile({1: 70, 4: 200}, 7)}
    # A bucket without durations of its own has those of the limits, which are never too short.
    assert model_with_symbols().at((32, 64)).profiles["cpu"].infer_ns == {1: 100, 4: 300}


def test_messages_without_symbols_are_still_read() -> None:
    fields = {"name": "x", "dtype": "int8", "shape": [2]}
    assert msgspec.convert(fields, TensorSpec) == TensorSpec("x", "int8", (2,))
    model = model_with_symbols()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=ModelSpec) == model
