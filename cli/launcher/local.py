"""A local cluster beside the caller: for experiments and tests that drive it themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mainspring.cli.launcher.plan import Plan
from mainspring.cli.launcher.supervisor import ClusterError, Supervisor


class LocalCluster:
    """Runs a plan while the ``with`` block runs, from a thread of its own.

    Entering waits until the cluster can serve and raises what kept it from that; leaving drains it.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.supervisor = Supervisor(plan, say)
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._ready = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.plan.gateway_address

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._settled.wait()
        except BaseException:
            self.close()
            raise
        if not self._ready:
            self._thread.join()
            raise self._error or ClusterError("the cluster was stopped before it could serve")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drain and stop every process; return when all are gone."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.supervisor.run(self._stop, self._on_ready)
        except BaseException as error:
            self._error = error
        finally:
            self._settled.set()

    def _on_ready(self) -> None:
        self._ready = True
        self._settled.set()
