"""``mainspring demo`` as a person runs it, shortened: one architecture, one second, one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from mainspring.cli import demonstration
from mainspring.cli.main import build_app
from mainspring.messages.tables import ConfigError
from tests.patience import PATIENCE_S

PROGRAM = """
import sys
from mainspring.cli.main import main
from mainspring.cli import demonstration
demonstration.ARCHITECTURES, demonstration.COPIES = ("digits",), 2
sys.argv = ["mainspring", "demo", *sys.argv[1:]]
main()
"""


def test_a_demo_whose_reader_is_gone_ends_with_its_cluster_and_says_nothing(tmp_path: Path) -> None:
    quick = PROGRAM.replace("sys.argv =", "demonstration.PLAIN_INTERVAL_S = 0.5\nsys.argv =")
    command = [sys.executable, "-c", quick, "--duration", "1h", "--output", str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert next((line for line in iter(demo.stdout.readline, "") if "offered" in line), None)
        demo.stdout.close()
        assert demo.wait(PATIENCE_S) == 1
        assert demo.stderr.read() == ""
    # What it started has this folder on its command line.
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "demo" / "run")], capture_output=True, check=False)
    assert left.stdout == b""


def test_a_demo_prints_json_and_a_second_one_in_its_folder_is_refused(tmp_path: Path) -> None:
    flags = ["--duration", "1s", "--load", "0.1", "--json", "--output", str(tmp_path / "demo")]
    command = [sys.executable, "-c", PROGRAM, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stderr is not None
        assert next((line for line in iter(first.stderr.readline, "") if line.startswith("Starting")), None)
        # Imported above: on a busy machine the first would end before all of its imports are made here.
        assert demonstration.__name__ in sys.modules
        second = CliRunner().invoke(build_app(), ["demo", *flags])
        assert isinstance(second.exception, ConfigError)
        complaint = f"another demonstration is using the folder {tmp_path}/demo; choose another folder"
        assert str(second.exception) == f"{complaint} with --output"
        out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    shown = json.loads(out)
    assert shown == json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert shown["goodput"] > 0
    assert shown["lost"] == 0
