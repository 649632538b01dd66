"""What the measurement of the client alone makes of what it sees."""

from __future__ import annotations

import subprocess
import sys

from mainspring.experiments.bench import base

SIZES = {"mainspring": 9_000_000, "msgspec": 700_000, "numpy": 75_000_000, "pyzmq": 3_000_000}


def test_the_tools_of_an_environment_do_not_count() -> None:
    listed = "numpy 5\npip 9\nsetuptools 9\nMainspring 3\n"
    assert base.sizes_of(listed) == {"numpy": 5, "Mainspring": 3}


def test_every_distribution_is_listed_with_its_bytes() -> None:
    done = subprocess.run([sys.executable, "-c", base.LISTED], check=True, text=True, capture_output=True)
    sizes = base.sizes_of(done.stdout)
    assert sizes["numpy"] > 1 << 20
    assert "pip" not in sizes


def test_the_bars_are_those_of_a_small_client() -> None:
    alone = [base.Took(0.2, 0.9), base.Took(0.1, 0.3)]
    small = base.figures_of(SIZES, alone, [base.Took(0.3, 0.6), base.Took(0.2, 9.0)])
    assert [figure.met for figure in small] == [True, None, True, None, True, None]
    large = base.figures_of({**SIZES, "onnx": 30_000_000}, alone, [base.Took(0.5, 0.3), base.Took(0.26, 0.3)])
    assert [figure.met for figure in large] == [False, None, False, None, False, None]
