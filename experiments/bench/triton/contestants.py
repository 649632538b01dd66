"""Who is compared: Triton and Mainspring, also with other settings, all running at once.

They take turns, so each is idle while another is measured.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.experiments.bench.triton import server
from mainspring.experiments.bench.triton.subjects import MOST_COPIES, STORE, Subject
from mainspring.messages.model import ModelSpec

TRITON, MAINSPRING = "triton", "mainspring"
BESIDE = "A further Mainspring with settings, such as scheduler.response_margin_ms=1; again for more."


class Wanted(NamedTuple):
    """Who takes part."""

    one_core: bool = False
    beside: Sequence[str] = ()
    """Settings of a further Mainspring each, such as ``scheduler.estimate_rank=5``."""


def wanted_of(one_core: bool, beside: Sequence[str]) -> Wanted:
    """Return who takes part; raise BadParameter for what can't be."""
    if one_core and len(os.sched_getaffinity(0)) < 2:
        raise typer.BadParameter("--one-core needs a second core for the client; this process may use one")
    for text in beside:
        settings(text)
    return Wanted(one_core, beside)


def settings(text: str) -> dict[str, dict[str, Any]]:
    """Return the tables of settings as ``table.key=value``, several separated by commas; raise BadParameter.

    Values are TOML's.
    """
    tables: dict[str, dict[str, Any]] = {}
    for each in filter(None, text.split(",")):
        name, equals, value = each.partition("=")
        table, dot, key = name.strip().partition(".")
        try:
            found = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found = value
        if not (equals and dot and key):
            raise typer.BadParameter(
                f"{each!r} is not a setting; one is TABLE.KEY=VALUE", param_hint="--beside"
            )
        tables.setdefault(table, {})[key] = found
    return tables


@contextmanager
def on_last_core() -> Iterator[Callable[[], None]]:
    """Keep this thread, and what it starts, on the last core; yield what moves this thread to the others.

    Processes and threads inherit it, and a cluster is planned for the cores that its launcher may use.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    try:
        yield lambda: os.sched_setaffinity(0, cores[:-1])
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def servers(
    subject: Subject, copies: int, batch: int, wanted: Wanted
) -> Iterator[tuple[dict[str, str], list[ModelSpec]]]:
    """Run all of them; yield where each serves gRPC, and the models. Raises `Unavailable` without Triton.

    If all are on one core, this thread has the others from the yield on.
    """
    specs = subject.specs(STORE, copies)
    with ExitStack() as stack:
        leave = stack.enter_context(on_last_core()) if wanted.one_core else (lambda: None)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = subject.models(specs)
        server.write_repository(folder / "models", models, specs[0], batch)
        addresses = {TRITON: stack.enter_context(server.triton(folder / "models", folder / "triton.log"))}
        for number, text in enumerate(["", *wanted.beside]):
            name = f"{MAINSPRING}, {text}" if text else MAINSPRING
            cluster = stack.enter_context(_cluster(folder / f"run-{number}", specs, settings(text)))
            addresses[name] = cluster
        leave()
        yield addresses, specs


@contextmanager
def _cluster(run_dir: Path, specs: Sequence[ModelSpec], tables: dict[str, dict[str, Any]]) -> Iterator[str]:
    gateway, controller, port = free_ports(3)
    usual: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(STORE), "run_dir": str(run_dir)},
        "worker": {"pages": MOST_COPIES * max(2, specs[0].pages)},
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}", "grpc_address": f"grpc://127.0.0.1:{port}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    config = {table: usual.get(table, {}) | tables.get(table, {}) for table in {**usual, **tables}}
    plan = make_plan(read_config(config, "this benchmark"))
    with LocalCluster(plan, typer.echo):
        yield f"127.0.0.1:{port}"
