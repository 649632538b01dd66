"""``model_warmup``: what the file says, and the rows that are read of it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from mainspring.repository.config_groups import samples_of
from mainspring.repository.layout import FoundModel, Layout
from mainspring.repository.model_config import read_config
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import artifact_name, recipe_of

CONFIG = """
model_warmup [
  { name: "a" batch_size: 1
    inputs { key: "x" value { data_type: TYPE_STRING dims: [2] input_data_file: "x" } }
    inputs { key: "n" value { data_type: TYPE_INT32 dims: [3] input_data_file: "n" } }
    inputs { key: "z" value { data_type: TYPE_FP32 dims: [1, 2] zero_data: true } }
    inputs { key: "r" value { data_type: TYPE_FP32 dims: [2] random_data: true } } },
  { name: "b" batch_size: 1
    inputs { key: "n" value { data_type: TYPE_INT32 dims: [3] input_data_file: "m" } } }
]
"""


def test_rows_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "warmup"
    folder.mkdir()
    (folder / "x").write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in (b"12", b"")))
    (folder / "n").write_bytes(np.arange(3, dtype=np.int32).tobytes())
    (folder / "m").write_bytes(np.arange(3, 6, dtype=np.int32).tobytes())
    config = read_config(CONFIG, "m")
    found = samples_of(config.warmup, tmp_path)
    assert {*found} == {"x", "n", "z"}
    assert found["x"].tolist() == [b"12", b""]
    assert found["n"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["z"].tolist() == [[0.0, 0.0]]
    assert [warning for warning in config.warnings if "random_data" in warning]
    plain = read_config("", "m")
    assert artifact_name("m", 1, "d", recipe_of(config)) != artifact_name("m", 1, "d", recipe_of(plain))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('data_type: TYPE_FP32 dims: [2] input_data_file: "none"', "none can't be read"),
        ('data_type: TYPE_FP32 dims: [2] input_data_file: "short"', "does not hold 2 elements of float32"),
        ('data_type: TYPE_STRING dims: [1] input_data_file: "short"', "does not hold 1 elements of string"),
        ('data_type: TYPE_FP32 dims: [2] input_data_file: "../short"', "is not the name of a file"),
        ("data_type: TYPE_FP31 dims: [2] zero_data: true", "data_type is 'TYPE_FP31'"),
    ],
)
def test_what_can_not_be_used_is_named(value: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"\x09\x00\x00\x00a")
    text = f'model_warmup {{ name: "a" inputs {{ key: "x" value {{ {value} }} }} }}'
    with pytest.raises(ConfigFault) as caught:
        samples_of(read_config(text, "m").warmup, tmp_path)
    assert why in str(caught.value)


def test_a_changed_file_makes_another_artifact(tmp_path: Path) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_bytes(b"any")
    value = 'data_type: TYPE_FP32 dims: [1] input_data_file: "x"'
    text = f'model_warmup {{ name: "a" inputs {{ key: "x" value {{ {value} }} }} }}'
    (model / "config.pbtxt").write_text(text)
    layout = Layout(tmp_path, settle_ns=0)

    def look() -> FoundModel:
        found = layout.look("m", 1 << 62, lambda *_: False)
        assert found is not None
        return found

    def name() -> str:
        found = look()
        assert not found.fault
        return artifact_name("m", 1, found.digests[1], recipe_of(found.config))

    assert look().fault == "config.pbtxt, input_data_file 'x' is not in the model's folder warmup"
    file = model / "warmup" / "x"
    file.parent.mkdir()
    names = []
    for number in (1, 2, 1):
        file.write_bytes(np.float32(number).tobytes())
        names.append(name())
    assert look() is look(), "where nothing changed, nothing is read"
    assert names[0] == names[2] != names[1]
    before = look().config.warmup
    file.write_bytes(np.float32(3).tobytes())
    with pytest.raises(ConfigFault, match="was changed meanwhile"):
        samples_of(before, model)
