"""Models with open dimensions compiled for TVM: kernels for each bucket, to which requests are padded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.compiler.artifact.arrays import Runnable
from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import TVM, ExecutableInfo, Manifest
from mainspring.compiler.artifact.plan import Shape, read_plans, shapes_of
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing import candidates
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.program import compiled as artifacts
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.sizes.forms import Range, short_ladder
from mainspring.compiler.sizes.padding import MOST_PLANS
from tests.compiler import open_models
from tests.compiler.conftest import Array

pytest.importorskip("tvm", reason="compiling for the engine tvm needs the extra tvm")

SIZES = (1, 2, 4)


def compile_here(
    folder: Path,
    model: onnx.ModelProto,
    pad: dict[str, float] | None = None,
    batch_sizes: tuple[int, ...] = SIZES,
    engine: str = TVM,
    **most: int,
) -> Compiled:
    file = open_models.save(model, folder / "m.onnx")
    store, target = Store(folder / "store"), Target(engine)
    return compile_file(file, "m", store, batch_sizes, most=most, pad=pad, target=target)


def stored(folder: Path) -> Manifest:
    return Store(folder / "store").manifest("m")


def test_there_is_a_plan_for_each_batch_size_and_bucket(tmp_path: Path) -> None:
    manifest = compile_here(tmp_path, open_models.sounds(), {"x": 0.0}, time=100).manifest
    assert manifest == stored(tmp_path)
    assert manifest.at_ceilings
    assert manifest.spec().at_ceilings
    assert [symbol.ceilings for symbol in manifest.symbols] == [(16, 32, 64, 100)]
    plans = read_plans(Store(tmp_path / "store"), manifest)
    assert [plan.shape for plan in plans.plans] == shapes_of(manifest)
    assert manifest.workspace_bytes == max(plan.workspace_bytes for plan in plans.plans)
    assert {*manifest.profiles["cpu"].shaped} == {"16", "32", "64", "100"}
    assert all({*each} == {*SIZES} for each in manifest.profiles["cpu"].shaped.values())
    # Four shapes at some batch sizes, and each bucket's batches of unlike requests at all.
    assert manifest.verification.rows >= 4 * sum(SIZES)


def test_what_is_proven_to_be_apart_is_padded_unasked(tmp_path: Path) -> None:
    manifest = compile_here(tmp_path, open_models.lengths(), seq=40).manifest
    assert manifest.at_ceilings
    assert manifest.pad == {"x": 0.0}


def test_batches_of_one_row_are_padded_too(tmp_path: Path) -> None:
    manifest = compile_here(tmp_path, open_models.attention(), {"mask": 0.0}, (1,), seq=40).manifest
    assert manifest.pad == {"x": 0.0, "mask": 0.0}
    assert manifest.spec().pad == manifest.pad


def test_weights_are_there_once_for_all_buckets(tmp_path: Path) -> None:
    """Embeddings of positions are cut to each bucket's: all else is the same."""
    model = open_models.encoder(layers=1)
    open_bytes = compile_here(tmp_path, model, engine="onnxruntime", seq=48).manifest
    manifest = compile_here(tmp_path, model, {"mask": 0.0}, (1, 2), seq=48).manifest
    assert [symbol.ceilings for symbol in manifest.symbols] == [(16, 32, 48)]
    positions = sum(
        each.size_bytes for each in manifest.tensors if each.shape[-2:] in {(16, 32), (32, 32), (48, 32)}
    )
    table = 64 * 32 * 4
    assert manifest.weights_bytes < open_bytes.weights_bytes + 3 * table
    assert positions <= (16 + 32 + 48) * 32 * 4 + sum(
        each.size_bytes for each in manifest.tensors if each.shape == (32, 32)
    )
    plans = read_plans(Store(tmp_path / "store"), manifest)
    read = [
        {
            operand.index
            for launch in plan.launches
            for operand in launch.operands
            if operand.region == "weights"
        }
        for plan in plans.plans
    ]
    common = set.intersection(*read)
    assert len(common) >= len(manifest.tensors) - 8, "most weights are read by all plans"


def test_weights_that_each_bucket_lays_out_otherwise_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mainspring.compiler.tvm import assembly, build

    build._architecture.cache_clear()
    monkeypatch.setattr(assembly, "_MORE", 0)
    monkeypatch.setattr(assembly, "_FREE_BYTES", 0)
    message = (
        "TVM packs the weights for batch size 1 at 32 otherwise than for batch size 1 at 16, .*onnxruntime"
    )
    with pytest.raises(CompileError, match=message):
        compile_here(tmp_path, open_models.positions(), {"ids": 0.0})
    build._architecture.cache_clear()


def test_what_may_not_be_padded_is_refused_with_what_would_do(tmp_path: Path) -> None:
    message = "'seq' is open, the engine tvm is for fixed shapes.*`--pad x=0`.*`--shape`.*onnxruntime"
    with pytest.raises(CompileError, match=message):
        compile_here(tmp_path, open_models.attention(), seq=40)
    with pytest.raises(StoreError):
        stored(tmp_path)


def test_padding_that_changes_answers_is_refused(tmp_path: Path) -> None:
    message = r"with requests padded with x = 0, mask = 1, output 'y' at .* differs.*`--engine onnxruntime"
    with pytest.raises(CompileError, match=message):
        compile_here(tmp_path, open_models.attention(), {"mask": 1.0}, seq=40)


def test_a_model_that_may_not_be_padded_goes_to_onnxruntime_and_that_is_said(tmp_path: Path) -> None:
    done = compile_here(tmp_path, open_models.attention(), engine="auto", seq=40)
    assert done.manifest.engine == "onnxruntime"
    assert not done.manifest.at_ceilings
    assert "it is not proven that padding changes no answer" in done.engines["tvm"]


def test_the_faster_engine_is_chosen_over_all_sizes_and_not_at_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that are quicker at their ceilings lose where most requests have to be padded far."""

    def durations(
        model: object, info: ExecutableInfo, sizes: Sequence[int]
    ) -> dict[tuple[int, ...], dict[int, int]]:
        del model
        quicker, (symbol,) = info.engine == TVM, info.symbols
        return {
            (each,): {size: each * size * (90 if quicker else 100) for size in sizes}
            for each in symbol.ceilings
        }

    monkeypatch.setattr(candidates, "measure_shaped", durations)
    done = compile_here(tmp_path, open_models.attention(), {"mask": 0.0}, engine="auto", seq=512)
    assert done.manifest.engine == "onnxruntime"
    assert len(done.manifest.symbols[0].ceilings) > 8
    assert "ms for each row" in done.engines["tvm"]


class _Spoilt:
    """A model that is wrong at one shape alone."""

    def __init__(self, model: Runnable, shape: Shape) -> None:
        self._model, self._shape = model, shape

    def run(
        self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: tuple[int, ...] = ()
    ) -> None:
        self._model.run(batch_size, inputs, outputs, sizes)

    def run_arrays(
        self, batch_size: int, arrays: Sequence[Array], sizes: tuple[int, ...] = ()
    ) -> list[Array]:
        found = self._model.run_arrays(batch_size, arrays, sizes)
        wrong = Shape(batch_size, sizes) == self._shape
        return [np.multiply(each, np.float32(1.01)) for each in found] if wrong else found


@pytest.mark.parametrize("shape", [Shape(4, (64,)), Shape(2, (100,)), Shape(1, (32,))])
def test_each_buckets_kernels_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    bind = artifacts.TvmArtifact.bind
    monkeypatch.setattr(artifacts.TvmArtifact, "bind", lambda self: _Spoilt(bind(self), shape))
    message = rf"at batch size {shape.batch_size}.*(of {shape.sizes[0]}|time {shape.sizes[0]}).* differs"
    with pytest.raises(CompileError, match=message):
        compile_here(tmp_path, open_models.sounds(), {"x": 0.0}, time=100)


def test_more_symbols_have_fewer_ceilings_each(tmp_path: Path) -> None:
    manifest = compile_here(tmp_path, open_models.images(), {"x": 0.0}, (1, 2, 4, 8, 16), h=40, w=64).manifest
    assert len(shapes_of(manifest)) <= MOST_PLANS
    assert [len(symbol.ceilings) for symbol in manifest.symbols] == [2, 2]
    assert [symbol.limit for symbol in manifest.symbols] == [40, 64]


def test_a_manifest_that_says_not_how_it_is_padded_is_found(tmp_path: Path) -> None:
    manifest = compile_here(tmp_path, open_models.lengths(), batch_sizes=(1,), seq=32).manifest
    assert manifest.problems() == []
    (problem,) = msgspec.structs.replace(manifest, pad={}).problems()
    assert "nothing says how it is padded" in problem
    fewer = msgspec.structs.replace(
        manifest, symbols=(msgspec.structs.replace(manifest.symbols[0], ceilings=(8, 16, 32)),)
    )
    with pytest.raises(StoreError, match="it has no plan for batch size 1 at 8"):
        read_plans(Store(tmp_path / "store"), fewer)


@given(st.integers(1, 500), st.integers(0, 1 << 20), st.sampled_from([1, 2, 8, 32]), st.integers(1, 20))
def test_a_short_ladder_reaches_the_limit_in_even_steps(least: int, more: int, step: int, most: int) -> None:
    limit = least + more // step * step
    found = short_ladder(Range(least, least, limit, step), most)
    assert 1 <= len(found) <= most
    assert found[-1] == limit
    assert list(found) == sorted({*found})
    assert all((each - least) % step == 0 for each in found)
