from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from mainspring.cli.main import build_app
from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import PROOF_VERSION, Independence
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo import build, names
from mainspring.compiler.zoo.catalogue import architecture_of, compile_zoo

REQUIRED = {
    *("resnet18", "resnet34", "resnet50", "densenet121", "inception-v1", "squeezenet", "shufflenet"),
    *("mobilenet", "vgg19", "bert-tiny", "bert-base", "alexnet", "zfnet512", "inception-v2", "digits"),
}
PARAMETERS = {
    # Millions, as their papers and model zoos state them; without batch normalisation's statistics.
    "resnet18": 11.7,
    "resnet34": 21.8,
    "resnet50": 25.6,
    "densenet121": 8.0,
    "squeezenet": 1.24,
    "mobilenet": 3.5,
    "vgg19": 143.7,
    "bert-base": 109.5,
    "bert-tiny": 4.4,
    "resnet20": 0.27,
}


def test_the_zoo_has_what_it_should() -> None:
    assert set(names()) >= REQUIRED


@pytest.mark.parametrize(("name", "millions"), PARAMETERS.items())
def test_architectures_have_their_real_sizes(name: str, millions: float) -> None:
    plans = architecture_of(name).plans
    count = sum(int(np.prod(plan.shape)) for plan in plans)
    assert count / 1e6 == pytest.approx(millions, rel=0.03)


@pytest.mark.parametrize("name", ["bert-tiny", "digits", "mobilenet", "resnet20", "shufflenet", "squeezenet"])
def test_outputs_are_finite_and_differ_between_seeds_and_rows(
    name: str, run_stock: Callable[..., list[Any]]
) -> None:
    first, second = build(name, 1), build(name, 2)
    assert first.SerializeToString() == build(name, 1).SerializeToString()
    arrays = [sample(value) for value in first.graph.input]
    one, two = run_stock(first, arrays)[-1], run_stock(second, arrays)[-1]
    assert np.isfinite(one).all()
    assert not np.allclose(one[0], one[1], rtol=1e-4, atol=0)
    assert not np.allclose(one, two, rtol=1e-2, atol=0)


def sample(value: onnx.ValueInfoProto) -> Any:
    shape = (2, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
    random = np.random.default_rng(0)
    if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
        return random.standard_normal(shape, np.float32)
    return random.integers(0, 2 if "mask" in value.name else 1000, shape)


@pytest.mark.parametrize("name", ["digits", "resnet20", "bert-tiny", "shufflenet"])
def test_copies_have_one_executable_and_weights_of_their_own(store: Store, name: str) -> None:
    done = list(compile_zoo([name], store, copies=2, seed=5, batch_sizes=(1, 2)))
    assert [compiled.manifest.name for compiled in done] == [f"{name}-1", f"{name}-2"]
    assert [compiled.shared for compiled in done] == [False, True]
    assert len({compiled.manifest.executable for compiled in done}) == 1
    assert len({compiled.manifest.weights_hash for compiled in done}) == 2
    assert [compiled.manifest.source.seed for compiled in done] == [5, 6]


def test_copies_that_are_there_are_kept_and_others_made(store: Store) -> None:
    first = list(compile_zoo(["digits"], store, copies=2, batch_sizes=(1,)))
    again = list(compile_zoo(["digits"], store, copies=3, batch_sizes=(1,)))
    assert [compiled.kept for compiled in again] == [True, True, False]
    assert [compiled.manifest for compiled in again[:2]] == [compiled.manifest for compiled in first]
    other = list(compile_zoo(["digits"], store, copies=2, seed=1, batch_sizes=(1,)))
    assert [compiled.kept for compiled in other] == [False, False]
    assert other[0].manifest.weights_hash == first[1].manifest.weights_hash


def test_a_copy_whose_weights_were_lost_is_made_again(store: Store) -> None:
    (compiled,) = compile_zoo(["digits"], store, batch_sizes=(1,))
    store.weights_path(compiled.manifest).unlink()
    (again,) = compile_zoo(["digits"], store, batch_sizes=(1,))
    assert not again.kept
    store.verify("digits")


def test_a_copy_whose_proof_is_out_of_date_and_not_in_its_graph_is_made_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = compile_zoo(["digits"], store, batch_sizes=(1, 2))
    older = msgspec.structs.replace(made.manifest, independence=Independence(PROOF_VERSION - 1))
    store.put_manifest(older)
    monkeypatch.setattr("mainspring.compiler.rows.proving._why_not", lambda *_: "it holds no graph")
    (again,) = compile_zoo(["digits"], store, batch_sizes=(1, 2))
    assert (again.kept, again.manifest.unshared) == (False, "")


@pytest.mark.parametrize(
    ("copies", "seed", "name"), [(1, 0, "digits"), (3, 5, "digits-2"), (2, 0, "digits-1")]
)
def test_the_command_that_an_error_names_makes_that_very_copy_again(
    store: Store, copies: int, seed: int, name: str
) -> None:
    list(compile_zoo(["digits"], store, copies, seed, [1]))
    before = {each: store.manifest(each).weights_hash for each in store.names()}
    weights = store.weights_path(store.manifest(name))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(StoreError, match="was altered") as error:
        store.verify(name)
    (command,) = re.findall("`mainspring (.*)` makes it again", str(error.value))
    result = CliRunner().invoke(build_app(), [*shlex.split(command), "--batch-sizes", "1"])
    assert result.exit_code == 0, result.output
    assert {each: store.manifest(each).weights_hash for each in store.names()} == before
    store.verify(name)


def test_unknown_names_and_numbers_are_refused_before_anything_is_compiled(store: Store) -> None:
    with pytest.raises(CompileError, match=r"the zoo has no 'resnet55': it has .*; did you mean 'resnet5"):
        compile_zoo(["digits", "resnet55"], store)
    with pytest.raises(CompileError, match="0 copies"):
        compile_zoo(["digits"], store, copies=0)
    with pytest.raises(CompileError, match="seed -1"):
        compile_zoo(["digits"], store, seed=-1)
    assert not store.root.exists()
