"""Whether requests would be answered, for the server and for each model, and why not. Pure.

Everything that tells readiness asks here: HTTP, gRPC and its health service, the repository's index, metrics,
the status. A model is ready if a request with a generous deadline that came now would be answered. The server
is ready if what its operator asked for is served:

* ``strict``: all of it. A gateway that has just started waits for every model; later, a model counts from
  when it is first ready, so that one of many that is added, or replaced, never takes readiness away.
* ``serving``: at least one model.

Either way there must be a model that is ready. Reasons begin with a word of `messages.readiness`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import msgspec

from mainspring.gateway.config import STRICT
from mainspring.gateway.core.controller_catalogs import Told
from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.messages.codes import Reason
from mainspring.messages.served import (
    CANT_BE_LOADED,
    LEAVING,
    NO_MODEL,
    STARTING,
    Awaited,
    Standing,
    for_clients,
    why,
)
from mainspring.messages.status import ClusterStatus


class Readiness:
    """Says what is ready; told what controllers tell, by shard."""

    def __init__(self, told: Told, uncounted: Callable[[int], str], policy: str = STRICT) -> None:
        """``uncounted``: why a shard's controller is not to be counted on now, empty if it is."""
        self._told = told
        self._catalog = told.catalog
        self._catalog.awaits = self.awaits
        self._uncounted = uncounted
        self._strict = policy == STRICT
        shards = len(told.parts)
        self._unready: list[dict[str, str]] = [{} for _ in range(shards)]
        self._awaited: list[dict[str, str]] = [{} for _ in range(shards)]
        self._leaving = False
        self._was_ready = False
        self._owed: set[str] = set()
        """Models that were ready once, by what clients call them."""

    # --- what is told ---

    def leave(self) -> None:
        """The gateway is about to stop: it is ready no more, though it may go on answering for a while."""
        self._leaving = True

    @property
    def leaving(self) -> bool:
        """Return whether the gateway is leaving."""
        return self._leaving

    def begin_session(self, shard: int) -> None:
        """Forget a controller's models: it is about to tell everything again."""
        self._told.parts[shard].begin_session()
        self._unready[shard].clear()

    def told_all(self, now_ns: int, shard: int) -> None:
        """A controller has told all that it knew at its welcome; it may say so again, as each of its pings
        does."""
        news = not self._told.parts[shard].confirmed
        self._told.told_all(now_ns, shard)
        if news:
            self.note()

    def heard(self, shard: int, message: Standing | Awaited) -> None:
        """A controller says of which models requests could be answered, or which are to be served and are
        not yet."""
        known = (self._unready if isinstance(message, Standing) else self._awaited)[shard]
        if isinstance(message, Awaited) and message.whole:
            known.clear()
        for name, reason in message.models.items():
            if reason:
                known[name] = reason
            else:
                known.pop(name, None)
        self.note(*map(self._public, message.models))

    def note(self, *models: str) -> None:
        """Something is new of these models, by what clients call them."""
        for name in models:
            if self._is_served(name):
                if name not in self._owed and not self._why_not(name):
                    self._owed.add(name)
            elif not any(name in each for each in self._awaited):
                self._owed.discard(name)
        self.server()

    # --- what is asked ---

    def server(self) -> str:
        """Return why the server is not ready; empty if it is."""
        if self._leaving:
            return why(LEAVING, "the gateway is about to stop")
        reason = self._lacking()
        if not reason:
            self._was_ready = True
        return reason

    def model(self, name: str, version: int | None = None) -> str:
        """Return why a model is not ready; empty if it is. Raises `BadRequest` if there is no such model."""
        try:
            signature = self._catalog.resolve(name, version)
        except BadRequest as error:
            if name in self._catalog.graphs.specs:
                return self._or_leaving(why(CANT_BE_LOADED, error.detail))
            unknown = error.reason is Reason.UNKNOWN_MODEL
            reason = self.awaits(name) or ("" if unknown and self._catalog.signatures else self._absence())
            if unknown and not reason:
                raise
            return self._or_leaving(reason or why(STARTING, error.detail))
        return self._or_leaving(self._of(signature))

    def awaits(self, name: str) -> str:
        """Return why a model that is to be served is not; empty if it is, or is not to be."""
        return next((each[name] for each in self._awaited if name in each), "")

    def unready(self) -> dict[str, str]:
        """Return the models that are not ready, by what clients call them, each with why."""
        found = {name: reason for each in self._awaited for name, reason in each.items()}
        for name in self._catalog.names():
            if reason := self._why_not(name):
                found[name] = reason
        return found

    def shown(self, status: ClusterStatus) -> ClusterStatus:
        """Return a status with what is not ready."""
        return msgspec.structs.replace(status, not_ready=self.server(), unready=self.unready())

    # --- inside ---

    def _absent(self, shard: int) -> str:
        if reason := self._uncounted(shard):
            return reason
        told = self._told.parts[shard].confirmed
        return "" if told else why(STARTING, "the controller has not told all of its models yet")

    def _or_leaving(self, reason: str) -> str:
        return reason or (why(LEAVING, "the gateway is about to stop") if self._leaving else "")

    def _lacking(self) -> str:
        absent = self._absence()
        if absent and (self._strict or all(map(self._absent, range(len(self._unready))))):
            return absent
        first = self._first_not_ready() if self._strict else ""
        return first or self._none_ready()

    def _absence(self) -> str:
        """Return why one of the controllers is not to be counted on; empty if all are."""
        for shard in range(len(self._unready)):
            if reason := self._absent(shard):
                return reason
        return ""

    def _first_not_ready(self) -> str:
        """Return what one of those models lacks that all have to be ready; empty if they are."""
        return _most_telling(self._lacks())

    def _lacks(self) -> Iterator[str]:
        """Yield what each of those models lacks that have to be ready and are not."""
        for shard, unready in enumerate(self._unready):
            for name, reason in self._awaited[shard].items():
                if not self._is_served(name) and self._counts(name):
                    yield _of_model(name, reason)
            for spec_name, reason in unready.items():
                name = self._public(spec_name)
                if self._counts(name) and self._is_directed_to(spec_name, name):
                    yield _of_model(name, reason)
        for name in self._catalog.graphs.specs:
            if self._counts(name) and (reason := self._why_not(name)):
                yield _of_model(name, reason, "graph")

    def _none_ready(self) -> str:
        """Return why no model is ready; empty if one is."""
        lacking: list[str] = []
        for name in self._public_names():
            lacks = self._why_not(name)
            if not lacks:
                return ""
            lacking.append(_of_model(name, lacks))
        awaited = (_of_model(name, lacks) for each in self._awaited for name, lacks in each.items())
        return _most_telling(chain(lacking, awaited)) or NO_MODEL

    def _public_names(self) -> Iterable[str]:
        yield from self._catalog.served
        for name, signature in self._catalog.signatures.items():
            if not signature.spec.served_as:
                yield name

    def _counts(self, name: str) -> bool:
        return not self._was_ready or name in self._owed

    def _is_served(self, name: str) -> bool:
        return bool(self._catalog.versions(name))

    def _is_directed_to(self, spec_name: str, name: str) -> bool:
        served = self._catalog.served.get(name)
        if served is None:
            return spec_name == name and name in self._catalog.signatures
        return spec_name in served.versions.values()

    def _public(self, spec_name: str) -> str:
        signature = self._catalog.signatures.get(spec_name)
        return spec_name if signature is None else signature.spec.public_name

    def _why_not(self, name: str) -> str:
        """Return why a model of the catalog is not ready: of its versions, the first that is not."""
        for version in self._catalog.versions(name):
            if reason := self._of(self._catalog.resolve(name, version)):
                return reason
        if name in self._catalog.graphs.specs and (fault := self._catalog.graphs.fault(name)):
            return why(CANT_BE_LOADED, fault)
        return "" if self._is_served(name) else self.awaits(name)

    def _of(self, signature: Signature) -> str:
        if signature.graph is not None:
            reasons = [(each.spec.public_name, self._of(each)) for each in signature.graph.models]
            return next((_of_model(name, reason) for name, reason in reasons if reason), "")
        spec = signature.spec
        shard = self._told.shard_of(spec.name) or 0
        told = self._unready[shard].get(spec.name, "")
        return self._absent(shard) or for_clients(told, spec.name, spec.public_name)


def _most_telling(reasons: Iterable[str]) -> str:
    """Return the first of the reasons that may pass; a model that can't be loaded is to blame only if none
    may."""
    lasting = ""
    for reason in reasons:
        if not reason.startswith(CANT_BE_LOADED):
            return reason
        lasting = lasting or reason
    return lasting


def _of_model(name: str, reason: str, kind: str = "model") -> str:
    """Return a model's reason with its name, behind the word that it begins with."""
    word, colon, detail = reason.partition(": ")
    return why(word, f"{kind} {name!r}{colon}{detail}")
