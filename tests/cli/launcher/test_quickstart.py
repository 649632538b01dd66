"""The Python that the documentation begins with, as a reader would paste it, against the models it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import compile_zoo

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "docs/quickstart.md")
HTTP_ADDRESS = "localhost:8000"


class Served(NamedTuple):
    """Where the models of the pages are served."""

    address: str
    http: str


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve what the pages have a reader serve, on free ports."""
    folder = tmp_path_factory.mktemp("quickstart")
    list(compile_zoo(["digits", "squeezenet"], Store(folder / "store"), batch_sizes=(1,)))
    gateway, controller, http = free_ports(3)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(folder / "store"), "run_dir": str(folder / "run"), "ready_timeout_s": 90},
        "worker": {"pages": 2},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": f"http://127.0.0.1:{http}",
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    with LocalCluster(make_plan(read_config(tables, "the test")), lambda _: None) as local:
        yield Served(local.address, f"127.0.0.1:{http}")


def run(program: str, served: Served) -> str:
    """Run a page's program; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "MAINSPRING_ADDRESS": served.address},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_its_first_program_reads_a_digit(page: str, served: Served) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "mainspring zoo digits squeezenet --store store" in text
    program = blocks(page)[0]
    # A busy machine may miss the deadline of the page; this is about what the program says and prints.
    assert 'slo="100ms"' in program
    printed = run(program.replace('slo="100ms"', 'slo="20s"'), served)
    assert printed.splitlines()[0] == "It is a 7"
    assert "```\nIt is a 7\n```" in text


def test_the_program_with_tritons_client_prints_an_answer(served: Served) -> None:
    program = blocks("README.md")[1]
    assert HTTP_ADDRESS in program
    assert "timeout=100_000" in program
    program = program.replace(HTTP_ADDRESS, served.http)
    program = program.replace("timeout=100_000", "timeout=20_000_000")
    assert re.fullmatch(r"\(1, 1000, 1, 1\)\n\d+\n", run(program, served))
