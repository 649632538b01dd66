from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.cli.launcher.models import ModelSource
from mainspring.compiler.artifact.profiles import EMULATED
from mainspring.messages.tables import ConfigError

HEADER = "family,model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms,b4_ms,b8_ms,b16_ms\n"
ROW = "ResNet,resnet50,602,4,102.1,8.33,2.77,3.95,5.88,9.78,16.58\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "profiles.csv"
    path.write_text(text)
    return path


def test_a_row_becomes_copies_that_share_their_executable(tmp_path: Path) -> None:
    first, second = ModelSource(profiles=str(write(tmp_path, HEADER + ROW)), copies=2).specs()
    assert (first.name, second.name) == ("resnet50-1", "resnet50-2")
    assert first.executable == second.executable
    assert first.weights_hash != second.weights_hash
    assert first.pages == 7
    assert first.profiles[EMULATED].infer_ns[16] == 16_580_000
    assert first.profiles[EMULATED].load_ns == 8_330_000
    assert first.input_row_bytes == 602_000


def test_a_table_that_is_wrong_is_a_wrong_configuration(tmp_path: Path) -> None:
    for text, complaint in ((HEADER, "no rows"), (HEADER + ROW.replace("8.33", "fast"), "line 2")):
        with pytest.raises(ConfigError, match=complaint):
            ModelSource(profiles=str(write(tmp_path, text))).specs()


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv"):
        ModelSource(profiles=str(tmp_path / "none.csv")).specs()
