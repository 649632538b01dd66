"""Models compiled for a GPU, with what ONNX Runtime makes of a batch of them.

As a program it emulates models of the zoo, which a new schedule should pass before it sees a GPU::

    python -m tests.emulator.cases mobilenet shufflenet --batch-size 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.manifest import FP32, PRECISIONS, GraphTensor
from mainspring.compiler.artifact.plan import SOURCE, LaunchPlan, Shape
from mainspring.compiler.artifact.target import known_gpu
from mainspring.compiler.reference import Prepared
from mainspring.compiler.zoo.catalogue import build
from tests.emulator.build import EmulationError
from tests.emulator.device import Array
from tests.emulator.plans import emulate


class Case(NamedTuple):
    """A model compiled for a GPU at one batch size, with a batch and what ONNX Runtime makes of it."""

    plan: LaunchPlan
    source: str
    weights: Sequence[Array]
    inputs: list[Array]
    outputs: list[Array]

    def run(self, folder: Path) -> list[Array]:
        """Emulate the plan."""
        tensors = [GraphTensor("", str(array.dtype), array.shape[1:]) for array in self.outputs]
        return emulate(self.plan, self.source, self.weights, self.inputs, tensors, folder)


def compile_case(model: onnx.ModelProto, batch_size: int, precision: str = FP32) -> Case:
    """Compile for a GPU, as far as its source: NVIDIA's compiler is not asked, which would take a minute."""
    from mainspring.compiler.tvm.build import Model

    prepared = Prepared(model, batch_size)
    with mock.patch("mainspring.compiler.tvm.build.compiled_kernels", return_value=None):
        built = Model(prepared, [Shape(batch_size)]).build("cuda", known_gpu("sm_90"), precision)
    rows: list[Any] = [array[:batch_size] for array in prepared.rows]
    source = built.files[SOURCE].decode()
    return Case(built.plans.plan(batch_size), source, built.weights, rows, prepared.reference.run(rows))


@contextmanager
def _timed(times: list[float]) -> Iterator[None]:
    begin = time.monotonic()
    yield
    times.append(time.monotonic() - begin)


def main(words: Sequence[str] | None = None) -> int:
    """Emulate the models that are named; return 1 if any did what it should not."""
    parser = argparse.ArgumentParser(description="Emulate a GPU that runs models of the zoo.")
    parser.add_argument("model", nargs="+")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--precision", choices=PRECISIONS, default=FP32)
    options = parser.parse_args(words)
    failed = False
    for name in options.model:
        times: list[float] = []
        try:
            with _timed(times):
                case = compile_case(build(name), options.batch_size, options.precision)
            with _timed(times), tempfile.TemporaryDirectory() as folder:
                outputs = case.run(Path(folder))
        except (CompileError, EmulationError) as error:
            failed = True
            print(f"{name}: {error}", flush=True)
            continue
        largest = max(
            float(np.abs(found - expected).max() / np.abs(expected).max())
            for found, expected in zip(outputs, case.outputs, strict=True)
        )
        print(
            f"{name}: {len(case.plan.launches)} launches, largest difference {largest:.1e} of the largest "
            f"output, compiled in {times[0]:.0f} s, emulated in {times[1]:.0f} s",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
