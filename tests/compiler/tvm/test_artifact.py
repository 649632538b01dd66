"""A model compiled for the engine ``tvm``: what is stored, what is shared, and that it computes the same."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from mainspring import extras
from mainspring.compiler.artifact.arrays import aligned_array
from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.launching import CpuKernels, allocate_workspace
from mainspring.compiler.artifact.manifest import Manifest, Source
from mainspring.compiler.artifact.nvrtc import NvrtcMissing
from mainspring.compiler.artifact.plan import (
    CUBIN,
    PLAN_FORMATS,
    PLANS,
    PTX,
    SHARED_OBJECT,
    SOURCE,
    Shape,
    kernels_path,
    read_plans,
)
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program import compiled as artifact
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.zoo.catalogue import compile_zoo
from tests.compiler.conftest import Array, MakeModel
from tests.compiler.tvm.conftest import MakeNetwork

CPU_KERNELS = Target("tvm")
GPU_KERNELS = Target("tvm", "cuda", "sm_90")


def compile_here(
    model: onnx.ModelProto, store: Store, target: Target = CPU_KERNELS, sizes: tuple[int, ...] = (1, 3)
) -> Manifest:
    return compile_model(model, "m", store, sizes, Source("onnx", "m.onnx"), target=target).manifest


def run_stored(store: Store, manifest: Manifest, arrays: list[Array]) -> list[Array]:
    """Run a stored model as a worker does, its weights where the file has them."""
    plans = read_plans(store, manifest)
    library = kernels_path(store, manifest, plans, SHARED_OBJECT)
    assert library is not None
    kernels = CpuKernels(library, plans, store.executable_info(manifest))
    content = store.weights_path(manifest).read_bytes()
    memory = aligned_array((len(content),), np.dtype(np.uint8))
    memory[:] = np.frombuffer(content, np.uint8)
    workspace = allocate_workspace(plans)
    base = int(memory.ctypes.data)
    bound = kernels.bind(manifest.tensors, lambda offset: base + offset, int(workspace.ctypes.data))
    return list(bound.run_arrays(len(arrays[0]), arrays))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, make_network: MakeNetwork) -> tuple[Store, Manifest]:
    """The network for the CPU, stored; not to be changed."""
    store = Store(tmp_path_factory.mktemp("cpu") / "store")
    return store, compile_here(make_network(1), store)


@pytest.fixture(scope="module")
def for_gpu(tmp_path_factory: pytest.TempPathFactory, make_network: MakeNetwork) -> tuple[Store, Manifest]:
    """The network for a GPU, stored; not to be changed."""
    store = Store(tmp_path_factory.mktemp("gpu") / "store")
    return store, compile_here(make_network(1), store, GPU_KERNELS)


def test_a_stored_model_computes_what_the_original_does(
    compiled: tuple[Store, Manifest], make_network: MakeNetwork, run_stock: object
) -> None:
    store, manifest = compiled
    images = np.random.default_rng(5).standard_normal((3, 3, 12, 12)).astype(np.float32)
    (expected,) = run_stock(make_network(1), [images])  # type: ignore[operator]
    (found,) = run_stored(store, manifest, [images])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert manifest.engine == "tvm"
    assert manifest.verification.rows == 4
    assert manifest.profiles["cpu"].infer_ns.keys() == {1, 3}


def test_what_is_stored_is_whole(compiled: tuple[Store, Manifest]) -> None:
    store, manifest = compiled
    plans = read_plans(store, manifest)
    assert plans.target == "cpu"
    assert [plan.batch_size for plan in plans.plans] == [1, 3]
    assert manifest.workspace_bytes == plans.plan(3).workspace_bytes
    store.verify("m")
    info = store.executable_info(manifest)
    assert (info.engine, info.device) == ("tvm", "cpu")
    assert {path.name for path in store.executable_path(manifest).parent.iterdir()} == {
        PLANS,
        SHARED_OBJECT,
        "info.json",
    }


def test_models_of_one_architecture_share_an_executable(
    compiled: tuple[Store, Manifest], make_network: MakeNetwork, tmp_path: Path
) -> None:
    _, first = compiled
    second = compile_here(make_network(2, prefix="other/"), Store(tmp_path / "store"))
    assert second.executable == first.executable
    assert second.weights_hash != first.weights_hash
    assert second.tensors == first.tensors


def test_packed_weights_are_the_same_for_all_batch_sizes_and_devices(
    compiled: tuple[Store, Manifest],
    for_gpu: tuple[Store, Manifest],
    make_network: MakeNetwork,
    tmp_path: Path,
) -> None:
    _, manifest = compiled
    other = compile_here(make_network(1), Store(tmp_path / "store"), sizes=(2,))
    assert other.executable != manifest.executable
    assert other.weights_hash == manifest.weights_hash == for_gpu[1].weights_hash


def test_batch_norms_transposes_and_padding_cost_no_launch(for_gpu: tuple[Store, Manifest]) -> None:
    plans = read_plans(*for_gpu)
    # A second kernel of a function adds parts of its sums.
    names = [launch.kernel for launch in plans.plan(1).launches if not launch.kernel.endswith("_kernel_1")]
    # Images to channels last, 4 convolutions with all that is element by element, pools, concat, mean, dense,
    # softmax: nothing for the batch norm, the bounds, the residual, the flattening or the dense transpose.
    assert len(names) == 11, names
    assert sum("conv2d" in name for name in names) == 4
    assert sum("transpose" in name for name in names) == 1


def test_kernels_for_a_gpu_are_those_that_the_plans_launch(for_gpu: tuple[Store, Manifest]) -> None:
    store, manifest = for_gpu
    plans = read_plans(store, manifest)
    assert (plans.target, plans.arch) == ("cuda", "sm_90")
    path = kernels_path(store, manifest, plans, SOURCE)
    assert path is not None
    source = path.read_text()
    signatures = dict(re.findall(r'extern "C" __global__ void .*? (\w+)\((.*?)\) \{', source))
    for plan in plans.plans:
        for launch in plan.launches:
            assert signatures[launch.kernel].count("mainspring_place") == len(launch.operands)
            assert any(operand.writes for operand in launch.operands)
    assert not re.search(r"__expf|__fdividef|__powf|__use_fast_math", source)
    assert manifest.profiles == {}
    assert store.executable_info(manifest).instruction_set == "portable"


def test_machine_code_is_stored_where_its_compiler_is_at_hand(
    for_gpu: tuple[Store, Manifest],
    make_network: MakeNetwork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, manifest = for_gpu
    found = read_plans(store, manifest).files.keys()
    if shutil.which("nvcc") is not None:
        assert found == {SOURCE, CUBIN, PTX}
    find = shutil.which

    def missing(_source: bytes, _arch: str) -> bytes:
        raise NvrtcMissing("NVRTC is not installed")

    monkeypatch.setattr("mainspring.compiler.tvm.build.compile_cuda", missing)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nvcc" else find(name))
    without = Store(tmp_path / "store")
    plans = read_plans(without, compile_here(make_network(1), without, GPU_KERNELS, sizes=(1,)))
    assert plans.files.keys() == {SOURCE}


def test_plans_of_another_engine_are_refused(store: Store, make_mlp: MakeModel) -> None:
    manifest = compile_model(make_mlp(1), "m", store, (1,), Source("onnx")).manifest
    with pytest.raises(StoreError, match="compiled for the engine onnxruntime, so it has no launch plans"):
        read_plans(store, manifest)


@pytest.mark.parametrize(
    ("name", "spoil", "complaint"),
    [
        (PLANS, lambda content: content[:-9], "is damaged"),
        (PLANS, lambda content: content.replace(b'"workspace"', b'"backspace"'), "is damaged"),
        (
            PLANS,
            lambda content: content.replace(b'"offset":0', b'"offset":77', 1),
            "is damaged: batch size 1",
        ),
        (SHARED_OBJECT, lambda content: content[:-1] + b"x", "was altered"),
    ],
)
def test_altered_files_are_found(
    compiled: tuple[Store, Manifest], tmp_path: Path, name: str, spoil: object, complaint: str
) -> None:
    original, manifest = compiled
    shutil.copytree(original.root, tmp_path / "copy")
    store = Store(tmp_path / "copy")
    path = store.executable_path(manifest).with_name(name)
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StoreError, match=complaint):
        kernels_path(store, manifest, read_plans(store, manifest), SHARED_OBJECT)


def test_wrongly_packed_weights_are_never_stored(
    store: Store, make_network: MakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mainspring.compiler.tvm import assembly

    right = assembly.pack

    def wrong(*arguments: object) -> tuple[Array, ...]:
        return tuple(array[::-1].copy() if array.ndim == 1 else array for array in right(*arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(assembly, "pack", wrong)
    with pytest.raises(CompileError, match=r"output 'y' at batch size 1 differs from stock ONNX Runtime's"):
        compile_here(make_network(1), store, sizes=(1,))
    assert store.names() == [] if store.root.is_dir() else True


def test_an_index_beyond_the_table_reads_no_other_memory(store: Store, make_model: MakeModel) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    model = make_model(
        [helper.make_node("Gather", ["table", "x"], ["y"], axis=0)],
        {"x": ["n"]},
        {"y": ["n", 3]},
        {"table": table},
    )
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    manifest = compile_here(model, store, sizes=(1, 4))
    (found,) = run_stored(store, manifest, [np.array([1, 4, 10**12, -1], np.int64)])
    np.testing.assert_array_equal(found, table[[1, 3, 3, 3]])


def test_an_operator_that_tvm_does_not_have_is_named(store: Store, make_model: MakeModel) -> None:
    model = make_model([helper.make_node("Det", ["x"], ["y"])], {"x": ["n", 2, 2]}, {"y": ["n"]})
    with pytest.raises(CompileError, match=r"TVM .* can't compile the model: .*Det.*--engine onnxruntime"):
        compile_here(model, store, sizes=(1,))


def test_one_result_as_two_outputs_is_refused(store: Store, make_model: MakeModel) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["y"], ["z"])]
    model = make_model(nodes, {"x": ["n", 4]}, {"y": ["n", 4], "z": ["n", 4]})
    with pytest.raises(CompileError, match=r"output 1 is .* another output, so no kernel writes it"):
        compile_here(model, store, sizes=(1,))


def test_without_tvm_the_error_says_what_to_install(
    store: Store, make_mlp: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mainspring.compiler.tvm.build", None)
    with pytest.raises(CompileError, match=f"needs TVM .*not installed.*{re.escape(extras.command('tvm'))}"):
        compile_here(make_mlp(1), store)


def test_names_of_engines_and_devices_are_checked(store: Store, make_mlp: MakeModel) -> None:
    for target, complaint in (
        (Target("tensorrt"), "engine 'tensorrt' is none of: onnxruntime, tvm, auto"),
        (Target("tvm", "tpu"), "device 'tpu' is none of: cpu, cuda"),
        (Target("tvm", "cuda", "ampere"), "'ampere' is not an architecture of a GPU"),
        (Target("auto", "cuda"), "only a measurement there can tell"),
    ):
        with pytest.raises(CompileError, match=complaint):
            compile_here(make_mlp(1), store, target)


@pytest.mark.parametrize(("faster", "slower"), [("tvm", "onnxruntime"), ("onnxruntime", "tvm")])
def test_auto_keeps_the_faster_engine(
    store: Store, make_mlp: MakeModel, monkeypatch: pytest.MonkeyPatch, faster: str, slower: str
) -> None:
    from mainspring.compiler.choosing import candidates

    def measured(_model: object, info: object, sizes: list[int]) -> dict[int, int]:
        per_row = 1_000_000 if info.engine == faster else 3_000_000  # type: ignore[attr-defined]
        return {size: per_row * size for size in sizes}

    monkeypatch.setattr(candidates, "measure_infer", measured)
    done = compile_model(make_mlp(1), "m", store, (1, 2), Source("onnx"), target=Target("auto"))
    assert done.manifest.engine == faster
    assert done.engines[faster].startswith("1.00 ms for each row")
    assert done.engines[slower].startswith("3.00 ms for each row")


def test_auto_keeps_onnxruntime_where_tvm_can_not(store: Store, make_model: MakeModel) -> None:
    model = make_model([helper.make_node("Det", ["x"], ["y"])], {"x": ["n", 2, 2]}, {"y": ["n"]})
    done = compile_model(model, "m", store, (1,), Source("onnx"), target=Target("auto"))
    assert done.manifest.engine == "onnxruntime"
    assert "Det" in done.engines["tvm"]


def test_a_graph_for_a_gpu_depends_on_no_instruction_set(store: Store, make_network: MakeNetwork) -> None:
    manifest = compile_here(make_network(1), store, Target("onnxruntime", "cuda"))
    info = store.executable_info(manifest)
    assert (info.engine, info.device, info.instruction_set) == ("onnxruntime", "cuda", artifact.PORTABLE)
    graph = onnx.load(store.executable_path(manifest))
    assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
    assert "BatchNormalization" not in {node.op_type for node in graph.graph.node}
    assert msgspec.structs.asdict(manifest.verification)["on"] == "cpu"


def test_copies_of_an_architecture_are_lowered_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from mainspring.compiler.tvm import build, lowering

    sizes: list[Shape] = []

    def counted(graph: bytes, shape: Shape, *others: object) -> object:
        sizes.append(shape)
        return lowering.lower(graph, shape, *others)  # type: ignore[arg-type]

    build._architecture.cache_clear()
    monkeypatch.setattr(build, "lower", counted)
    done = list(compile_zoo(["digits"], store, copies=3, batch_sizes=(1, 2), target=CPU_KERNELS))
    assert sorted(sizes) == [Shape(1), Shape(2)]
    assert [each.shared for each in done] == [False, True, True]
    assert len({each.manifest.executable for each in done}) == 1
    assert len({each.manifest.weights_hash for each in done}) == 3
    again = list(compile_zoo(["digits"], store, copies=3, batch_sizes=(1, 2), target=CPU_KERNELS))
    assert all(each.kept for each in again)
    monkeypatch.setitem(PLAN_FORMATS, "cpu", 7)
    build._architecture.cache_clear()
    renewed = list(compile_zoo(["digits"], store, copies=3, batch_sizes=(1, 2), target=CPU_KERNELS))
    assert not any(each.kept for each in renewed), "plans that this version can't run were kept"
    assert {read_plans(store, each.manifest).format for each in renewed} == {7}
