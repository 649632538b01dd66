"""Variants of a model's functions: kernels with places of their own, and the model compiled with winners."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.artifact.manifest import CUDA, TVM
from mainspring.compiler.artifact.plan import SOURCE, Timer, Trial, kernels_path, read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.tuning import VARIANTS, Tuner
from tests.compiler.tvm.conftest import MakeNetwork

pytest.importorskip("tvm", reason="compiling for a GPU needs the extra tvm")
pytestmark = pytest.mark.timeout(600)


class LastWins:
    """A timer to which each variant is faster than the one before."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []

    @contextmanager
    def open(self) -> Iterator[Timer]:
        yield self

    def __call__(self, trial: Trial) -> tuple[int, ...]:
        self.trials.append(trial)
        return tuple(1_000_000 // number for number in trial.order)


def test_a_model_is_compiled_with_the_winners_and_again_without_a_timer(
    make_network: MakeNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mainspring.compiler.artifact.manifest import Source
    from mainspring.compiler.pipeline import compile_model
    from mainspring.compiler.program.compiled import Target
    from mainspring.compiler.tvm import build as tvm_build

    monkeypatch.setattr(tvm_build, "compiled_kernels", lambda source, _: source)

    def compiled(name: str, store: Store, tuner: Tuner | None = None) -> tuple[str, str]:
        # An architecture that is compiled again is compiled from the beginning, as in another process.
        tvm_build._architecture.cache_clear()
        target = Target(TVM, CUDA, "sm_90", tuner=tuner)
        source = Source("onnx", "", "0" * 64, engine=TVM, device=CUDA)
        manifest = compile_model(make_network(), name, store, (1, 2), source, target=target).manifest
        assert manifest.verification.rows
        path = kernels_path(store, manifest, read_plans(store, manifest), SOURCE)
        assert path is not None
        return manifest.executable, path.read_text()

    store, timer = Store(tmp_path / "store"), LastWins()
    by_model, _ = compiled("by-model", Store(tmp_path / "other"))
    tuned, source = compiled("tuned", store, Tuner(store, timer.open))
    assert timer.trials
    assert tuned != by_model
    for trial in timer.trials:
        check(trial)
    again, same = compiled("again", store)
    assert (again, same) == (tuned, source), "what the store knows is used by every later compilation"
    before = len(timer.trials)
    compiled("another", store, Tuner(store, timer.open))
    assert len(timer.trials) == before, "and is not timed again"


def check(trial: Trial) -> None:
    """Each variant of a trial is kernels of its own on arrays of its own."""
    assert 1 < len(trial.plans.plans) <= VARIANTS
    assert trial.plans.problems((), (), ()) == []
    source = trial.image.decode()
    kernels = [{launch.kernel for launch in plan.launches} for plan in trial.plans.plans]
    assert all(re.search(rf"__global__ .*\b{name}\(", source) for each in kernels for name in each)
    assert not set.intersection(*kernels)
    shapes = {(launch.grid, launch.block) for plan in trial.plans.plans for launch in plan.launches}
    assert len(shapes) > 1, "they are divided in different ways"
    assert sorted(np.unique(trial.order)) == [plan.batch_size for plan in trial.plans.plans]
