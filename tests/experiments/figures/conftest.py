"""A table of three varieties and a day of an Azure file, small enough for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mainspring.experiments.figures.azure import FILE
from mainspring.experiments.figures.options import Options

TABLE = """family,model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms,b2_ms,b4_ms,b8_ms,b16_ms
ResNet v2,resnet50_v2,602,4,102.2,8.32,2.73,4.05,5.87,9.93,17.3
ResNet,resnet18_v1,602,4,46.7,3.81,1.27,1.86,2.73,4.06,7.02
ResNet,resnet50_tuned_1.8x,602,4,88.1,7.16,2.24,3.05,4.25,6.65,11.13
"""
FUNCTIONS = 200


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    path = tmp_path / "profiles.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a day of functions: two busy ones, and quiet ones with a peak at each full hour."""
    counts = np.ones((FUNCTIONS, 1440), int)
    counts[:, ::60] = 20
    counts[0], counts[1] = 4_000, 2_000
    header = ["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, 1441))]
    rows = [["o", "a", f"f{number}", "http", *map(str, row)] for number, row in enumerate(counts.tolist())]
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / FILE).write_text("\n".join(map(",".join, [header, *rows])) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def options(tmp_path: Path, profiles: Path, traces: Path) -> Options:
    """Tiny runs of the paper's own policy, one after the other."""
    return Options(
        policies=("clockwork",),
        length=0.05,
        profiles=profiles,
        traces=traces,
        output=tmp_path / "out",
        processes=1,
    )
