"""Streams that ``bench.worker`` gives a worker: actions one after another, and bare loops as long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from mainspring.experiments.bench.worker_peer import WAITS, Ints, LoneWorker
from mainspring.messages.actions import Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec

DEPTH = 4
"""INFERs on their way at a time: while one runs, the inputs of the next ones come."""


def zeros(model: ModelSpec) -> list[memoryview]:
    """Return the inputs of one row."""
    return [memoryview(bytes(tensor.row_bytes)) for tensor in model.inputs]


def _ok(result: Result) -> Result:
    if result.status is not Status.OK:
        raise RuntimeError(f"an action failed: {result}")
    return result


class Infers:
    """INFERs of one model for some seconds, back to back."""

    def __init__(
        self, model: ModelSpec, seconds: float, *, withdrawn: bool = False, depth: int = DEPTH
    ) -> None:
        """``withdrawn`` ones have no tensors on their way: their inputs are zeros that the worker writes."""
        self._model = model
        self._tensors = None if withdrawn else zeros(model)
        self._until_s = time.monotonic() + seconds
        self._left = depth
        self._sent_ns: dict[int, int] = {}
        self.results: list[Result] = []
        self.took_ns: list[int] = []

    def next(self, worker: LoneWorker) -> list[int]:
        """Send as many as are to be on their way."""
        sent = []
        while self._left and time.monotonic() < self._until_s:
            action_id = worker.next_id()
            self._sent_ns[action_id] = time.monotonic_ns()
            worker.submit(worker.infer(action_id, self._model))
            worker.push(action_id, 1, self._tensors)
            sent.append(action_id)
            self._left -= 1
        return sent

    def ended(self, _: LoneWorker, result: Result) -> None:
        """Note a result."""
        self.results.append(_ok(result))
        self.took_ns.append(time.monotonic_ns() - self._sent_ns.pop(result.action_id))
        self._left += 1

    def spans(self) -> Ints:
        """Return begin and end of each."""
        return spans_of(self.results)

    def device_ns(self) -> Ints:
        """Return the duration of each on the device alone."""
        return np.array([result.device_ns for result in self.results], np.int64)


class Loads:
    """LOADs for some seconds: each model is unloaded and loaded again, two of them back to back."""

    def __init__(self, models: Sequence[ModelSpec], pages: Sequence[tuple[int, ...]], seconds: float) -> None:
        """The models are not resident now, nor afterwards."""
        self._waiting = list(zip(models, pages, strict=True))
        self._until_s = time.monotonic() + seconds
        self._loading: dict[int, tuple[ModelSpec, tuple[int, ...]]] = {}
        self._unloading: dict[int, tuple[ModelSpec, tuple[int, ...]]] = {}
        self.results: list[Result] = []

    def next(self, worker: LoneWorker) -> list[int]:
        """Load whatever is not resident."""
        sent = []
        while self._waiting and time.monotonic() < self._until_s:
            model, pages = self._waiting.pop(0)
            action_id = worker.submit(worker.load(worker.next_id(), model, pages))
            self._loading[action_id] = (model, pages)
            sent.append(action_id)
        for action_id in list(self._unloading):
            if action_id > 0:
                sent.append(action_id)
                self._unloading[-action_id] = self._unloading.pop(action_id)
        return sent

    def ended(self, worker: LoneWorker, result: Result) -> None:
        """Unload what was loaded; what was unloaded may be loaded again."""
        _ok(result)
        loaded = self._loading.pop(result.action_id, None)
        if loaded is None:
            self._waiting.append(self._unloading.pop(-result.action_id))
            return
        self.results.append(result)
        unload_id = worker.submit(Unload(worker.next_id(), worker.name, loaded[0].name))
        self._unloading[unload_id] = loaded

    def spans(self) -> Ints:
        """Return begin and end of each."""
        return spans_of(self.results)


class BareExec:
    """The bare loop over a resident model's session."""

    def __init__(self, model: ModelSpec, seconds: float, *, waits: bool = False) -> None:
        """``waits``: the loop runs nothing, it waits for instants as the executor does."""
        self._model = model
        self._for_ns = round(seconds * 1e9)
        self._offset = WAITS if waits else 0
        self._sent = False
        self._spans: Ints | None = None

    def next(self, worker: LoneWorker) -> list[int]:
        """Send the one action."""
        if self._sent:
            return []
        self._sent = True
        bare_id = self._offset - worker.next_id()
        action_id = worker.submit(worker.infer(bare_id, self._model, for_ns=self._for_ns))
        worker.push(action_id, 1, zeros(self._model))
        return [action_id]

    def ended(self, worker: LoneWorker, result: Result) -> None:
        """Fetch what was measured."""
        self._spans = worker.bare_spans(_ok(result).action_id)

    def spans(self) -> Ints:
        """Return begin and end of each repetition."""
        assert self._spans is not None, "the loop has not ended"
        return self._spans


class BareLoad:
    """The bare loop of copies of a model's weights; the model is not resident now, nor afterwards."""

    def __init__(self, model: ModelSpec, pages: tuple[int, ...], seconds: float) -> None:
        self._model = model
        self._pages = pages
        self._for_ns = round(seconds * 1e9)
        self._steps = self._actions()
        self._spans: Ints | None = None

    def next(self, worker: LoneWorker) -> list[int]:
        """Send the Load, and the Unload after it."""
        step = next(self._steps, "")
        if step == "load":
            action = worker.load(-worker.next_id(), self._model, self._pages, self._for_ns)
            return [worker.submit(action)]
        if step == "unload":
            return [worker.submit(Unload(worker.next_id(), worker.name, self._model.name))]
        return []

    def ended(self, worker: LoneWorker, result: Result) -> None:
        """Fetch what was measured."""
        if _ok(result).action_id < 0:
            self._spans = worker.bare_spans(result.action_id)

    def spans(self) -> Ints:
        """Return begin and end of each copy of all weights."""
        assert self._spans is not None, "the loop has not ended"
        return self._spans

    def _actions(self) -> Iterator[str]:
        yield "load"
        yield "unload"


class Begun(msgspec.Struct, frozen=True):
    """An INFER that ran in its window; instants in ns."""

    action_id: int
    earliest_ns: int
    latest_ns: int
    begin_ns: int
    sent_ns: int


class Windows:
    """INFERs one at a time, each free to begin at its earliest instant."""

    def __init__(
        self,
        model: ModelSpec,
        count: int,
        random: np.random.Generator,
        *,
        lead_ns: tuple[int, int] = (4_000_000, 9_000_000),
        length_ns: int = 20_000_000,
    ) -> None:
        """Each is sent ``lead_ns`` (from, to) before its earliest instant, drawn from ``random``."""
        self._model = model
        self._left = count
        self._random = random
        self._lead_ns = lead_ns
        self._length_ns = length_ns
        self._tensors = zeros(model)
        self._sent: dict[int, tuple[int, int, int]] = {}
        self.begun: list[Begun] = []
        self.refused = 0
        self.unsent = 0

    def next(self, worker: LoneWorker) -> list[int]:
        """Send the next one if none is on its way."""
        if self._sent or not self._left:
            return []
        self._left -= 1
        earliest_ns = time.monotonic_ns() + int(self._random.integers(*self._lead_ns))
        latest_ns = earliest_ns + self._length_ns
        action_id = worker.submit(worker.infer(worker.next_id(), self._model, (earliest_ns, latest_ns)))
        worker.push(action_id, 1, self._tensors)
        self._sent[action_id] = (earliest_ns, latest_ns, time.monotonic_ns())
        return [action_id]

    def ended(self, _: LoneWorker, result: Result) -> None:
        """Note when it began; one that did not is only counted."""
        earliest_ns, latest_ns, sent_ns = self._sent.pop(result.action_id)
        if result.status is Status.TOO_LATE:
            self.refused += 1
            return
        if result.status is Status.INPUT_MISSING:
            self.unsent += 1
            return
        begin_ns = _ok(result).begin_ns
        self.begun.append(Begun(result.action_id, earliest_ns, latest_ns, begin_ns, sent_ns))

    @property
    def expected_s(self) -> float:
        """Approximate least time that they take."""
        return self._left * sum(self._lead_ns) / 2 / 1e9


def spans_of(results: Sequence[Result]) -> Ints:
    """Return begin and end of each action, in the order in which they began."""
    spans = sorted((result.begin_ns, result.end_ns) for result in results)
    return np.array(spans, np.int64).reshape(-1, 2)
