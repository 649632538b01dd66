"""Operators' wishes: granted and carried out, or refused with what would be right."""

from __future__ import annotations

import logging

import msgspec

from mainspring.controller.catalogue import Catalogue
from mainspring.controller.feed import LoggedScheduler
from mainspring.controller.specs import MAX_DURATION_NS, MAX_NAME_CHARACTERS
from mainspring.messages.durations import in_milliseconds
from mainspring.messages.events import OperatorAsked
from mainspring.messages.operating import Operate, Operated, SetDefaultSlo, Wish, described, subject

_LOGGER = logging.getLogger(__name__)


class Operators:
    """Answers wishes; what is granted goes into the scheduler and the event log with who asked for it."""

    def __init__(self, scheduler: LoggedScheduler, catalogue: Catalogue) -> None:
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._kept = dict(catalogue.journal.asked)
        """What operators set before the controller's restart and has not been set again yet."""

    def answer(self, now_ns: int, asked: Operate) -> Operated:
        """Carry a wish out if nothing speaks against it; return what an observer is told."""
        refusal = self._refusal(asked)
        if refusal is not None:
            return Operated(asked.token, False, refusal)
        wish = asked.wish
        event = OperatorAsked(asked.who, wish)
        self._carry_out(now_ns, event)
        self._catalogue.journal.operated(event)
        _LOGGER.info("%s asked to %s", asked.who, described(wish))
        return Operated(asked.token, True, described(wish))

    def restore(self, now_ns: int) -> None:
        """Set again, as far as it can be done by now, what was set before the controller's restart.

        To be called at the start and after each worker that joins: there has to be a worker to drain, and
        room for what is pinned.
        """
        for event in list(self._kept.values()):
            if isinstance(event.wish, SetDefaultSlo) or self._scheduler.refusal(event.wish) is None:
                self._carry_out(now_ns, event)

    def _carry_out(self, now_ns: int, event: OperatorAsked) -> None:
        about = subject(event.wish)
        if about is not None:
            self._kept.pop(about, None)
        self._scheduler.handle(now_ns, event)
        if isinstance(event.wish, SetDefaultSlo):
            self._catalogue.set_default_slo(event.wish.model, event.wish.slo_ns)

    def _refusal(self, asked: Operate) -> str | None:
        if self._catalogue.draining:
            return "the controller is stopping"
        if not 0 < len(asked.who) <= MAX_NAME_CHARACTERS or not asked.who.isprintable():
            return (
                f"who asks can't be recorded: a name has 1 to {MAX_NAME_CHARACTERS} characters, all printable"
            )
        if _longest(asked.wish) > MAX_NAME_CHARACTERS:
            return f"no model and no worker has a name of more than {MAX_NAME_CHARACTERS} characters"
        if isinstance(asked.wish, SetDefaultSlo):
            return self._slo_refusal(asked.wish)
        return self._scheduler.refusal(asked.wish)

    def _slo_refusal(self, wish: SetDefaultSlo) -> str | None:
        slo_ns, name = wish.slo_ns, wish.model
        if slo_ns is not None and not 0 < slo_ns <= MAX_DURATION_NS:
            given, most = in_milliseconds(slo_ns), in_milliseconds(MAX_DURATION_NS)
            return f"a default SLO of {given} can't be; give more than 0 and at most {most}"
        if self._catalogue.is_known(name) or (slo_ns is None and name in self._catalogue.slos_ns):
            return None
        spec = self._catalogue.models.get(name)
        if spec is not None:
            return f"{name!r} is a version of {spec.served_as!r}, which is what clients call it: name that"
        return f"there is no model {name!r} that clients could ask for"


def _longest(wish: Wish) -> int:
    """Return the length of the longest name in a wish."""
    return max(len(value) for value in msgspec.structs.astuple(wish) if isinstance(value, str))
