"""The applications of a gateway: what was learnt of their members, kept while they are changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np

from mainspring.extras import command
from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.graphs.checking import GraphError
from mainspring.messages.applications import (
    LINEAR,
    ApplicationReport,
    ApplicationSpec,
    application_fault,
    code_in,
    read_application,
)
from mainspring.messages.clients import BestItems, ErrorReply, TopK
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.learning import Observe
from mainspring.messages.tables import ConfigError
from mainspring.selection.application import Application, Bounds
from mainspring.selection.ledger import Feedback
from mainspring.selection.linear.application import LinearApplication, Place, Ranked
from mainspring.selection.linear.weights import Matrix
from mainspring.selection.report import report

COUNTED = {
    **{each.value: f"feedback_{each.value}" for each in Feedback},
    "policy_failed": "policy_failures",
}
"""Names of an application's counts among the gateway's."""


class MembersGone(GraphError):
    """An application whose last member was removed."""


class Applications:
    """Those that were asked for, by name."""

    def __init__(self, seed: int) -> None:
        """``seed``, of 31 bits, is of what policies draw, and in the ids of answers: each gateway has its
        own."""
        self.seed = seed
        self.generator = np.random.default_rng(seed)
        self.state_bytes = Bounds().state_bytes
        """Bytes of contexts that each holds in memory."""
        self.served: Callable[[Application], None] = lambda _application: None
        """Called with each that is new or was changed: a store may keep what it learns."""
        self.place: Callable[[], Place] = Place
        """What gives the models of new applications a place to work at."""
        self._first_id = (seed << 32) + 1
        self._kept: dict[str, Application] = {}
        self._gone: Counter[str] = Counter()
        """Counts of those that are not kept any more."""

    def take(self, spec: ApplicationSpec, members: Mapping[str, Signature]) -> Application:
        """Return a served application with those of its ``members`` that are there, and what was learnt.

        Raises `GraphError` if it can't be, `MembersGone` if none is there.
        """
        if not members and spec.members:
            names = " and ".join(map(repr, spec.members[:8]))
            raise MembersGone(f"its last member was removed: add one of {names} again, or change its members")
        if len(members) < len(spec.members):
            present = tuple([each for each in spec.members if each in members])
            spec = msgspec.structs.replace(spec, members=present, least=min(spec.least, len(present)))
        before = self._kept.get(spec.name)
        if before is None:
            found = self.made(spec, members)
        elif before.spec == spec:
            return before
        else:
            try:
                found = before.changed(spec)
            except ValueError as error:
                raise GraphError(str(error)) from None
        self._kept[spec.name] = found
        if not isinstance(found, LinearApplication):
            # Whose weights no store keeps.
            self.served(found)
        return found

    def made(self, spec: ApplicationSpec, members: Mapping[str, Signature]) -> Application:
        """Return a new application, which is not kept; raise `GraphError` if it can't be."""
        bounds = Bounds(first_id=self._first_id, state_bytes=self.state_bytes)
        try:
            if spec.policy == LINEAR and application_fault(spec) is None:
                return self._linear(spec, bounds, members)
            return Application(spec, bounds)
        except ValueError as error:
            raise GraphError(str(error)) from None

    def _linear(
        self, spec: ApplicationSpec, bounds: Bounds, members: Mapping[str, Signature]
    ) -> LinearApplication:
        check_linear()
        table, rank = None, 0
        if spec.members:
            outputs = members[spec.members[0]].spec.outputs
            rank = next((each.shape[0] for each in outputs if each.name == spec.output and each.shape), 0)
        else:
            table = load_table(str(spec.options["table"]))
            rank = table.shape[1] if table.ndim == 2 else 0
        return LinearApplication(spec, bounds, table, rank, self.place())

    def drop(self, name: str) -> None:
        """Forget what was learnt of an application that is served no more."""
        gone = self._kept.pop(name, None)
        if gone is not None:
            # No answer of another one gets an id that this one gave out.
            self._gone.update(gone.counts)
            self._first_id = max(self._first_id, gone.ledger.next_id)

    def get(self, name: str) -> Application:
        """Return an application that was asked for; raise `BadRequest` if it is none."""
        found = self._kept.get(name)
        if found is None:
            raise BadRequest(Reason.BAD_INPUT, f"{name!r} is not an application: it learns nothing")
        return found

    def counts(self) -> dict[str, int]:
        """Return what all counted of feedback, and how often a policy raised; empty without applications."""
        parts = [self._gone, *[each.counts for each in self._kept.values()]]
        return {shown: total for name, shown in COUNTED.items() if (total := sum(p[name] for p in parts))}

    def forget(self, name: str, context: str) -> None:
        """Erase what an application has learnt and kept of a context; nothing is said of one it has not.

        Raises `BadRequest` if it is not an application, or keeps no contexts.
        """
        application = self.get(name)
        if not application.spec.context:
            raise BadRequest(
                Reason.BAD_INPUT,
                f"application {name!r} keeps no state for each context: its key context is false",
            )
        application.forget(context)

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

    def _linear_of(self, name: str) -> LinearApplication:
        found = self.get(name)
        if not isinstance(found, LinearApplication):
            raise BadRequest(
                Reason.BAD_INPUT, f"{name!r} has the policy {found.spec.policy!r}: items are for 'linear'"
            )
        return found

    def top_k(self, now_ns: int, message: TopK, then: Callable[[BestItems | ErrorReply], None]) -> None:
        """Hand on the best items of an application that was resolved; raise `BadRequest`."""

        def told(found: Ranked | ValueError) -> None:
            if isinstance(found, ValueError):
                then(ErrorReply(message.key, Reason.BAD_INPUT, str(found)))
                return
            items, scores = tuple(found.best.items.tolist()), tuple(found.best.scores.tolist())
            then(BestItems(message.key, found.query_id, items, scores, found.best.random, found.version))

        items = None if message.items is None else np.array(message.items, np.int64)
        context = message.context or None
        try:
            self._linear_of(message.application).top_k(
                now_ns, items, message.k, self.generator, context, told
            )
        except (ValueError, OverflowError) as error:
            raise BadRequest(Reason.BAD_INPUT, str(error)) from None


def application_of(name: str, table: dict[str, Any], *, trusted: bool) -> GraphSpec:
    """Return the application that a client describes; raise `BadRequest` with what is wrong.

    ``trusted``: the client has shown a token that may administer. Anyone else may name no code for the
    gateway to run, and no file for it to read.
    """
    if table.setdefault("name", name) != name:
        raise BadRequest(
            Reason.BAD_INPUT,
            f"the name is {str(table['name'])[:200]!r}; the call's is {name!r}",
        )
    try:
        spec = read_application(table, "the application")
    except ConfigError as error:
        raise BadRequest(Reason.BAD_INPUT, str(error)) from None
    if not trusted and (code := code_in(spec)):
        raise BadRequest(
            Reason.FORBIDDEN,
            f"{code} of application {name!r} is for the operator: it takes a token that may administer, "
            "`mainspring applications add` over ZeroMQ, or `mainspring up --applications FOLDER`",
        )
    return GraphSpec(name=spec.name, slo_ms=spec.slo_ms, application=spec)


def load_table(path: str) -> Matrix:
    """Return features of items, mapped from a file (.npy) of the gateway's host; raise `GraphError`."""
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise GraphError(
            f"the table {path!r} can't be read as a .npy file of the gateway's host: {error}"
        ) from None
    if not isinstance(found, np.ndarray):
        raise GraphError(f"the table {path!r} is not a .npy file with one array")
    return np.asarray(found)


def check_linear() -> None:
    """Raise `GraphError` if SciPy is missing; have its and NumPy's BLAS use one thread."""
    if find_spec("scipy") is None:
        raise GraphError(f"policy 'linear' needs SciPy on the gateway's host: {command('linear')}")
    if find_spec("threadpoolctl") is not None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(1, "blas")
