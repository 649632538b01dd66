"""The compiler's process, as the repository sees it: one job at a time, bounded in time and memory.

A model that takes too long, too much memory, or the process with it, costs only itself. The process is of the
lowest priority, so that it takes what serving leaves; it ends when there has been nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

import msgspec

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import ModelSpec
from mainspring.repository.compile_child import Job, Outcome
from mainspring.repository.recipe import is_artifact_name, model_and_version
from mainspring.repository.reconciler import Reconciler

IDLE_S = 5.0
"""Time for which the process is kept for another job after its last one."""
LINE_BYTES = 16 << 20
"""Most bytes of an outcome's line."""


class CompileFailed(Exception):
    """The model can't be compiled; the text says why."""

    def __init__(self, why: str, *, changed: bool = False) -> None:
        super().__init__(why)
        self.changed = changed
        """True if the reason is that the files changed meanwhile."""


class Compiler:
    """Runs the process; `compile` is called for one job at a time."""

    def __init__(
        self, store: str, timeout_s: float, memory_bytes: int, libraries: Sequence[str] = ()
    ) -> None:
        """``libraries`` of operators may be loaded there, as `artifact.op_libraries` has them."""
        self._libraries = tuple(libraries)
        self._store = store
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def compile(self, job: Job) -> ModelSpec:
        """Return the specification of the job's artifact, which is in the store; raise `CompileFailed`."""
        if self._idle is not None:
            self._idle.cancel()
        try:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), self._timeout_s)
        except TimeoutError:
            await self.close()
            raise CompileFailed(
                f"its compilation took longer than compile_timeout_s = {self._timeout_s:g} s"
            ) from None
        except (OSError, ValueError) as error:
            await self.close()
            raise CompileFailed(f"the compiler's process failed: {error}") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if not line:
            raise CompileFailed(await self._death())
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end)
        outcome = msgspec.json.decode(line, type=Outcome)
        if outcome.spec is None:
            raise CompileFailed(outcome.fault, changed=outcome.changed)
        asked = max(job.recipe.batch_sizes or (1,))
        if asked > outcome.spec.max_rows and not (outcome.spec.whole or outcome.spec.unshared):
            _LOGGER.warning(
                "%s: max_batch_size is %d; it is served with %d rows, for more need too much memory",
                job.name,
                asked,
                outcome.spec.max_rows,
            )
        return outcome.spec

    async def close(self) -> None:
        """Kill the process, if there is one."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "mainspring.repository.compile_child",
                self._store,
                str(self._memory_bytes),
                *self._libraries,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
                start_new_session=True,
            )
        return self._process

    async def _death(self) -> str:
        """Say how the process ended that ended in the middle of a job."""
        process, self._process = self._process, None
        code = await process.wait() if process is not None else 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return (
            f"the compiler's process ended with it ({how}): most likely for want of memory, of which it may "
            f"have compile_memory_bytes = {self._memory_bytes:,}"
            f"{', or by a library of op_libraries' if self._libraries else ''}"
        )

    def _end(self) -> None:
        """Let the process end: it does when its jobs end."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()


_LOGGER = logging.getLogger("mainspring.repository")


async def sweep(root: str, reconciler: Reconciler, *, always: bool) -> None:
    """Delete the artifacts that no model of the repository uses; not to be called during a compilation.

    ``always``: also what an interrupted compilation left, even if there is nothing else.
    """
    store = Store(root)
    try:
        names = await asyncio.to_thread(store.names)
        unused = [
            name
            for name in names
            if is_artifact_name(name) and not reconciler.is_kept(*model_and_version(name), name)
        ]
        if unused or always:
            freed = await asyncio.to_thread(_delete, store, unused)
            _LOGGER.info("deleted %d artifacts that no model uses, %d bytes", len(unused), freed)
    except StoreError as error:
        _LOGGER.warning("could not delete artifacts that no model uses: %s", error)


def _delete(store: Store, names: list[str]) -> int:
    for name in names:
        store.remove(name)
    return store.collect()
