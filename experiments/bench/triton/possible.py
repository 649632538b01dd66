"""What one core could have answered in time, whoever serves: a bound for both servers on a noisy machine.

Where the same execution takes five times as long now and then, requests are late that no server could have
saved. So the bare model is run between the turns, on EXEC's core and with its priority, after rests as there
are between requests; and arrivals are served in their order by one core whose executions take as long as
those did, and which knows before each how long it will take.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from mainspring.cli.profiling.lone_device import as_exec_thread
from mainspring.worker.realtime import Rights

Floats = npt.NDArray[np.float64]
Inputs = Mapping[str, npt.NDArray[Any]]
"""The tensors of a request, by name."""

REST_S = 0.004
"""Before each run: what else a core did meanwhile, or that it slept, is part of what a request meets."""


def runner(model: onnx.ModelProto, requests: Sequence[Inputs]) -> Callable[[float], Floats]:
    """Return what runs the requests in turn for so many seconds, one by one, and returns durations in ms."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    turns = itertools.cycle(requests)
    rights = Rights(realtime=True)

    def run(seconds: float) -> Floats:
        return as_exec_thread(rights, lambda: _durations_ms(lambda: session.run(None, next(turns)), seconds))

    run(0.0)
    return run


def _durations_ms(function: Callable[[], object], seconds: float) -> Floats:
    """Call a function again and again, at least once."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        time.sleep(REST_S)
        begin = time.perf_counter()
        function()
        found.append((time.perf_counter() - begin) * 1e3)
    return np.array(found)


def in_time_percent(
    instants_s: Floats, durations_ms: Floats, deadline_ms: float, beside_ms: float, seed: int = 0
) -> float:
    """Return the percentage of arrivals that one core answers in time, one by one and in their order.

    Each takes one of ``durations_ms``, drawn with ``seed`` and known before; what would be late is not begun.
    ``beside_ms`` of a request's time pass around its execution, half of them before it.
    """
    drawn = np.random.default_rng(seed).choice(durations_ms, len(instants_s))
    free_ms = 0.0
    answered = 0
    for due_ms, duration_ms in zip(instants_s * 1e3, drawn, strict=True):
        end_ms = max(due_ms + beside_ms / 2, free_ms) + duration_ms
        if end_ms + beside_ms / 2 <= due_ms + deadline_ms:
            free_ms = end_ms
            answered += 1
    return 100 * answered / len(instants_s)
