"""One file, tried on a cluster: loaded as it lies, asked in every way, and beside strangers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec

from mainspring.experiments.apart import Apart, Crashed
from mainspring.experiments.wild.asking import GRPC, HTTP, Client, Described, NoAnswer, Site, ways_of
from mainspring.experiments.wild.drawing import Case, Cases, Task, Undrawable, draw, first_line
from mainspring.experiments.wild.files import WildFile
from mainspring.experiments.wild.reference import compare

SERVED, REFUSED, WRONG, FAILED, SKIPPED = "served", "refused", "wrong", "failed", "skipped"
DRAWING_S = 400.0
TOGETHER_S = 3.0
_BARRIER_S = 30.0
ROUNDS = (2, 40)


class Row(msgspec.Struct):
    """Outcome of a file."""

    name: str
    group: str
    status: str = SERVED
    how: str = ""
    most_rows: int = 0
    shapes: str = ""
    requests: int = 0
    largest_difference: float = 0.0
    error_p99_ms: float | None = None
    """The 99th percentile of how far an INFER's duration was from its prediction."""
    error_p99_part: float | None = None
    """The same as a part of the median duration."""
    spread: float | None = None
    """99th percentile of the durations over their median, the worst of the batch sizes."""
    load_s: float = 0.0
    sentence: str = ""


class Drawing:
    """Draws requests in a process of its own, which ONNX Runtime may take with it."""

    def __init__(self) -> None:
        self._apart: Apart[Task, Cases | str] | None = None

    def cases(self, task: Task) -> Cases:
        """Return the requests; raise `Undrawable`."""
        self._apart = self._apart or Apart(_drawn)
        try:
            found = self._apart.ask(task, DRAWING_S)
        except Crashed as error:
            self.close()
            raise Undrawable(f"ONNX Runtime: {error}") from None
        if isinstance(found, str):
            raise Undrawable(found)
        return found

    def close(self) -> None:
        """End the process."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None


def _drawn(task: Task, folder: Path) -> Cases | str:
    # An exception of the process would count as its death.
    try:
        return draw(task, folder)
    except Undrawable as error:
        return str(error)


class Trial:
    """One file on a cluster whose repository has it."""

    def __init__(self, file: WildFile, site: Site, drawing: Drawing) -> None:
        self._file = file
        self._site = site
        self._drawing = drawing
        self._lock = threading.Lock()
        self.row = Row(file.name, file.group)

    def run(self) -> Row:
        """Return what became of the file; the model is not served any more then."""
        with self._site.client() as client:
            began = time.monotonic()
            try:
                client.load(self._file.name)
                self.row.load_s = time.monotonic() - began
                self._serve(client)
            except NoAnswer as error:
                self.row.load_s = self.row.load_s or time.monotonic() - began
                self._mark(REFUSED if error.refused else FAILED, str(error))
            except Undrawable as error:
                self._mark(SKIPPED, str(error))
            finally:
                client.unload(self._file.name)
        return self.row

    def _serve(self, client: Client) -> None:
        described = client.describe(self._file.name)
        file = self._file
        task = Task(
            *(str(file.path), described.inputs, described.most_rows, file.dims, file.values),
            below=file.below,
            given=file.given,
            axes=described.axes,
        )
        self.row.most_rows = described.most_rows
        self.row.how = how_of(described, task)
        cases = self._drawing.cases(task)
        answered = [self._ask_alone(client, described, case) for case in cases.alone]
        if task.is_open:
            self.row.shapes = f"{sum(answered)} of {len(answered)}"
        # A request of more rows than the server says is one of the file's own shape.
        own = [
            done for case, done in zip(cases.alone, answered, strict=True) if case.rows > self.row.most_rows
        ]
        if self.row.status == SERVED and not (any(answered) and all(own)):
            self._mark(REFUSED, self.row.sentence)
        if self.row.status == SERVED:
            self._ask_together(described, cases.strangers)

    def _ask_alone(self, client: Client, described: Described, case: Case) -> bool:
        answers = [self._ask(client, described, case, way, "alone") for way in ways_of(case.inputs)]
        return all(answers)

    def _ask(self, client: Client, described: Described, case: Case, way: str, company: str) -> bool:
        where = f"{way}, {company}, {case.shapes}"
        try:
            found = client.infer(self._file.name, case.inputs, described.inputs, way)
        except NoAnswer as error:
            with self._lock:
                if error.refused:
                    self.row.sentence = self.row.sentence or f"{where}: {error}"
                else:
                    self._mark(FAILED, f"{where}: {error}")
            return False
        comparison = compare(found, case.expected, described.half, by_rows=described.most_rows > 0)
        with self._lock:
            self.row.requests += 1
            self.row.largest_difference = max(self.row.largest_difference, comparison.largest)
            if comparison.with_rows and not self.row.sentence:
                self.row.sentence = (
                    f"output {comparison.with_rows!r} keeps the axis of rows, as the model's metadata says, "
                    "where ONNX Runtime's answer of one row has none"
                )
            if not comparison.same:
                self._mark(WRONG, f"{where}: {comparison.problem}")
        return True

    def _ask_together(self, described: Described, strangers: list[Case]) -> None:
        begin = threading.Barrier(len(strangers))

        def ask(number: int, case: Case) -> None:
            try:
                with self._site.client() as client:
                    begin.wait(_BARRIER_S)
                    until = time.monotonic() + TOGETHER_S
                    for turn in range(ROUNDS[1]):
                        if turn >= ROUNDS[0] and time.monotonic() > until:
                            return
                        way = (HTTP, GRPC)[(turn + number) % 2]
                        if not self._ask(client, described, case, way, "beside strangers"):
                            return
            except Exception as error:  # A thread's error would be lost.
                with self._lock:
                    self._mark(FAILED, f"beside strangers: {type(error).__name__}: {first_line(error)}")

        threads = [threading.Thread(target=ask, args=each, daemon=True) for each in enumerate(strangers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _mark(self, status: str, sentence: str) -> None:
        if _WORST.index(status) > _WORST.index(self.row.status):
            self.row.status, self.row.sentence = status, sentence


_WORST = (SERVED, SKIPPED, REFUSED, FAILED, WRONG)


def how_of(described: Described, task: Task) -> str:
    """Say in a word or two how a model is served."""
    if described.most_rows > 1:
        how = "batched, rows not in front" if described.axes else "batched"
    elif described.most_rows:
        how = "single rows"
    else:
        how = "whole"
    return f"{how}, lengths" if task.is_open else how
