"""Products on tensor cores: what kernels compute on the emulated device, and what becomes of a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import te, tirx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import FP16, FP32, PRECISIONS, TF32, Manifest, Source
from mainspring.compiler.artifact.nvrtc import NvrtcMissing, kernel_resources
from mainspring.compiler.artifact.plan import read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import known_gpu
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.report import describe_artifact, fields
from mainspring.compiler.tvm import build as tvm_build
from mainspring.compiler.tvm import tensor_cores
from mainspring.compiler.tvm.kernels import Generated, cuda_target, generate_cuda
from mainspring.compiler.tvm.tiles import WarpChoice, WarpTile, warp_tiles
from mainspring.compiler.zoo.catalogue import build
from tests.compiler.conftest import Array, MakeModel
from tests.emulator.build import compile_source, why_not
from tests.emulator.cases import compile_case
from tests.emulator.device import Device, KernelLaunch, Pointer

H100 = known_gpu("sm_90")
WIDTH, CHANNELS, FILTERS = 7, 12, 20
emulated = pytest.mark.skipif(bool(why_not()), reason=why_not() or "kernels can be emulated here")


def convolution(rows: int, channels: int = CHANNELS, count: int = FILTERS) -> Any:
    """Return 3 x 3 pixels of a padded image, then a residual and its positive part, as loops."""
    image = te.placeholder((rows, WIDTH, WIDTH, channels), name="image")
    filters = te.placeholder((3, 3, channels, count), name="filters")
    residual = te.placeholder((rows, WIDTH, WIDTH, count), name="residual")

    def padded(n: Any, i: Any, j: Any, c: Any) -> Any:
        inside = tirx.all(i >= 1, i <= WIDTH, j >= 1, j <= WIDTH)
        return tirx.if_then_else(inside, image[n, i - 1, j - 1, c], tirx.const(0, "float32"))

    wide = te.compute((rows, WIDTH + 2, WIDTH + 2, channels), padded, name="wide")
    down, right, term = (te.reduce_axis((0, extent)) for extent in (3, 3, channels))
    total = te.compute(
        residual.shape,
        lambda n, i, j, c: te.sum(
            wide[n, i + down, j + right, term] * filters[down, right, term, c], axis=[down, right, term]
        ),
        name="total",
    )
    result = te.compute(
        residual.shape,
        lambda n, i, j, c: tirx.max(total[n, i, j, c] + residual[n, i, j, c], tirx.const(0, "float32")),
        name="result",
    )
    return te.create_prim_func([image, filters, residual, result])


def generated(function: Any, precision: str, arch: str = "sm_90") -> Generated:
    def schedule(module: Any) -> Any:
        arranged = tensor_cores.arranged(module["f"], H100, precision)
        assert arranged is not None
        return tvm.IRModule({"f": arranged})

    return generate_cuda({"f": function}, cuda_target(known_gpu(arch)), schedule, precision)


def rounded(array: Array, precision: str) -> Array:
    """Return what is left of an array's numbers; ties of TF32 go away from zero."""
    if precision == FP16:
        return array.astype(np.float16).astype(np.float64)
    bits = array.view(np.uint32) + np.uint32(0x1000)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def convolved(image: Array, filters: Array, residual: Array) -> Array:
    wide = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = sum(wide[:, i : i + WIDTH, j : j + WIDTH] @ filters[i, j] for i in range(3) for j in range(3))
    return np.maximum(total + residual, 0)


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that has every product take this tile, its terms in so many parts."""

    def take(*tile: int, parts: int = 1) -> None:
        monkeypatch.setattr(tensor_cores, "choose_warps", lambda *_: WarpChoice(WarpTile(*tile), parts))

    return take


@emulated
@pytest.mark.parametrize("precision", [TF32, FP16])
@pytest.mark.parametrize(
    ("shape", "parts"), [((2, 2, 1, 2), 1), ((1, 2, 2, 1), 1), ((4, 1, 1, 3), 1), ((2, 1, 1, 2), 3)]
)
def test_kernels_multiply_rounded_factors_and_add_them_in_32_bits(
    take: Any, tmp_path: Path, precision: str, shape: tuple[int, ...], parts: int
) -> None:
    take(*shape, 32, parts=parts)
    made = generated(convolution(2), precision)
    calls = made.calls["f"]
    assert calls[0].block[0] == 32
    assert len(calls) == (2 if parts > 1 else 1), "a second kernel adds the parts"
    assert b"atomic" not in made.code
    random = np.random.default_rng(0)
    shapes = ((2, WIDTH, WIDTH, CHANNELS), (3, 3, CHANNELS, FILTERS), (2, WIDTH, WIDTH, FILTERS))
    arrays = [random.standard_normal(each).astype(np.float32) for each in shapes]
    device = Device(compile_source(made.code.decode(), tmp_path / "kernels", {each.kernel for each in calls}))
    for index, array in enumerate(arrays):
        device.give(f"array{index}", array)
    device.make("array3", arrays[2].nbytes)
    sizes = [*(array.nbytes for array in arrays), arrays[2].nbytes]
    for index, scratch in enumerate(made.scratch["f"], len(sizes)):
        device.make(f"array{index}", scratch.size_bytes)
        sizes.append(scratch.size_bytes)
    launches = [
        KernelLaunch(
            call.kernel,
            call.grid,
            call.block,
            tuple(Pointer(f"array{each}", 0, sizes[each], each in call.writes) for each in call.arguments),
            call.shared_bytes,
        )
        for call in calls
    ]
    outputs = device.run(launches)
    found = outputs["array3"].view(np.float32).reshape(shapes[2])
    image, filters = (rounded(each, precision) for each in arrays[:2])
    np.testing.assert_allclose(found, convolved(image, filters, arrays[2]), rtol=1e-5, atol=1e-4)
    exact = convolved(*(each.astype(np.float64) for each in arrays))
    assert np.abs(found - exact).max() > 1e-3, "nothing was rounded"


@emulated
@pytest.mark.parametrize("precision", [TF32, FP16])
def test_a_network_on_tensor_cores_gives_what_onnx_runtime_does_within_its_tolerance(
    take: Any, tmp_path: Path, precision: str
) -> None:
    take(2, 2, 1, 2, 32)
    case = compile_case(build("digits"), 4, precision)
    assert len(re.findall(rf"^ +mainspring_multiply_{precision}\(", case.source, re.MULTILINE)) >= 3
    for found, expected in zip(case.run(tmp_path / "kernels"), case.outputs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
        assert np.abs(found - expected).max() > 1e-5, "nothing was rounded"


def convolution_in_every_tile(precision: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> Generated:
    """Return a convolution of images, wide enough for all tiles, once in each, whole and in two parts."""

    def schedule(module: Any) -> Any:
        arranged = {}
        for variable, function in module.functions.items():
            choice = choices[str(variable.name_hint)]
            monkeypatch.setattr(tensor_cores, "choose_warps", lambda *_, choice=choice: choice)
            arranged[str(variable.name_hint)] = tensor_cores.arranged(function, H100, precision)
        return tvm.IRModule(arranged)

    every = [WarpChoice(tile, parts) for parts in (1, 2) for tile in warp_tiles(precision)]
    choices = {f"f{number}": choice for number, choice in enumerate(every)}
    function = convolution(8, 64, 128)
    functions = dict.fromkeys(choices, function)
    return generate_cuda(functions, cuda_target(known_gpu(arch)), schedule, precision)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("precision", "arch"), [(TF32, "sm_80"), (FP16, "sm_90")])
def test_no_tile_spills(precision: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = convolution_in_every_tile(precision, arch, monkeypatch).code
    tiles = len(warp_tiles(precision))
    assert source.count(b"*(float4*)(image_ptr") == 2 * tiles, "16 bytes at once"
    try:
        found = kernel_resources(source, arch)
    except NvrtcMissing as error:
        pytest.skip(f"{error}: make test-codegen installs it")
    assert len(found) == 3 * tiles + 1, "parts are added by kernels of their own"
    spilled = {name: each for name, each in found.items() if each.spilled_bytes or each.stack_bytes}
    assert not spilled


def product(make_model: MakeModel, weights: Array) -> onnx.ModelProto:
    """Return the product of each row with a matrix."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return make_model(nodes, {"x": ["n", weights.shape[0]]}, {"y": ["n", weights.shape[1]]}, {"w": weights})


def compile_in(store: Store, model: onnx.ModelProto, name: str, precision: str) -> Manifest:
    target = Target("tvm", "cuda", "sm_90", precision)
    source = Source("onnx", "m.onnx", engine="tvm", device="cuda", precision=precision)
    compiled = compile_model(model, name, store, (16,), source, target=target)
    assert fields(compiled)["precision"] == precision
    assert describe_artifact(compiled).endswith(f"for tvm in {precision}") == (precision != FP32)
    return compiled.manifest


@pytest.fixture
def no_device_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's compiler would take long, and there may be none."""
    monkeypatch.setattr(tvm_build, "compiled_kernels", lambda *_: None)


@pytest.mark.usefixtures("no_device_compiler")
def test_precisions_have_executables_and_tolerances_of_their_own(
    take: Any, make_model: MakeModel, tmp_path: Path
) -> None:
    take(2, 2, 1, 2, 32)
    store = Store(tmp_path / "store")
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    model = product(make_model, weights)
    found = {precision: compile_in(store, model, precision, precision) for precision in PRECISIONS}
    assert len({manifest.executable for manifest in found.values()}) == len(PRECISIONS)
    assert found[FP32].weights_hash == found[TF32].weights_hash != found[FP16].weights_hash
    (exact,), (short,) = found[FP32].tensors, found[FP16].tensors
    assert (exact.dtype, short.dtype) == ("float32", "float16")
    assert short.size_bytes * 2 == exact.size_bytes
    image = np.fromfile(store.weights_path(found[FP16]), np.uint8)[short.offset :][: short.size_bytes]
    np.testing.assert_array_equal(image.view(np.float16).reshape(64, 48), weights.astype(np.float16))
    differences = {each: manifest.verification.largest_difference for each, manifest in found.items()}
    assert differences[FP32] < 1e-4
    assert min(differences[TF32], differences[FP16]) > 1e-3
    tolerances = [manifest.verification.relative_tolerance for manifest in found.values()]
    assert tolerances == sorted({*tolerances})
    for precision in PRECISIONS:
        stored = store.manifest(precision)
        assert stored.precision == read_plans(store, stored).precision == precision
        assert (f" --precision {precision}" in stored.source.options) == (precision != FP32)


@pytest.mark.usefixtures("no_device_compiler")
def test_a_model_that_rounding_makes_wrong_is_refused(
    take: Any, make_model: MakeModel, tmp_path: Path
) -> None:
    """Large terms that cancel leave the errors of their factors."""
    take(2, 2, 1, 2, 32)
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    cancelling = np.concatenate([weights * 1000, -weights * 1000 + weights])
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=1),
        helper.make_node("MatMul", ["twice", "w"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["n", 64]}, {"y": ["n", 48]}, {"w": cancelling})
    store = Store(tmp_path / "store")
    compile_in(store, model, "exact", FP32)
    with pytest.raises(CompileError, match=r"output 'y' at batch size 16 differs from stock ONNX Runtime's"):
        compile_in(store, model, "rounded", TF32)


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (Target("tvm", "cuda", "sm_90", "int8"), "precision 'int8' is none of: fp32, tf32, fp16"),
        (Target("tvm", "cpu", "sm_90", TF32), "precision tf32 is for the engine tvm on the device cuda, not"),
        (Target("onnxruntime", "cuda", "sm_90", FP16), "not for onnxruntime on cuda: `--engine tvm --device"),
        (
            Target("tvm", "cuda", "sm_75", FP16),
            "needs the tensor cores of sm_80 or newer, and sm_75",
        ),
    ],
)
def test_what_has_no_tensor_cores_is_refused(
    target: Target, complaint: str, make_mlp: MakeModel, tmp_path: Path
) -> None:
    with pytest.raises(CompileError, match=re.escape(complaint)):
        compile_model(make_mlp(1), "m", Store(tmp_path / "store"), (1,), Source("onnx"), target=target)


@pytest.mark.usefixtures("no_device_compiler")
def test_a_manifest_from_before_precisions_is_in_32_bits(make_model: MakeModel, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    manifest = compile_in(store, product(make_model, weights), "m", FP32)
    old = msgspec.to_builtins(manifest)
    del old["precision"], old["source"]["precision"]
    assert msgspec.convert(old, Manifest) == manifest
    wrong = msgspec.structs.replace(manifest, precision="int8")
    assert wrong.problems() == ["precision 'int8' is none of fp32, tf32, fp16"]


@pytest.mark.parametrize("precision", [TF32, FP16])
def test_infinities_and_nans_outlive_rounding(precision: str) -> None:
    """Also the NaN of all ones, which a carry would make a zero."""
    number, one = te.placeholder((1, 1), name="number"), te.placeholder((1, 1), name="one")
    term = te.reduce_axis((0, 1))
    product = te.compute((1, 1), lambda i, j: te.sum(number[i, term] * one[term, j], axis=term))
    function = te.create_prim_func([number, one, product])
    made = tirx.build(tensor_cores.round_factors(function, precision), "llvm")
    largest_nan = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0]
    for value in (np.inf, -np.inf, np.nan, largest_nan, 1 + 2.0**-11, -1 - 2.0**-11, 3.0, 0.0):
        given = np.full((1, 1), value, np.float32)
        found = tvm.runtime.tensor(np.empty((1, 1), np.float32))
        made(*map(tvm.runtime.tensor, (given, np.ones((1, 1), np.float32))), found)
        expected = rounded(given, precision) if np.isfinite(value) else given
        np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))
