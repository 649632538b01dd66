"""The applications of a gateway: what was learnt of their members, kept while they are changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import numpy as np

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.graphs.checking import GraphError
from mainspring.messages.applications import ApplicationReport, ApplicationSpec
from mainspring.messages.clients import Observe
from mainspring.messages.codes import Reason
from mainspring.selection.application import Application, Bounds
from mainspring.selection.ledger import Feedback
from mainspring.selection.report import report


class MembersGone(GraphError):
    """An application whose last member was removed."""


class Applications:
    """Those that were asked for, by name."""

    def __init__(self, seed: int) -> None:
        """``seed``, of 31 bits, is of what policies draw, and in the ids of answers: each gateway has its
        own."""
        self.generator = np.random.default_rng(seed)
        self.state_bytes = Bounds().state_bytes
        """Bytes of contexts that each holds in memory."""
        self.served: Callable[[Application], None] = lambda _application: None
        """Called with each that is new or was changed: a store may keep what it learns."""
        self._first_id = (seed << 32) + 1
        self._kept: dict[str, Application] = {}

    def take(self, spec: ApplicationSpec, members: Collection[str]) -> Application:
        """Return a served application with those of its ``members`` that are there, and what was learnt.

        Raises `GraphError` if it can't be, `MembersGone` if none is there.
        """
        if not members:
            names = " and ".join(map(repr, spec.members[:8]))
            raise MembersGone(f"its last member was removed: add one of {names} again, or change its members")
        if len(members) < len(spec.members):
            present = tuple([each for each in spec.members if each in members])
            spec = msgspec.structs.replace(spec, members=present, least=min(spec.least, len(present)))
        before = self._kept.get(spec.name)
        if before is None:
            found = self.made(spec)
        elif before.spec == spec:
            return before
        else:
            try:
                found = before.changed(spec)
            except ValueError as error:
                raise GraphError(str(error)) from None
        self._kept[spec.name] = found
        self.served(found)
        return found

    def made(self, spec: ApplicationSpec) -> Application:
        """Return a new application, which is not kept; raise `GraphError` if it can't be."""
        try:
            return Application(spec, Bounds(first_id=self._first_id, state_bytes=self.state_bytes))
        except ValueError as error:
            raise GraphError(str(error)) from None

    def drop(self, name: str) -> None:
        """Forget what was learnt of an application that is served no more."""
        gone = self._kept.pop(name, None)
        if gone is not None:
            # No answer of another one gets an id that this one gave out.
            self._first_id = max(self._first_id, gone.ledger.next_id)

    def get(self, name: str) -> Application:
        """Return an application that was asked for; raise `BadRequest` if it is none."""
        found = self._kept.get(name)
        if found is None:
            raise BadRequest(Reason.BAD_INPUT, f"{name!r} is not an application: it learns nothing")
        return found

    def report(self, spec: ApplicationSpec, fault: str, is_gone: Callable[[str], bool]) -> ApplicationReport:
        """Return what was learnt and counted; ``fault``: why requests are refused, if they are.

        ``is_gone`` says of a member that it was removed.
        """
        gone = {each: f"model {each!r} is not served" for each in spec.members if is_gone(each)}
        return report(spec, self._kept.get(spec.name), fault, gone)

    def observe(self, now_ns: int, message: Observe) -> list[Feedback]:
        """Learn what came true of an answer; return what became of the feedback for each row.

        The application is one that was resolved. Raises `BadRequest` if it is none, or if the feedback can't
        be.
        """
        application = self.get(message.application)
        truth = np.asarray(message.truth) if message.truth else None
        try:
            return application.observe(
                now_ns,
                message.query_id,
                truth,
                reward=message.rewards or None,
                rows=message.rows or None,
            )
        except ValueError as error:
            raise BadRequest(Reason.BAD_INPUT, str(error)) from None
