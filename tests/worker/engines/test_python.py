"""Python models in a worker: the true rows, and processes that end, hang, and come again."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.artifact.errors import ExecutableError, Interrupted, StoreError, ValuesError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.python_folder import unpacked
from mainspring.compiler.artifact.python_process import LEAST_BUSY_NS, LEAST_IDLE_NS, ProcessEnded, limits_ns
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.python_models.compiling import compile_folder
from mainspring.worker.config import MIB
from mainspring.worker.engine import EngineError
from mainspring.worker.engines import python
from mainspring.worker.engines.python import PythonModel, PythonPrograms, pause_ns, trim
from mainspring.worker.fetching import Fetcher
from mainspring.worker.limits import Limits, Room
from mainspring.worker.sources import source_of
from tests.gateway.fakes import wait_until
from tests.patience import PATIENCE_S
from tests.python_models import (
    EXITS,
    LOOPS,
    NO_MEMORY,
    ODD,
    REFUSES,
    SEGFAULTS,
    SLEEPS,
    UNFIT,
    folder,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Manifest]:
    """A model that does odd things."""
    place = tmp_path_factory.mktemp("odd")
    store = Store(place / "store")
    return store, compile_folder(folder(place / "odd", ODD), "odd", store).manifest


@pytest.fixture
def model(made: tuple[Store, Manifest]) -> Iterator[PythonModel]:
    programs = PythonPrograms(1)
    model = programs(*made)
    model.warm(lambda _: 0, (4, 1))
    yield model
    model.close()
    programs.close()


def run(model: PythonModel, value: float, rows: int = 1) -> np.ndarray:
    x, y = np.full((4, 3), value, np.float32), np.zeros((4, 3), np.float32)
    model.run(rows, [x.ctypes.data], [y.ctypes.data])
    return y


def pid(model: PythonModel) -> int:
    assert model._process is not None
    return model._process.pid


def serves(model: PythonModel) -> bool:
    try:
        return bool((run(model, 1)[0] == 2).all())
    except ExecutableError:
        return False


def test_only_true_rows_are_computed(model: PythonModel) -> None:
    np.testing.assert_array_equal(run(model, 3, 2), [[6] * 3, [6] * 3, [0] * 3, [0] * 3])
    np.testing.assert_array_equal(run(model, 4, 3)[2:], [[8] * 3, [0] * 3])


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (REFUSES, ValuesError, r"^x may not be 1006 \(model.py, line \d+\)$"),
        (NO_MEMORY, ExecutableError, "needs more memory than the 256 MiB"),
        (UNFIT, ExecutableError, r"of shape \[1, 2\]; model.toml says \[1, 3\]"),
    ],
)
def test_an_error_costs_its_batch_alone(
    value: int, kind: type[Exception], said: str, model: PythonModel
) -> None:
    before = pid(model)
    with pytest.raises(kind, match=said):
        run(model, value)
    assert serves(model)
    assert pid(model) == before


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (EXITS, ProcessEnded, "ended while it ran a batch of 1 with exit code 3"),
        (SEGFAULTS, ProcessEnded, "ended while it ran a batch of 1 by SIGSEGV"),
        (LOOPS, Interrupted, r"was not done after 0\.[15] s"),
        (SLEEPS, Interrupted, r"was not done after 0\.5 s"),
    ],
)
def test_a_process_that_ends_or_hangs_comes_again(
    value: int, kind: type[Exception], said: str, model: PythonModel
) -> None:
    before = pid(model)
    with pytest.raises(kind, match=said):
        run(model, value)
    with pytest.raises(ProcessEnded, match="it is started again"):
        run(model, 1)
    wait_until(lambda: serves(model), PATIENCE_S)
    assert pid(model) != before
    assert model._failures == 0, "it has answered: after the next end it is started at once"
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_one_that_ends_while_nothing_runs_comes_again(model: PythonModel) -> None:
    before = pid(model)
    os.kill(before, 9)
    wait_until(lambda: model._process is None, PATIENCE_S)
    assert "ended while it had nothing to do by SIGKILL: the kernel does that" in model._why
    wait_until(lambda: model._process is not None and pid(model) != before, PATIENCE_S)
    wait_until(lambda: serves(model), PATIENCE_S)


def test_a_start_that_hangs_holds_up_no_other_model(
    tmp_path: Path, model: PythonModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "hang"
    loops = f"def __init__(self, folder):\n    while os.path.exists({str(flag)!r}): time.sleep(0.01)"
    store = Store(tmp_path / "store")
    manifest = compile_folder(folder(tmp_path / "slow", ODD, before=loops), "slow", store).manifest
    programs = PythonPrograms(1)
    programs._starter = model._starter
    slow = programs(store, manifest)
    try:
        flag.touch()
        for each in (slow, model):
            with pytest.raises(ProcessEnded):
                run(each, EXITS)
        wait_until(lambda: serves(model), PATIENCE_S)
        assert not serves(slow)
        flag.unlink()
        wait_until(lambda: serves(slow), PATIENCE_S)
    finally:
        slow.close()


def test_a_process_inherits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "known to the worker alone")
    secret = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(secret, True)
    told = """
names = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
seen = [*names, *os.environ, os.readlink("/proc/self/fd/0"), f"session {os.getsid(0) == os.getpid()}"]
print("\\n".join(seen))
return {"y": inputs["x"]}
"""
    store = Store(tmp_path / "store")
    manifest = compile_folder(folder(tmp_path / "m", told), "m", store).manifest
    programs = PythonPrograms(1)
    model = programs(store, manifest)
    try:
        run(model, 1)
        wait_until(lambda: "session" in model.log.read_text(), PATIENCE_S)
        seen = model.log.read_text().splitlines()
    finally:
        model.close()
        programs.close()
        os.close(secret)
    assert "session True" in seen
    assert "/dev/null" in seen
    assert not [each for each in seen if "SECRET" in each or each.endswith("test_python.py")]
    assert len([each for each in seen if "socket:" in each]) == 1
    assert {each for each in seen if each.isupper()} <= {
        *("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    }


def test_it_ends_with_the_thread_that_starts_processes(made: tuple[Store, Manifest]) -> None:
    programs = PythonPrograms(1)
    before = pid(programs(*made))
    programs.close()
    # A zombie is of this process, which does not wait for it.
    wait_until(lambda: Path(f"/proc/{before}/stat").read_text().split()[2] == "Z", PATIENCE_S)


def test_the_memory_can_not_be_shrunk(tmp_path: Path) -> None:
    shrinks = """
import ctypes
maps = [line for line in open("/proc/self/maps") if "mainspring-python" in line]
path = "/proc/self/map_files/" + maps[0].split()[0]
try:
    os.truncate(path, 0)
except OSError as error:
    print("refused", error.errno)
return {"y": inputs["x"] * 2}
"""
    store = Store(tmp_path / "store")
    manifest = compile_folder(folder(tmp_path / "m", shrinks), "m", store).manifest
    programs = PythonPrograms(1)
    model = programs(store, manifest)
    try:
        assert serves(model)
        assert serves(model), "this process has the memory still"
    finally:
        model.close()
        programs.close()


def test_a_host_without_memory_refuses_it(
    made: tuple[Store, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(left_bytes=100 * MIB, of_bytes=200 * MIB, by="/sys/fs/cgroup/memory.max")
    monkeypatch.setattr(python, "read_limits", lambda: Limits(room=room))
    programs = PythonPrograms(1)
    with pytest.raises(EngineError, match=r"odd may take 256 MiB, and this host has 100 MiB left \(/sys"):
        programs(*made)
    programs.close()


def test_a_python_that_is_gone_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    own = tmp_path / "python"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    own.chmod(0o755)
    manifest = compile_folder(folder(tmp_path / "m"), "m", store, str(own)).manifest
    own.unlink()
    programs = PythonPrograms(1)
    with pytest.raises(StoreError, match="is not on this host: workers install nothing"):
        programs(store, manifest)
    programs.close()


def test_limits_and_pauses() -> None:
    assert limits_ns(0, 0) == (LEAST_BUSY_NS, LEAST_IDLE_NS)
    assert limits_ns(0, 10**9) == (4 * 10**9, 4 * 10**9)
    assert limits_ns(7, 10**9) == (7, 7)
    pauses = [pause_ns(failures) for failures in range(1, 12)]
    assert pauses[:4] == [0, 500_000_000, 1_000_000_000, 2_000_000_000]
    assert max(pauses) == 30_000_000_000


def test_a_log_keeps_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"line\n" * 300_000 + b"the end\n")
    trim(log)
    assert log.stat().st_size < 70_000
    assert log.read_bytes().endswith(b"the end\n")
    before = log.read_bytes()
    trim(log)
    trim(tmp_path / "none")
    assert log.read_bytes() == before


def test_a_fetched_artifact_runs(made: tuple[Store, Manifest], tmp_path: Path) -> None:
    store, manifest = made
    here = Store(tmp_path / "fetched")
    Fetcher(here, source_of(str(store.root)), threading.Event()).fetch(manifest.spec())
    programs = PythonPrograms(1)
    model = programs(here, here.manifest("odd"))
    try:
        assert serves(model)
    finally:
        model.close()
        programs.close()


def test_looks_at_it_disturb_no_batch(model: PythonModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "LOOK_S", 0.0001)
    before = pid(model)
    for value in range(2000):
        assert (run(model, value % 100)[0] == 2 * (value % 100)).all()
    assert pid(model) == before


def test_what_is_dropped_for_want_of_room_is_dropped_whole(
    made: tuple[Store, Manifest], tmp_path: Path
) -> None:
    store, manifest = made
    other = compile_folder(folder(tmp_path / "other"), "other", store).manifest
    here = Store(tmp_path / "fetched")
    fetcher = Fetcher(here, source_of(str(store.root)), threading.Event(), most_bytes=1)
    fetcher.fetch(manifest.spec())
    held = unpacked(here, here.manifest("odd"))
    assert held.is_dir()
    fetcher.released("odd")
    fetcher.fetch(other.spec())
    assert here.names() == ["other"]
    assert not held.exists()


def test_pauses_grow_while_nothing_is_answered(model: PythonModel) -> None:
    for failures in (1, 2, 3):
        # The thread that brings a process back holds the lock for a moment more; a run refuses meanwhile.
        wait_until(lambda: model._process is not None and not model._lock.locked(), PATIENCE_S)
        with pytest.raises(ProcessEnded, match="with exit code 3"):
            run(model, EXITS)
        assert model._failures == failures
    with pytest.raises(ProcessEnded, match=r"it is started again in (0\.9|1\.0) s"):
        run(model, 1)
