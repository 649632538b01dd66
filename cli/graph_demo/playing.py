"""Play the same load to a graph and to a client that calls its steps, in turns, and compare."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from mainspring.cli.graph_demo.asking import Answer, Question
from mainspring.client.asynchronous import AsyncClient
from mainspring.client.errors import MainspringError
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.log import read_entries

GRAPH: Final = "graph"
STEPS: Final = "steps"
WAYS: Final = (GRAPH, STEPS)
MOST_RATE: Final = 150.0
"""Requests per second that one client in Python keeps up with beside the cluster, on two cores."""
SECOND_NS: Final = 1_000_000_000


class Load(NamedTuple):
    """The load of one graph."""

    rate: float
    """Requests per second."""
    share: float
    """Share of the device's time that they take, by the profiles."""
    shares: dict[str, float]
    """Share of the SLO that each step has, for a client that calls the steps."""


class Turn(NamedTuple):
    """One way's requests, for some seconds."""

    graph: str
    way: str
    begin_ns: int
    end_ns: int
    latencies_ms: list[float]
    """Latency of each request that was answered in time."""
    missed: int
    """Requests that were refused, or answered late."""
    right: int
    used: Counter[str]
    """Rows that models ran for answers in time."""


class Row(msgspec.Struct, frozen=True):
    """The figures of one way, over all of its turns."""

    graph: str
    way: str
    requests: int
    in_time: float
    """Share of the requests that were answered in time."""
    right: float
    """Share of the answers in time that are what was drawn or written."""
    median_ms: float | None
    p99_ms: float | None
    executions: int
    """Rows that models ran."""
    in_vain: float
    """Share of the executions that no answer in time came of."""
    executed: dict[str, int]
    """Rows by model."""


def load_for(question: Question, specs: Mapping[str, ModelSpec], share: float) -> Load:
    """Return a load that takes ``share`` of one device's time, or less where the client could not send it."""
    costs = question.cost_ns(specs)
    whole = sum(costs.values())
    rate = min(share * SECOND_NS / whole, MOST_RATE)
    return Load(rate, rate * whole / SECOND_NS, {model: cost / whole for model, cost in costs.items()})


async def play(
    question: Question, client: AsyncClient, load: Load, way: str, seconds: float, first: int, seed: int
) -> Turn:
    """Ask at random instants (Poisson) for ``seconds``; ``first`` is the number of the first request."""
    pauses = np.random.default_rng(seed).exponential(1 / load.rate, round(2 * seconds * load.rate) + 20)
    instants = np.cumsum(pauses)
    begin_ns = time.monotonic_ns()
    turn = Turn(question.graph, way, begin_ns, 0, [], 0, 0, Counter())
    missed: list[bool] = []
    right: list[bool] = []

    async def one(number: int) -> None:
        begun = time.monotonic()
        try:
            answer: Answer = await _asked(question, client, load, way, number)
        except MainspringError:
            missed.append(True)
            return
        elapsed_ms = (time.monotonic() - begun) * 1e3
        if elapsed_ms > question.slo_ms:
            missed.append(True)
            return
        turn.latencies_ms.append(elapsed_ms)
        turn.used.update(answer.executed)
        right.append(answer.right)

    async with asyncio.TaskGroup() as tasks:
        for number, instant in enumerate(instants[instants < seconds].tolist(), first):
            await asyncio.sleep(begin_ns / 1e9 + instant - time.monotonic())
            tasks.create_task(one(number))
    return turn._replace(end_ns=time.monotonic_ns(), missed=len(missed), right=sum(right))


def _asked(question: Question, client: AsyncClient, load: Load, way: str, number: int) -> Awaitable[Answer]:
    if way == GRAPH:
        return question.of_graph(client, number)
    return question.by_steps(client, number, load.shares)


def rows_of(turns: Sequence[Turn], events: Path) -> list[Row]:
    """Return a row for each graph and way; ``events`` is the event log of the cluster that was asked."""
    executed = _executed(turns, events)
    keys = dict.fromkeys((turn.graph, turn.way) for turn in turns)
    return [
        _row(*key, [(turn, ran) for turn, ran in zip(turns, executed, strict=True) if turn[:2] == key])
        for key in keys
    ]


def _row(graph: str, way: str, turns: Sequence[tuple[Turn, Counter[str]]]) -> Row:
    latencies = np.array([each for turn, _ in turns for each in turn.latencies_ms])
    requests = len(latencies) + sum(turn.missed for turn, _ in turns)
    ran: Counter[str] = sum((each for _, each in turns), Counter())
    used: Counter[str] = sum((turn.used for turn, _ in turns), Counter())
    total = ran.total()
    return Row(
        graph=graph,
        way=way,
        requests=requests,
        in_time=len(latencies) / requests if requests else 0.0,
        right=sum(turn.right for turn, _ in turns) / len(latencies) if len(latencies) else 0.0,
        median_ms=float(np.median(latencies)) if len(latencies) else None,
        p99_ms=float(np.percentile(latencies, 99)) if len(latencies) else None,
        executions=total,
        in_vain=max(0, total - used.total()) / total if total else 0.0,
        executed=dict(ran),
    )


def _executed(turns: Sequence[Turn], events: Path) -> list[Counter[str]]:
    """Return the rows that models ran during each turn, by the event log."""
    executed: list[Counter[str]] = [Counter() for _ in turns]
    outstanding: dict[int, Infer] = {}
    for _, entry in read_entries(events):
        if isinstance(entry, Infer):
            outstanding[entry.action_id] = entry
        elif isinstance(entry, Result) and (infer := outstanding.pop(entry.action_id, None)) is not None:
            for turn, ran in zip(turns, executed, strict=True):
                if entry.status is Status.OK and turn.begin_ns <= entry.begin_ns < turn.end_ns:
                    ran[infer.model.partition(":")[0]] += sum(infer.rows)
    return executed


Say = Callable[[str], None]


async def play_turns(
    questions: Sequence[Question],
    loads: Sequence[Load],
    client: AsyncClient,
    seconds: float,
    rounds: int,
    seed: int,
    say: Say,
) -> list[Turn]:
    """Play every question both ways, ``rounds`` times in turns, for ``seconds`` each time."""
    turns: list[Turn] = []
    for number in range(rounds):
        for question, load in zip(questions, loads, strict=True):
            # Both ways ask for the same at the same instants; who begins changes from round to round.
            for way in WAYS[:: 1 if number % 2 == 0 else -1]:
                turn = await play(question, client, load, way, seconds, 1_000 * number, seed + number)
                turns.append(turn)
                in_time = len(turn.latencies_ms)
                say(f"{question.graph} by its {way}: {in_time} of {in_time + turn.missed} in time")
    return turns
