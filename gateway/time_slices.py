"""Large work, such as answers, done a slice in each turn of the loop, so that it delays nobody for longer.

Writing a million numbers as JSON holds the interpreter for a fifth of a second, in a thread as much as in
the loop. So the answers at work take turns: one goes on by a slice, then the loop serves everybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.steps import Steps
from mainspring.messages.codes import Reason

MOST_AT_WORK = 64
"""Large answers in the making, and tensors on their way from and to shared memory, at one time, of all
clients; one more is refused."""
T = TypeVar("T")


class _Work(NamedTuple):
    steps: Steps[Any]
    wanted: Callable[[], bool]
    then: Callable[[Any], None]
    failed: Callable[[Exception], None]


class TimeSlices:
    """See the module's docstring; used in the loop's thread only."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Work] = deque()
        self._again = False
        """True if a turn is to come."""

    def do(
        self,
        steps: Steps[T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Do a slice, and the others, if there are any, in later turns, while they are ``wanted``.

        ``then`` gets the result; ``failed`` what was raised, while that is being handled: `Unfit` as
        overloaded if too many are at work.
        """
        self._advance(_Work(steps, wanted, then, failed), new=True)

    async def finish(self, steps: Steps[T]) -> T:
        """Do the same for a task: return the result, or raise; cancelling the task ends the work."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.do(steps, future.set_result, future.set_exception, lambda: not future.done())
        return await future

    def _advance(self, work: _Work, *, new: bool) -> None:
        try:
            next(work.steps)
        except StopIteration as ended:
            result = ended.value
        except Exception as error:
            work.failed(error)
            return
        else:
            self._keep(work, new=new)
            return
        try:
            work.then(result)
        except Exception as error:
            work.failed(error)

    def _keep(self, work: _Work, *, new: bool) -> None:
        """Let a work go on in a later turn."""
        if new and len(self._waiting) >= MOST_AT_WORK:
            try:
                raise Unfit(
                    Reason.OVERLOADED,
                    f"{MOST_AT_WORK} large answers are being written as text, or tensors read from or "
                    "written to shared memory, the most at one time; ask for binary data, or less at once",
                )
            except Unfit as error:
                work.failed(error)
            return
        self._waiting.append(work)
        if not self._again:
            self._again = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._again = False
        work = self._waiting.popleft()
        if work.wanted():
            self._advance(work, new=False)
        else:
            work.steps.close()
        if self._waiting and not self._again:
            self._again = True
            self._loop.call_soon(self._turn)
