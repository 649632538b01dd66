"""The readiness that gateways are told of: which models could be served, and which a repository has yet to
add.

After whatever changes that, the models are looked at again, some at each heartbeat; a few at every one in any
case. Nothing is told that has not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from mainspring.cluster.readiness import takers, why_not
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.outbox import Outbox
from mainspring.controller.sessions import GatewaySession, SessionTable
from mainspring.messages.observing import Unready
from mainspring.messages.served import CANT_BE_LOADED, Awaited, Standing, why

AT_ONCE: Final = 2_000
"""Models that are looked at in one heartbeat after a change."""
IN_PASSING: Final = 100
"""Models that are looked at in one without."""
MOST_AWAITED: Final = 100_000
MOST_NAMED: Final = 200
"""Awaited models that observers are told of by name."""
MOST_CHARACTERS: Final = 1_000
"""Longest reason, in characters; the rest is cut off."""


class Readiness:
    """Keeps what gateways know of it up to date."""

    def __init__(
        self,
        scheduler: LoggedScheduler,
        sessions: SessionTable,
        outbox: Outbox,
        left_out: Mapping[str, str],
        silence_ns: int,
    ) -> None:
        """``left_out``: models of the store that can't be read; ``silence_ns``: after which nobody counts on
        a worker."""
        self._scheduler = scheduler
        self._sessions = sessions
        self._outbox = outbox
        self._left_out = left_out
        self._silence_ns = silence_ns
        self._unready: dict[str, str] = {}
        """Reasons that gateways were last told, by model."""
        self._awaited: dict[str, str] = {}
        """Reasons that the repository gave, by model."""
        self._told_awaited: dict[str, str] = {}
        self._seen: object = None
        """Key of the workers' state when models were last found to be looked at again."""
        self._left: list[str] = []
        """Models that are yet to be looked at in this round."""
        self._hurries = self._again = False
        """True if something has changed since the last round began, and since this one did."""

    def beat(self, now_ns: int) -> None:
        """Look at some models; tell what has changed."""
        silent = self._silent(now_ns)
        cluster = self._scheduler.cluster
        workers = [
            (each.number, each.prepared, each.prepares, each.draining, each.stopping, each.retiring)
            for each in cluster.workers.values()
        ]
        seen = (workers, silent, {**cluster.owners})
        if seen != self._seen:
            self._seen, self._again = seen, True
        if not self._left:
            self._hurries, self._again = self._again, False
            self._left = list(cluster.models)
            for gone in [name for name in self._unready if name not in cluster.models]:
                del self._unready[gone]
        most = AT_ONCE if self._hurries or self._again else IN_PASSING
        names, self._left = self._left[:most], self._left[most:]
        self._look(names, silent)
        self._tell_awaited()

    def look_at(self, now_ns: int, names: Iterable[str]) -> None:
        """Tell at once whether these models could be served: gateways are about to be told of them."""
        self._look(names, self._silent(now_ns))

    def await_(self, message: Awaited) -> None:
        """Take a repository's word of what it is to serve and does not."""
        if message.whole:
            self._awaited.clear()
        for name, reason in message.models.items():
            if not reason:
                self._awaited.pop(name, None)
            elif len(self._awaited) < MOST_AWAITED:
                self._awaited[name] = reason[:MOST_CHARACTERS]
        self._tell_awaited()

    def welcome(self, gateway: GatewaySession) -> None:
        """Tell a new gateway all of it."""
        self._outbox.send(gateway, Awaited(dict(self._told_awaited), whole=True))
        self._outbox.send(gateway, Standing(dict(self._unready)))

    def unready(self, now_ns: int) -> Unready:
        """Return what observers are told."""
        named = dict(islice(self._told_awaited.items(), MOST_NAMED))
        return Unready(tuple(sorted(self._silent(now_ns))), named, len(self._told_awaited) - len(named))

    def _silent(self, now_ns: int) -> frozenset[str]:
        """Return the workers from which nothing has come for a while."""
        since_ns = now_ns - self._silence_ns
        return frozenset([each.name for each in self._sessions.workers.values() if each.heard_ns < since_ns])

    def _look(self, names: Iterable[str], silent: frozenset[str]) -> None:
        cluster = self._scheduler.cluster
        among, news = takers(cluster, silent), {}
        for name in names:
            model = cluster.models.get(name)
            # Gateways forget a model that is gone by themselves.
            reason = "" if model is None else why_not(cluster, model, among)[:MOST_CHARACTERS]
            if reason != self._unready.get(name, ""):
                news[name] = reason
                self._unready[name] = reason
                if not reason:
                    del self._unready[name]
        if news:
            self._outbox.send_gateways(Standing(news))

    def _tell_awaited(self) -> None:
        left_out = {name: why(CANT_BE_LOADED, reason) for name, reason in self._left_out.items()}
        if not left_out and self._awaited == self._told_awaited:
            return
        wanted = {**left_out, **self._awaited}
        known = self._told_awaited
        news = {name: reason for name, reason in wanted.items() if known.get(name) != reason}
        news.update({name: "" for name in known if name not in wanted})
        if news:
            self._told_awaited = wanted
            self._outbox.send_gateways(Awaited(news))
