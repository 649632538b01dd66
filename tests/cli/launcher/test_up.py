"""What `mainspring up` says at its start of things that could be better."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher import up, worker_jobs
from mainspring.cli.launcher.up import Ports, cluster_config, remedies
from mainspring.gateway import descriptors
from mainspring.gateway.config import GatewayConfig
from mainspring.messages.tables import ConfigError
from mainspring.native import CORE, PATH, State, Use
from mainspring.worker.limits import Limits


def test_it_warns_of_a_scheduler_in_python_and_of_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "file_limit", lambda: 1_024)
    missing = State(Use.MISSING, "not compiled from this source")
    python, files = remedies([(CORE, missing), (PATH, missing)], GatewayConfig())
    assert "the scheduler and the worker's core at 3 to 4 times the CPU" in python
    assert "what processes do for each request at 1.3 times" in python
    assert "to compile it: " in python
    assert "1,024 files" in files


def test_it_says_nothing_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "file_limit", lambda: 1 << 20)
    assert remedies([(CORE, State(Use.COMPILED, "library"))], GatewayConfig()) == []
    assert remedies([(CORE, State(Use.OFF, "MAINSPRING_NATIVE=0"))], GatewayConfig()) == []


def test_it_says_what_limits_this_machine_and_what_shares_with_what(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(
        cores=1.5,
        cores_by="/c/cpu.max",
        memory_bytes=1 << 30,
        memory_by="/c/memory.max",
        cpuset="0-1",
        cpuset_by="/c/cpuset.cpus.effective",
        periods=9,
        throttled=2,
    )
    monkeypatch.setattr(up, "read_limits", lambda: limits)
    monkeypatch.setattr(worker_jobs, "affinity", lambda: (0, 1))

    def said(workers: int, engine: str) -> list[str]:
        profiles = {"profiles": "p.csv"} if engine == "emulated" else {"store": "store"}
        return up.bounds(
            read_config({"cluster": {"workers": workers, "engine": engine, **profiles}}, "a test")
        )

    held = [
        "processor time is limited to 1.5 cores (/c/cpu.max), throttled in 2 of 9 periods",
        "memory is limited to 1.0 GiB (/c/memory.max)",
        "of this machine's cores only 0-1 may be used (/c/cpuset.cpus.effective)",
    ]
    wants = "and the rest want {}, and wait for each other beyond that"
    assert said(1, "onnxruntime") == [f"{held[0]}: 1 worker {wants.format(2)}", *held[1:]]
    shares = "EXEC of worker 1 has no core of its own, and shares cores 0-1 with all other processes"
    assert said(2, "onnxruntime") == [f"{held[0]}: 2 workers {wants.format(3)}", *held[1:], shares]
    assert said(2, "emulated") == held


def test_it_names_a_module_that_could_not_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "file_limit", lambda: 1 << 20)
    partly = State(Use.PARTLY, "mainspring.cluster.workers is not compiled: mypyc refuses line 3: so it is")
    (said,) = remedies([(CORE, partly)], GatewayConfig())
    assert said == f"not all is compiled: {partly.detail}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gateway = 3", r"gateway is a table: write \[gateway\]"),
        ("[[worker]]\npages = 1", r"worker is a table: write \[worker\]"),
        ("realtime = false", r"has no table \[realtime\]: realtime is a key of \[worker\]"),
    ],
)
def test_what_is_no_table_is_named_with_what_would_be_right(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        cluster_config(path, {"cluster": {"workers": 1}}, Ports())
