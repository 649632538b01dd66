"""A GPU that is not there: it records the calls of a driver and plays them in virtual time, on real bytes.

Work is done when somebody waits for it, in the order that streams, events and engines allow: one copy at a
time in each direction, one kernel at a time. So work that lacks a wait finds bytes that are not there yet.
Calls take no time; only waiting does. What a real driver would refuse is refused (`Rules`).
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from mainspring.compiler.artifact.plan import (
    ADDRESSES,
    ADDRESSES_AT_ONCE,
    ADDRESSES_COUNT,
    ENTRY_SHIFT,
    SET_ADDRESSES,
)
from mainspring.experiments.gpu_check.rehearsal.rules import Kernel, Rules, Work, clear, move
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.driver import Copy, Extent, MemoryState

BYTES_PER_NS = 50
LAUNCH_NS = 1_000
ENGINES = {Copy.TO_DEVICE: "to device", Copy.TO_HOST: "to host", Copy.ON_DEVICE: "compute"}


class FakeDriver:
    """`mainspring.worker.engines.cuda.driver.Driver` in virtual time."""

    def __init__(self, total_bytes: int = 1 << 30, kernels: dict[str, Kernel] | None = None) -> None:
        self.device = 0
        self.total_bytes = total_bytes
        self.kernels = {} if kernels is None else kernels
        self.symbols = {ADDRESSES: 8 * ADDRESSES_COUNT}
        """Bytes of the variables that every module has."""
        self.now_ns = 0
        self.done: list[Work] = []
        self.calls: list[str] = []
        self.allocations: list[str] = []
        """Every call that gives the caller something to keep."""
        self.graphs_break = False
        self.pins_read_only = True
        self.before_copy: Callable[[Copy], None] = lambda _: None
        self.fails: dict[str, Exception] = {}
        self.rules = Rules()
        self._numbers = itertools.count(1)
        self._memory: dict[int, np.ndarray] = {}
        self._pinned: dict[int, int] = {}
        self._queues: dict[int, deque[Work]] = {}
        self._last: dict[int, Work] = {}
        self._free_ns: dict[str, int] = {}
        self._stream_ns: dict[int, int] = {}
        self._captured: dict[int, list[Callable[[int], None]]] = {}
        self._graphs: dict[int, list[Callable[[int], None]]] = {}
        self._executables: dict[int, list[Callable[[int], None]]] = {}
        self._functions: dict[int, tuple[int, str]] = {}
        self._modules: set[int] = set()
        self._variables: dict[tuple[int, str], np.ndarray] = {}
        self._lock = threading.RLock()
        self.closed = False

    def attach(self) -> None:
        """See `Driver`."""
        self.rules.attach(self.fails.get("attach"))

    def name(self) -> str:
        """See `Driver`."""
        return "NVIDIA Fake 1"

    def arch(self) -> str:
        """See `Driver`."""
        return "sm_90"

    def bus_id(self) -> str:
        """See `Driver`."""
        return "0000:3b:00.0"

    def memory(self) -> MemoryState:
        """See `Driver`."""
        self._note("memory")
        used = sum(memory.nbytes for memory in self._memory.values())
        return MemoryState(self.total_bytes - used, self.total_bytes)

    def allocate(self, size: int) -> int:
        """See `Driver`."""
        return self._allocate("allocate", size)

    def free(self, address: int) -> None:
        """See `Driver`."""
        self.rules.call("free")
        del self._memory[address]

    def allocate_host(self, size: int) -> int:
        """See `Driver`."""
        address = self._allocate("allocate_host", size)
        self._pinned[address] = size
        return address

    def free_host(self, address: int) -> None:
        """See `Driver`."""
        self.rules.call("free_host")
        del self._memory[address], self._pinned[address]

    def register_host(self, address: int, size: int, *, read_only: bool = False) -> None:
        """See `Driver`."""
        self._note("register_host", keeps=True)
        if read_only and not self.pins_read_only:
            raise RuntimeError("operation not supported")
        self.rules.register(self._pinned, address, size)
        self._pinned[address] = size

    def unregister_host(self, address: int) -> None:
        """See `Driver`."""
        self.rules.call("unregister_host")
        del self._pinned[address]

    def stream(self, *, urgent: bool = False) -> int:  # noqa: ARG002
        """See `Driver`."""
        self._note("stream", keeps=True)
        with self._lock:
            self._queues[number := next(self._numbers)] = deque()
        return number

    def event(self, *, timed: bool = False, sleeps: bool = False) -> int:  # noqa: ARG002
        """See `Driver`."""
        self._note("event", keeps=True)
        self.rules.made_event(number := next(self._numbers), timed)
        return number

    def record(self, event: int, stream: int) -> None:
        """See `Driver`."""
        self._note("record")
        with self._lock:
            self._last[event] = self._tell(Work(next(self._numbers), f"event {event}", stream))

    def wait(self, stream: int, event: int) -> None:
        """See `Driver`."""
        self._note("wait")
        with self._lock:
            self._tell(Work(next(self._numbers), f"wait {event}", stream, after=self._last.get(event)))

    def happened(self, event: int) -> bool:
        """See `Driver`; what a stream was told is done when somebody waits, or by `run_all`."""
        self._note("happened")
        work = self._last.get(event)
        return work is None or work.end_ns >= 0

    def synchronize(self, event: int) -> None:
        """See `Driver`."""
        self._note("synchronize")
        with self._lock:
            work = self._last.get(event)
            if work is None:
                return  # An event that nobody has recorded has happened.
            while work.end_ns < 0:
                self._step()
            self.now_ns = max(self.now_ns, work.end_ns)

    def elapsed_ns(self, begin: int, end: int) -> int:
        """See `Driver`."""
        self.rules.call("elapsed_ns")
        self.rules.measure(begin, end)
        assert self._last[end].end_ns >= 0, "the event has not happened"
        return self._last[end].end_ns - self._last[begin].end_ns

    def copy(self, target: int, source: int, size: int, kind: Copy, stream: int) -> None:
        """See `Driver`."""
        self._note("copy")
        self.before_copy(kind)
        host = {Copy.TO_DEVICE: source, Copy.TO_HOST: target}.get(kind)
        if host is not None:
            pinned = any(
                begin <= host and host + size <= begin + length for begin, length in [*self._pinned.items()]
            )
            assert pinned, "a copy from or to host memory that is not pinned"
        with self._lock:
            work = Work(
                next(self._numbers),
                f"copy {kind.name}",
                stream,
                ENGINES[kind],
                LAUNCH_NS + size // BYTES_PER_NS,
                lambda: move(target, source, size),
            )
            work.size = size
            self._tell(work)

    def clear(self, address: int, size: int, stream: int) -> None:
        """See `Driver`."""
        self._note("clear")
        with self._lock:
            run = lambda: clear(address, size)  # noqa: E731
            self._tell(Work(next(self._numbers), "clear", stream, "compute", LAUNCH_NS, run))

    def compile(self, source: str, arch: str) -> bytes:
        """See `Driver`."""
        self._note("compile", keeps=True)
        return f"{arch} of {source}".encode()

    def load_module(self, image: bytes) -> int:  # noqa: ARG002
        """See `Driver`."""
        self._note("load_module", keeps=True)
        self._modules.add(number := next(self._numbers))
        return number

    def unload_module(self, module: int) -> None:
        """See `Driver`."""
        self.rules.call("unload_module")
        self._modules.remove(module)
        self._variables = {key: memory for key, memory in self._variables.items() if key[0] != module}

    def function(self, module: int, symbol: str, shared_bytes: int) -> int:
        """See `Driver`."""
        self.rules.call("function")
        assert module in self._modules
        if symbol not in self.kernels and symbol != SET_ADDRESSES:
            raise RuntimeError(f"named symbol not found: {symbol}")
        self._functions[number := next(self._numbers)] = module, symbol
        self.rules.allow_shared(number, shared_bytes)
        return number

    def symbol(self, module: int, name: str) -> int:
        """See `Driver`."""
        self.rules.call("symbol")
        assert module in self._modules
        if name not in self.symbols:
            raise RuntimeError(f"named symbol not found: {name}")
        if (module, name) not in self._variables:
            self._variables[module, name] = np.zeros(self.symbols[name], np.uint8)
        return int(self._variables[module, name].ctypes.data)

    def launch(
        self, function: int, grid: Extent, block: Extent, shared_bytes: int, parameters: int, stream: int
    ) -> None:
        """See `Driver`."""
        self._note("launch")
        self.rules.launch(function, grid, block, shared_bytes)
        module, symbol = self._functions[function]
        # Arguments are copied when the launch is told, as CUDA does.
        if symbol == SET_ADDRESSES:
            name, duration_ns, run = "addresses", LAUNCH_NS, self._set_addresses(parameters)
        else:
            name, duration_ns = f"kernel {symbol}", self.kernels[symbol].duration_ns
            run = self._compute(module, self.kernels[symbol], parameters)

        def tell(target: int) -> None:
            self._tell(Work(next(self._numbers), name, target, "compute", duration_ns, run))

        with self._lock:
            if stream in self._captured:
                self._captured[stream].append(tell)
            else:
                tell(stream)

    def begin_capture(self, stream: int) -> None:
        """See `Driver`."""
        self._note("begin_capture")
        if self.graphs_break:
            raise RuntimeError("operation not supported")
        self.rules.capture(stream)
        self._captured[stream] = []

    def record_at_launch(self, event: int, stream: int) -> None:
        """See `Driver`."""
        self._note("record_at_launch")

        def tell(target: int) -> None:
            self._last[event] = self._tell(Work(next(self._numbers), f"event {event}", target))

        self._captured[stream].append(tell)

    def end_capture(self, stream: int) -> int:
        """See `Driver`."""
        self.rules.call("end_capture")
        self.rules.end_capture(stream)
        self._graphs[number := next(self._numbers)] = self._captured.pop(stream)
        return number

    def instantiate(self, graph: int) -> int:
        """See `Driver`."""
        self._note("instantiate", keeps=True)
        self._executables[number := next(self._numbers)] = list(self._graphs[graph])
        return number

    def upload(self, executable: int, stream: int) -> None:  # noqa: ARG002
        """See `Driver`."""
        self._note("upload")
        assert executable in self._executables

    def launch_graph(self, executable: int, stream: int) -> None:
        """See `Driver`."""
        self._note("launch_graph")
        with self._lock:
            for tell in self._executables[executable]:
                tell(stream)
            self.rules.launched(executable, self._queues[stream][-1] if self._queues[stream] else None)

    def destroy_graph(self, graph: int) -> None:
        """See `Driver`."""
        self.rules.call("destroy_graph")
        del self._graphs[graph]

    def destroy_executable(self, executable: int) -> None:
        """See `Driver`."""
        self.rules.call("destroy_executable")
        self.rules.at_rest(executable)
        del self._executables[executable]

    def explain(self, error: Exception) -> EngineError:
        """See `Driver`."""
        return error if isinstance(error, EngineError) else EngineError(f"GPU 0: {error}")

    def close(self) -> None:
        """See `Driver`."""
        self.closed = True

    # --- for tests ---

    @property
    def leaks(self) -> dict[str, int]:
        """Allocations that were not given back."""
        kept = {
            "memory": len(self._memory),
            "pinned": len(self._pinned),
            "graphs": len(self._graphs),
            "executables": len(self._executables),
            "modules": len(self._modules),
        }
        return {name: count for name, count in kept.items() if count}

    def run_all(self) -> None:
        """Do all work that was told."""
        with self._lock:
            while any(self._queues.values()):
                self._step()

    def busy(self, stream: int, duration_ns: int) -> None:
        """Give a stream kernels of a library's own, which take so long together."""
        with self._lock:
            self._tell(Work(next(self._numbers), "library", stream, "compute", duration_ns))

    def find(self, what: str) -> list[Work]:
        """Return the work done whose name begins so."""
        return [work for work in self.done if work.what.startswith(what)]

    # --- inside ---

    def _set_addresses(self, parameters: int) -> Callable[[], None]:
        target, words = (ctypes.c_uint64 * 2).from_address(parameters)
        first = ctypes.c_uint64.from_address(target).value
        written = ctypes.string_at(words, 8 * ADDRESSES_AT_ONCE)
        tables = [memory for (_, name), memory in self._variables.items() if name == ADDRESSES]
        assert any(0 <= first - table.ctypes.data <= table.nbytes - len(written) for table in tables), (
            "addresses beside the table"
        )
        return lambda: move(first, written, len(written))

    def _compute(self, module: int, kernel: Kernel, parameters: int) -> Callable[[], None]:
        pointers = (ctypes.c_uint64 * kernel.parameters).from_address(parameters)
        values = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
        if not kernel.placed:
            return lambda: kernel.run(*values)
        table = self._variables[module, ADDRESSES].view(np.uint64)
        beyond = (1 << ENTRY_SHIFT) - 1
        return lambda: kernel.run(*(int(table[v >> ENTRY_SHIFT]) + (v & beyond) for v in values))

    def _note(self, call: str, keeps: bool = False) -> None:
        self.rules.call(call)
        if call in self.fails:
            raise self.fails[call]
        with self._lock:
            self.calls.append(call)
            if keeps:
                self.allocations.append(call)

    def _allocate(self, call: str, size: int) -> int:
        self._note(call, keeps=True)
        whole = np.zeros(size + 256, np.uint8)
        address = whole.ctypes.data + -whole.ctypes.data % 256
        self._memory[address] = whole
        return address

    def _tell(self, work: Work) -> Work:
        assert work.stream not in self._captured, f"{work.what} in a stream that is being captured"
        work.told_ns = self.now_ns
        self._queues[work.stream].append(work)
        return work

    def _step(self) -> None:
        ready = [
            (self._begin_ns(queue[0]), queue[0].number, queue[0])
            for queue in self._queues.values()
            if queue and (queue[0].after is None or queue[0].after.end_ns >= 0)
        ]
        assert ready, "streams wait for each other, or for an event that nobody records"
        begin_ns, _, work = min(ready)
        self._queues[work.stream].popleft()
        work.begin_ns, work.end_ns = begin_ns, begin_ns + work.duration_ns
        self._stream_ns[work.stream] = work.end_ns
        if work.engine is not None:
            self._free_ns[work.engine] = work.end_ns
        work.run()
        self.done.append(work)

    def _begin_ns(self, work: Work) -> int:
        return max(
            work.told_ns,
            self._stream_ns.get(work.stream, 0),
            self._free_ns.get(work.engine, 0) if work.engine else 0,
            work.after.end_ns if work.after else 0,
        )
