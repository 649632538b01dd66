from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.profiles import read_profile_table
from mainspring.messages.model import PAGE_BYTES

HEADER = "family,model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms\n"
ROW = "ResNet,resnet50,602,4,102.3,8.33,2.61,3.92\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "profiles.csv"
    path.write_text(HEADER + ROW)
    return path


def test_a_row_becomes_a_model(table: Path) -> None:
    (spec,) = read_profile_table(table)
    assert spec.name == "resnet50"
    assert spec.batch_sizes == (1, 2)
    assert spec.profiles["emulated"].infer_ns == {1: 2_610_000, 2: 3_920_000}
    assert spec.profiles["emulated"].load_ns == 8_330_000
    assert spec.weights_bytes == 102_300_000
    assert spec.extents == (1,) * 7
    assert spec.weights_bytes <= spec.pages * PAGE_BYTES
    assert spec.input_row_bytes == 602_000
    assert spec.output_row_bytes == 4_000


def test_copies_share_an_executable_and_nothing_else(table: Path) -> None:
    specs = read_profile_table(table, 3)
    assert [spec.name for spec in specs] == ["resnet50-1", "resnet50-2", "resnet50-3"]
    assert len({spec.executable for spec in specs}) == 1
    assert len({spec.weights_hash for spec in specs}) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no column model"),
        ("family,model\n", "has no column input_kb, output_kb, weights_mb, transfer_ms"),
        ("model,input_kb,output_kb,weights_mb,transfer_ms\nm,1,1,1,1\n", "has no column b1_ms"),
        (HEADER, "has no rows"),
        (
            HEADER + ROW.replace("102.3", "heavy"),
            "line 2, column weights_mb: 'heavy' is not a positive number",
        ),
        (HEADER + ROW.replace("8.33", "-1"), "line 2, column transfer_ms"),
        (HEADER + ROW.replace("2.61", "nan"), "line 2, column b1_ms"),
        (HEADER + ROW.replace("602", ""), "line 2, column input_kb"),
        (HEADER + ROW + ROW, "line 3: model 'resnet50' is in line 2 already"),
        (HEADER + ROW.replace("resnet50", "../x"), "line 2, column model: '../x' can't be a name"),
        (HEADER + ROW.replace("2.61,3.92", ","), "line 2: no batch size has a duration"),
        (HEADER + "ResNet,short\n", "line 2, column input_kb"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_column(table: Path, text: str, problem: str) -> None:
    table.write_text(text)
    with pytest.raises(CompileError) as caught:
        read_profile_table(table)
    assert problem in str(caught.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="No such file"):
        read_profile_table(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(CompileError, match="is not a CSV file in UTF-8"):
        read_profile_table(tmp_path / "b.csv")
