"""Measuring a device through its engine: what is called, what is counted, what is kept."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console

from mainspring.cli.profiling.lone_device import LoneDevice, as_exec_thread, device_for, random_rows
from mainspring.cli.profiling.profiling import (
    Measured,
    by_executable,
    chosen_sizes,
    csv_table,
    family_of,
    heading,
    keep,
    measure,
    measure_models,
    terminal_table,
    titles,
)
from mainspring.compiler.artifact.manifest import TVM, Source
from mainspring.compiler.artifact.profiles import EMULATED, read_profile_table
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Effort, Timing
from mainspring.compiler.pipeline import compile_file, compile_model
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.zoo import build
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.actions import Infer, Load
from mainspring.messages.model import ModelSpec, Profile, Symbol
from mainspring.messages.tables import ConfigError
from mainspring.worker.config import WorkerConfig
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.realtime import Rights
from tests.compiler import open_models

BRIEF = Effort(seconds=0, fewest=3, most=3, warm_up=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two copies of one architecture and another one, each at batch sizes 1 and 2."""
    store = Store(tmp_path_factory.mktemp("profiling") / "store")
    list(compile_zoo(["digits"], store, 2, batch_sizes=(1, 2)))
    compile_model(build("resnet20"), "tiny", store, (1, 2), Source("zoo", "resnet20"))
    return store


class Scripted:
    """An engine whose actions take as long as a list says, and which notes its calls."""

    HOST_NS = 7
    """What each action takes beside the device's part."""

    def __init__(self, durations_ns: list[int]) -> None:
        self.io = np.full(1 << 16, 255, np.uint8)
        self.calls: list[str] = []
        self.durations_ns = iter(durations_ns)
        self.now_ns = 0

    def clock(self) -> int:
        return self.now_ns

    def _next(self) -> int:
        device_ns = next(self.durations_ns)
        self.now_ns += device_ns + self.HOST_NS
        return device_ns

    def prepare(self, model: ModelSpec) -> None:
        self.calls.append(f"prepare {model.name}")

    def release(self, name: str) -> None:
        self.calls.append(f"release {name}")

    def load(self, action: Load) -> int:
        self.calls.append(f"load {action.model} {list(action.pages)}")
        return self._next()

    def unload(self, name: str) -> None:
        self.calls.append(f"unload {name}")

    def execute(self, action: Infer, io: Reservation) -> int:
        self.calls.append(f"infer {action.model} x {action.batch_size}")
        assert io.slot.size <= self.io.size
        return self._next()

    def close(self) -> None:
        self.calls.append("close")


def floats(outputs: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.float32]:
    return outputs[0].astype(np.float32)


def measured(name: str, source: str, p50_ns: int, **fields: object) -> Measured:
    timing = Timing(10, p50_ns, p50_ns, p50_ns)
    given = {
        "engine": "onnxruntime",
        "load": timing,
        "infer": {1: timing},
        "weights_bytes": 1_000_000,
    } | fields
    return Measured(models=(name,), source=source, input_bytes=4000, output_bytes=400, **given)  # type: ignore[arg-type]


def test_one_of_the_models_that_share_an_executable_is_measured(store: Store) -> None:
    groups = by_executable(store.manifests())
    assert [[manifest.name for manifest in group] for group in groups] == [["digits-1", "digits-2"], ["tiny"]]


def test_a_model_is_loaded_all_over_the_pages_then_run_at_all_batch_sizes_in_turn(store: Store) -> None:
    engine = Scripted([5, 10, 20, 30, 5, 6, 100, 200, 110, 210, 120, 220])
    device = LoneDevice(engine, pages=2)
    group = by_executable(store.manifests())[0]
    found = measure(device, group, (1, 2), BRIEF, engine.clock)
    assert engine.calls[:4] == [
        "prepare digits-1",
        "load digits-1 [0]",
        "unload digits-1",
        "load digits-1 [1]",
    ]
    assert engine.calls[-4:] == [
        "infer digits-1 x 1",
        "infer digits-1 x 2",
        "unload digits-1",
        "release digits-1",
    ]
    host_ns = engine.HOST_NS
    assert found.load == Timing(3, 20 + host_ns, 30 + host_ns, 30 + host_ns)
    assert found.load_device == Timing(3, 20, 30, 30)
    assert {size: timing.p50_ns for size, timing in found.infer.items()} == {
        1: 110 + host_ns,
        2: 210 + host_ns,
    }
    assert {size: timing.p50_ns for size, timing in found.infer_device.items()} == {1: 110, 2: 210}
    assert found.profile().infer_ns[1] == found.infer[1].seed_ns
    assert found.models == ("digits-1", "digits-2")


def test_a_model_that_fails_is_released(store: Store) -> None:
    engine = Scripted([5, 10, 20, 30])
    with pytest.raises(StopIteration):
        measure(LoneDevice(engine, pages=1), by_executable(store.manifests())[0], (1,), BRIEF)
    assert engine.calls[-2:] == ["unload digits-1", "release digits-1"]


def test_what_a_real_device_runs_is_the_model(store: Store) -> None:
    """Outputs of two seeds differ, and those of a batch are those of its rows alone."""
    specs = [store.manifest(name).spec() for name in ("digits-1", "digits-2")]
    config = WorkerConfig(name="w", store=str(store.root), realtime=False)
    with device_for(specs, config) as device:
        rows = random_rows(specs[0], 2)
        outputs = []
        for spec in specs:
            device.prepare(spec)
            assert device.load(spec, first_page=1) > 0
            both = floats(device.run(spec, 2, rows))
            alone = [floats(device.run(spec, 1, [array[row : row + 1] for array in rows])) for row in (0, 1)]
            np.testing.assert_allclose(both, np.concatenate(alone), rtol=1e-3, atol=1e-5)
            outputs.append(both)
            device.release(spec)
        assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
        with pytest.raises(ValueError, match=r"shape \(2, 1, 28, 28\) is not \(1, 1, 28, 28\)"):
            device.fill(specs[0], 1, rows)
        with pytest.raises(ValueError, match="pages up to 2 and there are 2"):
            device.load(specs[0], first_page=2)


def test_emulated_device_takes_its_profile(store: Store) -> None:
    manifest = store.manifest("tiny")
    profile = Profile({1: 3_000_000, 2: 5_000_000}, 1_000_000)
    store.put_manifest(msgspec.structs.replace(manifest, profiles={"slow": profile}))
    config = WorkerConfig(name="w", engine="emulated", device_kind="slow", realtime=False)
    group = [store.manifest("tiny")]
    with device_for([group[0].spec()], config) as device:
        (found,) = measure_models(device, [group], (2,), BRIEF)
    assert found.load.p50_ns >= profile.load_ns
    assert found.infer[2].p50_ns >= profile.infer_ns[2]
    assert list(found.infer) == [2]
    store.put_manifest(manifest)


def test_kept_profiles_are_of_all_who_share_it_and_leave_other_kinds_alone(store: Store) -> None:
    before = store.manifest("digits-2").profiles["cpu"]
    timing = Timing(10, 100, 110, 5000)
    found = Measured(
        models=("digits-1", "digits-2"), source="digits", engine="tvm", input_bytes=1, output_bytes=1,
        weights_bytes=1, load=timing, infer={2: timing},
    )  # fmt: skip
    keep(store, found, "fast")
    for name in found.models:
        assert store.manifest(name).profiles == {"cpu": before, "fast": Profile({2: 110}, 110)}
    keep(store, found, "cpu")
    assert store.manifest("digits-1").profiles["cpu"] == Profile({1: before.infer_ns[1], 2: 110}, 110)


def test_what_is_not_measured_again_is_kept(store: Store) -> None:
    before = store.manifest("tiny")
    shaped = {"8": {1: 10, 2: 15}, "64": {1: 40, 2: 60}}
    profile = Profile({1: 40, 2: 60}, 7, shaped, spread=3.5)
    symbols = (Symbol("n", (8, 64), 1),)
    store.put_manifest(msgspec.structs.replace(before, symbols=symbols, profiles={"cpu": profile}))
    timing = Timing(10, 100, 110, 5000)
    found = Measured(
        models=("tiny",), source="resnet20", engine="onnxruntime", input_bytes=1, output_bytes=1,
        weights_bytes=1, load=timing, infer={2: timing},
    )  # fmt: skip
    keep(store, found, "cpu")
    now = store.manifest("tiny").profiles["cpu"]
    store.put_manifest(before)
    # What is measured is the limits: their bucket has the same durations.
    assert now == Profile({1: 40, 2: 110}, 110, {"8": {1: 10, 2: 15}, "64": {1: 40, 2: 110}}, spread=3.5)


@pytest.mark.parametrize(("spread", "kept_ns"), [(3.5, 400), (1.2, 110)])
def test_where_durations_follow_from_values_the_longer_one_is_kept(
    store: Store, spread: float, kept_ns: int
) -> None:
    """The compiler measured many requests' values, and a profile those of one."""
    before = store.manifest("tiny")
    profile = Profile({1: 40, 2: 400}, 7, spread=spread)
    store.put_manifest(msgspec.structs.replace(before, profiles={"cpu": profile}))
    timing = Timing(10, 100, 110, 5000)
    found = Measured(
        models=("tiny",), source="resnet20", engine="onnxruntime", input_bytes=1, output_bytes=1,
        weights_bytes=1, load=timing, infer={1: timing, 2: timing},
    )  # fmt: skip
    keep(store, found, "cpu")
    now = store.manifest("tiny").profiles["cpu"]
    store.put_manifest(before)
    assert now == Profile({1: 110, 2: kept_ns}, 110, spread=spread)


def test_batch_sizes_that_no_model_has_are_refused(store: Store) -> None:
    manifest = store.manifest("tiny")
    assert chosen_sizes(manifest, ()) == (1, 2)
    assert chosen_sizes(manifest, (2, 32)) == (2,)
    with pytest.raises(ConfigError, match="tiny was compiled for batch sizes 1, 2, and none of 4, 8"):
        chosen_sizes(manifest, (4, 8))


def test_the_exec_threads_errors_come_out() -> None:
    def fail() -> int:
        raise RuntimeError("the device is gone")

    rights = Rights(False)
    assert as_exec_thread(rights, lambda: 7) == 7
    with pytest.raises(RuntimeError, match="the device is gone"):
        as_exec_thread(rights, fail)


def test_a_csv_table_can_be_emulated(tmp_path: Path) -> None:
    rows = [
        measured("resnet50-1", "resnet50", 2_612_345),
        measured("b", "bert-tiny", 1_234_567, infer={2: Timing(9, 5_000_000, 6_000_000, 7_000_000)}),
    ]
    path = tmp_path / "table.csv"
    path.write_text(csv_table(rows))
    one, other = read_profile_table(path)
    assert (one.name, one.weights_bytes, one.input_row_bytes) == ("resnet50", 1_000_000, 4000)
    assert one.profiles[EMULATED].infer_ns[1] == pytest.approx(2_612_345, rel=1e-5)
    assert other.profiles[EMULATED] == Profile({2: 5_000_000}, 1_234_570)


def test_titles_are_architectures_unless_that_is_ambiguous() -> None:
    rows = [measured("resnet50-1", "resnet50", 1), measured("a", "x.onnx", 1), measured("resnet50-v", "", 1)]
    assert titles(rows) == ["resnet50", "a", "resnet50-v"]
    again = [*rows, measured("resnet50-9", "resnet50", 1)]
    assert titles(again) == ["resnet50-1", "a", "resnet50-v", "resnet50-9"]
    assert [family_of(row) for row in rows] == ["ResNet", "other", "ResNet"]
    assert family_of(measured("a", "/models/Inception_v3.onnx", 1)) == "Inception"


def test_engines_have_a_column_if_there_are_several() -> None:
    one, other = measured("a", "a.onnx", 2_000_000), measured("b", "b.onnx", 3_000_000, engine="tvm")
    console = Console(width=120, file=io.StringIO(), record=True)
    assert heading([one]) == "Medians in ms on this machine, engine onnxruntime"
    assert heading([one, other]).endswith("engine onnxruntime and tvm")
    console.print(terminal_table([one]))
    assert console.export_text(clear=True).split()[:2] == ["model", "in"]
    console.print(terminal_table([one, other]))
    text = console.export_text()
    assert text.splitlines()[-1].split() == ["b", "tvm", "4.00", "0.40", "1.00", "3.00", "3.00", "1.00"]


def test_every_bucket_of_a_model_with_kernels_for_each_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("tvm", reason="compiling for the engine tvm needs the extra tvm")
    store = Store(tmp_path / "store")
    file = open_models.save(open_models.sounds(), tmp_path / "sounds.onnx")
    most, target = {"time": 40}, Target(TVM)
    manifest = compile_file(file, "sounds", store, (1, 2), most=most, pad={"x": 0.0}, target=target).manifest
    store.put_manifest(msgspec.structs.replace(manifest, profiles={}))
    config = WorkerConfig(name="w", store=str(store.root), engine=TVM, workspace_bytes=1 << 20)
    with device_for([manifest.spec()], config) as device:
        measured = measure(device, [manifest], (1, 2), BRIEF)
    assert {*measured.shaped} == {"16", "32", "40"}
    assert all({*timings} == {1, 2} for timings in measured.shaped.values())
    keep(store, measured, "elsewhere")
    profile = store.manifest("sounds").profiles["elsewhere"]
    assert profile.infer_ns == {size: timing.seed_ns for size, timing in measured.infer.items()}
    assert profile.shaped["40"] == profile.infer_ns
    assert profile.shaped["16"] == {size: each.seed_ns for size, each in measured.shaped["16"].items()}
    keep(store, msgspec.structs.replace(measured, shaped={"16": {1: measured.infer[1]}}), "elsewhere")
    again = store.manifest("sounds").profiles["elsewhere"].shaped
    assert again["16"] == {1: measured.infer[1].seed_ns, 2: profile.shaped["16"][2]}
    assert again["32"] == profile.shaped["32"], "what was not measured again is kept"


def test_a_model_of_any_sizes_is_measured_at_its_limits(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    file = open_models.save(open_models.lengths(), tmp_path / "lengths.onnx")
    manifest = compile_file(file, "lengths", store, (1, 2), most={"seq": 40}).manifest
    with device_for(
        [manifest.spec()], WorkerConfig(name="w", store=str(store.root), engine="onnxruntime")
    ) as device:
        measured = measure(device, [manifest], (1, 2), BRIEF)
    assert not measured.shaped
    assert {*measured.infer} == {1, 2}
