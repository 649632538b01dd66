"""Which artifact is kept: how times are compared, what is said, and who is left where one can't."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import ONNXRUNTIME, TVM, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Judged, describe, fastest, per_row_ns
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program.compiled import MAKERS, Artifact, Target
from tests.compiler.conftest import MakeModel

SOURCE = Source("onnx", "m.onnx")


def test_all_batch_sizes_count_alike() -> None:
    assert per_row_ns({1: 400, 2: 200}) == pytest.approx(200)
    assert per_row_ns({1: 0}) == 1


def test_the_faster_of_those_that_can_is_chosen() -> None:
    slow, quick = Judged({1: 900}), Judged({1: 100})
    assert fastest({"a": slow, "b": quick}) == fastest({"b": quick, "a": slow}) == "b"
    assert fastest({"a": slow, "b": Judged(failed="no")}) == "a"
    assert fastest({"a": quick, "b": quick}) == "a"
    with pytest.raises(CompileError, match="no engine can run the model: a: no; b: nor here"):
        fastest({"a": Judged(failed="no"), "b": Judged(failed="nor here")})


def test_times_are_told_with_digits_that_matter() -> None:
    assert describe(Judged({1: 345_678_901})) == "346 ms for each row, over all batch sizes"
    assert describe(Judged({1: 2_000_000})) == "2.00 ms for each row, over all batch sizes"
    assert describe(Judged({1: 12_345}, "gpu")) == "0.0123 ms for each row on gpu, over all batch sizes"
    assert describe(Judged(failed="no provider")) == "can't: no provider"


def refusing(reason: str) -> Callable[..., Artifact]:
    def refuse(*_: object) -> Artifact:
        raise CompileError(reason)

    return refuse


def test_where_both_refuse_the_model_the_first_says_why(
    store: Store, make_mlp: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAKERS, ONNXRUNTIME, refusing("it has no batch axis"))
    monkeypatch.setitem(MAKERS, TVM, refusing("TVM is not installed"))
    with pytest.raises(CompileError, match=r"^it has no batch axis$"):
        compile_model(make_mlp(1), "m", store, (1,), SOURCE, target=Target("auto"))


def test_what_onnxruntime_can_not_have_is_the_others(
    store: Store, make_mlp: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAKERS, TVM, MAKERS[ONNXRUNTIME])
    monkeypatch.setitem(MAKERS, ONNXRUNTIME, refusing("its outputs differ"))
    done = compile_model(make_mlp(1), "m", store, (1, 2), SOURCE, target=Target("auto"))
    assert done.engines[ONNXRUNTIME] == "can't: its outputs differ"
    assert done.engines[TVM].endswith(" ms for each row, over all batch sizes")
    assert set(store.manifest("m").profiles["cpu"].infer_ns) == {1, 2}
