"""``python -m mainspring.experiments.triton_clients FOLDER``: Triton's example clients, as they are.

``FOLDER`` has the files of ``src/python/examples`` of Triton's repository of clients; none of them is part of
this one. Each is run against a cluster that serves the models that they name, made here, with
``compatibility = "triton"``. A file passes if it ends with exit code 0. Left out are those that need a GPU,
an ensemble, a model that answers more than once, or a language model's server.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.experiments.triton_clients.models import lay_examples

LONGEST_S = 120.0
"""For one file."""
_LEFT_OUT = ("cudashm", "ensemble", "custom_repeat", "vllm")


class Site(NamedTuple):
    """Where a cluster serves, as Triton's clients are told it."""

    http: str
    grpc: str


class Outcome(NamedTuple):
    """What became of a file."""

    name: str
    passed: bool
    last: str
    """The last line that it wrote."""


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Serve the models of the examples, made in ``folder``."""
    repository = folder / "repository"
    repository.mkdir()
    lay_examples(repository)
    gateway, controller, control, http, rpc = free_ports(5)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"run_dir": str(folder / "run"), "ready_timeout_s": 300},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": f"http://127.0.0.1:{http}",
            "grpc_address": f"grpc://127.0.0.1:{rpc}",
            "compatibility": "triton",
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        "repository": {
            "path": str(repository),
            "address": f"tcp://127.0.0.1:{control}",
            "mode": "explicit",
            "load_models": ["*"],
        },
    }
    plan = make_plan(read_config(tables, "the experiment"))
    with LocalCluster(plan, lambda said: print(said, file=sys.stderr)):
        yield Site(f"127.0.0.1:{http}", f"127.0.0.1:{rpc}")


def arguments(name: str, site: Site, folder: Path) -> list[str]:
    """Return what a file of this name is run with."""
    if "image_client" in name:
        from PIL import Image

        picture = folder / "picture.png"
        Image.new("RGB", (64, 48), (200, 30, 90)).save(picture)
        address = site.grpc if name.startswith("grpc") else site.http
        return ["-m", "densenet_onnx", "-c", "3", "-u", address, str(picture)]
    return ["-u", site.grpc if "grpc" in name else site.http]


def run(file: Path, site: Site, folder: Path) -> Outcome:
    """Run one file."""
    command = [sys.executable, str(file), *arguments(file.name, site, folder)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=LONGEST_S, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return Outcome(file.name, False, f"it took longer than {LONGEST_S:g} s")
    lines = (done.stdout + done.stderr).strip().splitlines()
    return Outcome(file.name, done.returncode == 0, lines[-1][:120] if lines else "")


def main(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Files of src/python/examples.")
    ],
) -> None:
    """Run Triton's example clients against a cluster, and print what became of each."""
    files = [each for each in sorted(folder.glob("*.py")) if not any(word in each.name for word in _LEFT_OUT)]
    with tempfile.TemporaryDirectory() as scratch, serving(Path(scratch)) as site:
        outcomes = [run(file, site, Path(scratch)) for file in files]
    for each in outcomes:
        print(f"{'pass' if each.passed else 'FAIL'}  {each.name}  {each.last}")
    passed = sum(each.passed for each in outcomes)
    print(f"{passed} of {len(outcomes)} pass")
    raise typer.Exit(int(passed < len(outcomes)))


if __name__ == "__main__":
    typer.run(main)
