"""Real models through the worker: what comes back is what a stock ONNX Runtime session returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mainspring.compiler.artifact.manifest import ONNXRUNTIME, TVM
from mainspring.compiler.artifact.plan import PLANS, SHARED_OBJECT
from mainspring.messages.actions import Prepare, Release, Unload
from mainspring.messages.codes import Status
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.config import MIB
from mainspring.worker.engines.cpu import _StagedRun
from tests.worker.engines.dense import check, check_many, flip, model
from tests.worker.peers import Cluster, load

Serve = Callable[[Path], Cluster]


@pytest.fixture(params=[ONNXRUNTIME, TVM])
def engine(request: pytest.FixtureRequest) -> str:
    """The engine that the models are compiled for and the worker runs."""
    return str(request.param)


@pytest.fixture
def folder(engine: str, request: pytest.FixtureRequest) -> Path:
    """``a.onnx`` and ``b.onnx``, one graph with other weights, and ``store`` with both."""
    found = request.getfixturevalue(f"for_{engine}")
    assert isinstance(found, Path)
    return found


@pytest.fixture
def serve(start: Callable[..., Cluster], engine: str) -> Serve:
    """A function that starts a worker of the engine with a store."""
    room = {"io_bytes": 4 * MIB, "workspace_bytes": 4 * MIB}
    return lambda store: start(engine=engine, store=str(store), **room)


def test_outputs_are_those_of_a_stock_session(serve: Serve, folder: Path) -> None:
    cluster = serve(folder / "store")
    a, b = model(folder, "a"), model(folder, "b")
    assert a.executable == b.executable
    assert a.extents == (2,), "the test needs a tensor that spans pages"
    cluster.resident(a, (6, 7))
    cluster.resident(b, (2, 3))
    for counts, batch_size in [((1,), 1), ((1, 1), 2), ((2, 1), 4), ((1, 2, 1), 4), ((3,), 4)]:
        for name in ("a", "b"):
            check(cluster, folder, name, counts, batch_size)
    assert cluster.do(Unload(cluster.next_id(), "w", "a")).status is Status.OK
    assert cluster.do(load(cluster.next_id(), (4, 5), "a")).status is Status.OK
    check(cluster, folder, "a", (1, 1), 2)
    check(cluster, folder, "b", (1,), 1)


def test_batches_staged_behind_each_other_have_outputs_of_their_own(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same model and of another one, at unlike batch sizes, as fast as they come."""
    spares: list[bool] = []
    run = _StagedRun.run

    def counted(staged: _StagedRun) -> int:
        spares.append(staged.spare)
        return run(staged)

    monkeypatch.setattr(_StagedRun, "run", counted)
    cluster = serve(folder / "store")
    cluster.resident(model(folder, "a"), (0, 1))
    cluster.resident(model(folder, "b"), (2, 3))
    for _ in range(50):
        check_many(cluster, folder, [("aabbbaba"[place % 8], 1 << place % 3) for place in range(16)])
        if {*spares} == {True, False}:
            return
    pytest.fail(f"not both bindings were staged in: {spares}")


def test_models_take_turns_in_the_same_pages(serve: Serve, folder: Path) -> None:
    """The second and every later model finds the weights bound there, and must run on its own."""
    cluster = serve(folder / "store")
    for name in ("a", "b"):
        assert cluster.do(Prepare(cluster.next_id(), "w", model(folder, name))).status is Status.OK
    for name in ("a", "b", "a", "b"):
        assert cluster.do(load(cluster.next_id(), (2, 3), name)).status is Status.OK
        for counts, batch_size in [((1,), 1), ((2, 1), 4)]:
            check(cluster, folder, name, counts, batch_size)
        assert cluster.do(Unload(cluster.next_id(), "w", name)).status is Status.OK


def test_released_model_can_be_prepared_again(serve: Serve, folder: Path) -> None:
    cluster = serve(folder / "store")
    cluster.resident(model(folder, "a"), (0, 1))
    for action in (Unload(cluster.next_id(), "w", "a"), Release(cluster.next_id(), "w", "a")):
        assert cluster.do(action).status is Status.OK
    cluster.resident(model(folder, "a"), (1, 2))
    check(cluster, folder, "a", (1,), 1)


def test_artifact_other_than_the_controllers_is_refused(serve: Serve, folder: Path) -> None:
    cluster = serve(folder / "store")
    for wrong in (
        msgspec.structs.replace(model(folder, "a"), name="nobody"),
        msgspec.structs.replace(model(folder, "a"), name="../a"),
        msgspec.structs.replace(model(folder, "a"), name="b"),
        msgspec.structs.replace(model(folder, "a"), batch_sizes=(1, 8)),
    ):
        result = cluster.do(Prepare(cluster.next_id(), "w", wrong))
        assert result.status is Status.ENGINE_ERROR
        assert result.detail
    cluster.resident(model(folder, "a"), (0, 1))
    check(cluster, folder, "a", (1,), 1)


def test_weights_cut_short_fail_the_load_and_nothing_else(
    serve: Serve, folder: Path, own_store: Path
) -> None:
    cluster = serve(own_store)
    a = model(folder, "a")
    assert cluster.do(Prepare(cluster.next_id(), "w", a)).status is Status.OK
    with (own_store / "weights" / f"{a.weights_hash}.bin").open("r+b") as file:
        file.truncate(PAGE_BYTES + 5)
    result = cluster.do(load(cluster.next_id(), (0, 1), "a"))
    assert result.status is Status.ENGINE_ERROR
    assert "was altered" in result.detail
    cluster.resident(model(folder, "b"), (0, 1))
    check(cluster, folder, "b", (1,), 1)


@pytest.mark.parametrize(
    ("engine", "victim"),
    [
        (ONNXRUNTIME, "weights"),
        (ONNXRUNTIME, "graph.onnx"),
        (TVM, "weights"),
        (TVM, PLANS),
        (TVM, SHARED_OBJECT),
    ],
    indirect=["engine"],
)
def test_an_altered_file_is_refused_at_prepare_with_its_remedy(
    serve: Serve, folder: Path, own_store: Path, victim: str
) -> None:
    a = model(folder, "a")
    weights = own_store / "weights" / f"{a.weights_hash}.bin"
    altered = weights if victim == "weights" else own_store / "executables" / a.executable / victim
    flip(altered)
    cluster = serve(own_store)
    result = cluster.do(Prepare(cluster.next_id(), "w", a))
    assert result.status is Status.ENGINE_ERROR
    assert f"{altered} was altered" in result.detail
    assert "`mainspring compile" in result.detail
    flip(altered)
    cluster.resident(a, (0, 1))
    check(cluster, folder, "a", (1,), 1)


def test_weights_altered_after_prepare_fail_the_next_load(
    serve: Serve, folder: Path, own_store: Path
) -> None:
    a = model(folder, "a")
    cluster = serve(own_store)
    cluster.resident(a, (0, 1))
    flip(own_store / "weights" / f"{a.weights_hash}.bin")
    check(cluster, folder, "a", (1,), 1)
    assert cluster.do(Unload(cluster.next_id(), "w", "a")).status is Status.OK
    result = cluster.do(load(cluster.next_id(), (0, 1), "a"))
    assert result.status is Status.ENGINE_ERROR
    assert "was altered" in result.detail
