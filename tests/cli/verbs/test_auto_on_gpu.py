"""``--engine auto --device cuda``: the faster engine on a GPU, the one that is left, and none without a GPU.

The compiler is real, and so is all that `mainspring profile` does in its process; the GPU is the fake one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest
import typer
from typer.testing import CliRunner

from mainspring import extras
from mainspring.cli.main import build_app
from mainspring.cli.profiling import gpu_judge
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.plan import read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo import build
from mainspring.worker.engines.cuda import timing
from mainspring.worker.engines.cuda.devices import FoundDevice
from mainspring.worker.engines.cuda.driver import DriverMissing
from tests.worker.engines.cuda.fake_gpu import ILLEGAL, KIND, VARIABLE, FakeGpu

pytest.importorskip("tvm", reason="compiling for both engines needs the extra tvm")
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[3]
FAKE = (sys.executable, "-m", "tests.worker.engines.cuda.fake_gpu")
TIMING = (sys.executable, "-m", "tests.worker.engines.cuda.fake_timing")
AUTO = ["--engine", "auto", "--device", "cuda", "--batch-sizes", "1,2"]
Plug = Callable[[FakeGpu], None]


@pytest.fixture(autouse=True)
def _no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake GPU runs nothing, and NVIDIA's compiler takes long."""
    from mainspring.compiler.tvm import build as tvm_build

    monkeypatch.setattr(tvm_build, "compiled_kernels", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    """Return what puts a fake GPU into this machine."""

    def put(gpu: FakeGpu) -> None:
        found = FoundDevice(0, "NVIDIA Fake 1", "0000:3b:00.0", "sm_80")
        monkeypatch.setattr(gpu_judge, "find_devices", lambda: [found])
        monkeypatch.setattr(gpu_judge, "PROGRAM", FAKE)
        monkeypatch.setattr(gpu_judge, "SECONDS", 0)
        monkeypatch.setattr(timing, "PROGRAM", TIMING)
        monkeypatch.setenv(VARIABLE, msgspec.json.encode(gpu).decode())

    return put


@pytest.fixture
def unplugged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[FoundDevice]:
        raise DriverMissing("CUDA finds no GPU here; CUDA_VISIBLE_DEVICES may hide them")

    monkeypatch.setattr(gpu_judge, "find_devices", fail)


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save_model(build("digits", 3), tmp_path / "my digits.onnx")
    return tmp_path / "my digits.onnx"


def compiling(model: Path, store: Path, *more: str) -> list[str]:
    return ["compile", str(model), "--name", "reader", "--store", str(store), *AUTO, *more]


def test_the_faster_engine_is_kept_with_its_profile(
    app: typer.Typer, plug: Plug, model: Path, tmp_path: Path
) -> None:
    plug(FakeGpu(kernel_ns=1_000, graph_ns=900_000))
    store = Store(tmp_path / "store")
    result = CliRunner().invoke(app, compiling(model, store.root))
    assert result.exit_code == 0, result.output
    manifest = store.manifest("reader")
    store.verify("reader")
    info = store.executable_info(manifest)
    assert (manifest.engine, info.engine, info.device) == ("tvm", "tvm", "cuda")
    plans = read_plans(store, manifest)
    assert plans.arch == "sm_80", "kernels are for the GPU that chose"
    assert list(manifest.profiles) == [KIND]
    profile = manifest.profiles[KIND]
    for plan in plans.plans:
        kernels_ns = 1_000 * len(plan.launches)
        assert kernels_ns <= profile.infer_ns[plan.batch_size] < kernels_ns + 3_000
    assert profile.load_ns > 0
    assert f"measured on {KIND}: load" in result.output
    # Of 0.9 and 0.45 ms, and what the host does beside.
    assert re.search(r"kept tvm: onnxruntime: 0\.63\d ms for each row", result.output), result.output
    assert result.output.count(f" ms for each row on {KIND}, over all batch sizes") == 2
    assert [path.name for path in (store.root / "executables").iterdir()] == [manifest.executable]
    assert {path.name for path in store.root.iterdir()} == {"executables", "models", "weights"}


def test_kernels_are_timed_and_the_winners_kept(
    app: typer.Typer, plug: Plug, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that times gives every later variant a shorter time."""
    from mainspring.compiler.tvm import build as tvm_build

    monkeypatch.setattr(tvm_build, "compiled_kernels", lambda *_: b"code")
    plug(FakeGpu())
    words = ["compile", str(model), "--device", "cuda", "--engine", "tvm", "--batch-sizes", "1"]
    made = {}
    for name, more in (
        ("plain", ["--arch", "sm_80"]),
        ("timed", ["--tune-seconds", "600"]),
        ("again", ["--arch", "sm_80"]),
    ):
        store = Store(tmp_path / ("plain" if name == "plain" else "store"))
        tvm_build._architecture.cache_clear()
        result = CliRunner().invoke(app, [*words, "--name", name, "--store", str(store.root), *more])
        assert result.exit_code == 0, result.output
        made[name] = store.manifest(name).executable
    assert made["timed"] == made["again"] != made["plain"]
    winners = [json.loads(path.read_text()) for path in (tmp_path / "store" / "tuned").iterdir()]
    assert winners
    for each in winners:
        assert each["arch"] == "sm_80"
        assert json.dumps(each["choice"], separators=(",", ":")) == min(
            each["ns"], key=each["ns"].__getitem__
        )


def test_the_other_way_round_the_other_one_is_and_programs_are_told(
    app: typer.Typer, plug: Plug, model: Path, tmp_path: Path
) -> None:
    plug(FakeGpu(kernel_ns=900_000, graph_ns=50_000))
    store = Store(tmp_path / "store")
    result = CliRunner().invoke(app, compiling(model, store.root, "--json"))
    shown = json.loads(result.stdout)
    assert (shown["engine"], shown["device_kind"]) == ("onnxruntime", KIND)
    assert all(50_000 <= shown["infer_ns"][size] < 53_000 for size in ("1", "2"))
    # Of 0.05 and 0.025 ms, and what the host does beside.
    assert re.match(r"0\.03[56]\d ms for each row", shown["engines"]["onnxruntime"])
    assert "ms for each row" in shown["engines"]["tvm"]
    manifest = store.manifest("reader")
    assert (manifest.engine, store.executable_info(manifest).device) == ("onnxruntime", "cuda")
    assert all(50_000 <= manifest.profiles[KIND].infer_ns[size] < 53_000 for size in (1, 2))


@pytest.mark.parametrize(
    ("gpu", "kept", "reason"),
    [
        (FakeGpu(kernel_ns=1, breaks=True), "onnxruntime", f"tvm: can't: {ILLEGAL}"),
        (
            FakeGpu(graph_ns=None),
            "tvm",
            "onnxruntime: can't: executable .* needs ONNX Runtime's CUDA provider",
        ),
    ],
)
def test_an_engine_that_the_gpu_can_not_run_leaves_the_other(
    app: typer.Typer, plug: Plug, model: Path, tmp_path: Path, gpu: FakeGpu, kept: str, reason: str
) -> None:
    plug(gpu)
    result = CliRunner().invoke(app, compiling(model, tmp_path / "store"))
    assert result.exit_code == 0, result.output
    assert re.search(reason, result.output)
    manifest = Store(tmp_path / "store").manifest("reader")
    assert manifest.engine == kept
    assert list(manifest.profiles) == [KIND]


def test_without_tvm_the_other_engine_is_kept(
    app: typer.Typer, plug: Plug, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug(FakeGpu())
    monkeypatch.setitem(sys.modules, "mainspring.compiler.tvm.build", None)
    result = CliRunner().invoke(app, compiling(model, tmp_path / "store"))
    assert result.exit_code == 0, result.output
    remedy = re.escape(extras.command("tvm"))
    assert re.search(f"kept onnxruntime: .*; tvm: can't: .*`{remedy}`", result.output)
    assert Store(tmp_path / "store").manifest("reader").engine == "onnxruntime"


def test_where_neither_can_be_had_nothing_is_stored(
    app: typer.Typer, plug: Plug, model: Path, tmp_path: Path
) -> None:
    plug(FakeGpu(breaks=True, graph_ns=None))
    result = CliRunner().invoke(app, compiling(model, tmp_path / "store"))
    assert isinstance(result.exception, CompileError)
    assert re.search(
        f"no engine can run .*: onnxruntime: .*provider.*; tvm: {ILLEGAL}", str(result.exception)
    )
    assert list((tmp_path / "store").iterdir()) == []


def test_copies_of_an_architecture_are_measured_once(
    app: typer.Typer, plug: Plug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug(FakeGpu(kernel_ns=1_000, graph_ns=900_000))
    ran: list[str] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> object:
        if tuple(command[: len(FAKE)]) == FAKE:
            ran.append(command[len(FAKE) + 1])
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    arguments = ["zoo", "digits", "--copies", "3", "--store", str(tmp_path / "store"), *AUTO]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert sorted(ran) == ["onnxruntime", "tvm"]
    assert result.output.count("kept tvm: onnxruntime: ") == 1
    manifests = Store(tmp_path / "store").manifests()
    assert [each.engine for each in manifests] == ["tvm"] * 3
    assert len({(each.executable, str(each.profiles[KIND])) for each in manifests}) == 1
    assert "3 models (3 kept)" in CliRunner().invoke(app, arguments).output


def run_quoted(app: typer.Typer, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that an error quotes: one that compiles here, one that measures with the fake GPU."""
    program, verb, *words = shlex.split(command)
    assert program == "mainspring"
    if verb == "profile":
        return subprocess.run(
            [*FAKE, verb, *words], check=True, capture_output=True, text=True, env=os.environ
        )
    result = CliRunner().invoke(app, [verb, *words])
    assert result.exit_code == 0, result.output
    return subprocess.CompletedProcess(command, 0, result.stdout, result.stderr)


def test_without_a_gpu_compile_names_commands_that_do_it(
    app: typer.Typer, unplugged: None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "my store")
    refused = CliRunner().invoke(app, compiling(model, store.root, "--shape", "data=1,1,28,28"))
    assert isinstance(refused.exception, CompileError)
    assert "on a GPU, and here none can be used: CUDA finds no GPU here" in str(refused.exception)
    assert not store.root.exists(), "refused before anything was compiled"
    commands = re.findall(r"`(mainspring .*?)`", str(refused.exception))
    assert [shlex.split(command)[1] for command in commands] == ["compile", "compile", "profile"]
    monkeypatch.setenv(VARIABLE, msgspec.json.encode(FakeGpu(kernel_ns=1_000, graph_ns=900_000)).decode())
    for command in commands:
        done = run_quoted(app, command)
    assert "reader is reader-tvm (engine tvm); for a row: reader-onnxruntime" in done.stderr
    manifest = store.manifest("reader")
    assert (manifest.engine, manifest.batch_sizes, list(manifest.profiles)) == ("tvm", (1, 2), [KIND])
    assert manifest.source.shapes == {"data": (1, 1, 28, 28)}


def test_without_a_gpu_zoo_names_commands_that_tell(
    app: typer.Typer, unplugged: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, msgspec.json.encode(FakeGpu(kernel_ns=1_000, graph_ns=900_000)).decode())
    arguments = ["zoo", "digits", "--seed", "4", "--store", str(tmp_path / "store"), *AUTO]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, CompileError)
    commands = re.findall(r"`(mainspring .*?)`", str(refused.exception))
    assert [shlex.split(command)[1] for command in commands] == ["zoo", "zoo", "profile", "profile"]
    tables = [run_quoted(app, command).stdout for command in commands][2:]
    for table, engine in zip(tables, ("onnxruntime", "tvm"), strict=True):
        assert f"engine {engine}" in table
    assert " 0.90  " in tables[0], "one graph takes 0.9 ms"
    assert " 0.90  " not in tables[1]
    made = Store(tmp_path / "store-tvm").manifest("digits")
    assert (made.source.seed, made.batch_sizes) == (4, (1, 2))
