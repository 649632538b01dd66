"""A check whether a cluster can serve: every worker has joined and has prepared every model that it can."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import Self

from mainspring.client.connection import Connection
from mainspring.client.errors import MainspringError
from mainspring.messages.clients import GetStatus, StatusReply
from mainspring.messages.status import ClusterStatus, ModelStatus
from mainspring.repository.recipe import is_artifact_name

ANSWER_POLLS = 20
"""Polls without an answer before the question is asked again: the gateway may have been restarted."""


class Readiness:
    """Asks a cluster's gateway again and again, without ever waiting longer than one poll.

    Use it as a context manager; ``blocked_by`` says for a person what is still missing.
    """

    def __init__(self, address: str, workers: Sequence[int], models: int, token: str | None = None) -> None:
        """``workers`` of each controller; ``token`` is for a gateway that needs one."""
        self.blocked_by = "the gateway does not answer yet"
        self.failure = ""
        """Failure that waiting does not mend: no worker can prepare any model, and why."""
        self.faults: tuple[str, ...] = ()
        """Models that are not served, or not by each worker, each with why."""
        self.served = 0
        """Models that some worker has prepared."""
        self._workers = workers
        self._models = models
        # A gateway on this machine may come at any moment; nothing else waits for its port.
        self._connection = Connection(address, name="mainspring up", token=token, longest_retry_ms=100)
        self._key = 0
        self._polls_left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def poll(self, timeout_ms: float) -> bool:
        """Return whether the cluster can serve, after waiting for news for at most that time."""
        self._ask()
        self._connection.poll(timeout_ms)
        while (received := self._connection.receive()) is not None:
            message = received[0]
            if isinstance(message, StatusReply):
                # Asked again only after a poll that brought nothing: the machine has models to prepare.
                self._polls_left = 2
                self.failure = failure(message.status, self._workers)
                self.faults = faults(message.status)
                known = [model for model in message.status.models if not is_artifact_name(model.name)]
                self.served = sum(bool(model.prepared_on) for model in known)
                self.blocked_by = missing(message.status, self._workers, self._models)
                if not self.blocked_by and not self.failure:
                    return True
        return False

    def _ask(self) -> None:
        self._polls_left -= 1
        if self._polls_left > 0 or self._connection.welcome is None:
            return
        self._key += 1
        try:
            self._connection.send(GetStatus(key=self._key))
        except MainspringError:
            return
        self._polls_left = ANSWER_POLLS


def missing(status: ClusterStatus, workers: Sequence[int], models: int) -> str:
    """Return what keeps the cluster from serving, or an empty text; what a repository adds does not.

    ``workers`` of each controller.
    """
    down = [shard for shard in status.shards if not shard.up]
    if down:
        return f"the controller of shard {down[0].number} does not answer yet"
    if len(status.workers) < sum(workers):
        return f"{len(status.workers)} of {sum(workers)} workers have joined"
    known = list(_by_shard(status, workers))
    if len(known) < models:
        return f"{len(known)} of {models} models are known"
    unready = [model for model, few in known if len(model.prepared_on) + len(model.failed_on) < few]
    if unready:
        return f"{len(unready)} of {models} models are still being prepared, {unready[0].name} among them"
    return ""


def failure(status: ClusterStatus, workers: Sequence[int]) -> str:
    """Return which model can't be prepared, and why, if no worker can prepare any; else an empty text."""
    own = list(_by_shard(status, workers))
    failed = [model for model, all_of_them in own if len(model.failed_on) >= all_of_them]
    if not failed or len(failed) < len(own):
        return ""
    others = f" ({len(failed) - 1} more can't be prepared either)" if len(failed) > 1 else ""
    return f"model {failed[0].name} can't be served: {failed[0].failed_on[0]}{others}"


def _by_shard(status: ClusterStatus, workers: Sequence[int]) -> Iterator[tuple[ModelStatus, int]]:
    """Yield each model that no repository has, with the number of workers that its controller has."""
    counts = [shard.models for shard in status.shards] or [len(status.models)]
    first = 0
    for count, few in zip(counts, workers, strict=True):
        for model in status.models[first : first + count]:
            if not is_artifact_name(model.name):
                yield model, few
        first += count


def faults(status: ClusterStatus, but: Collection[str] = ()) -> tuple[str, ...]:
    """Return a sentence for each model, ``but`` these, that is not served, or not by each worker."""
    return (
        *(f"model {name} is not served: {why}" for name, why in status.left_out.items() if name not in but),
        *(
            f"model {model.name} {'is not served' if not model.prepared_on else 'lacks a worker'}: {why}"
            for model in status.models
            for why in model.failed_on[:1]
            if not is_artifact_name(model.name) and model.name not in but
        ),
    )
