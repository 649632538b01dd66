"""Two devices that are asked for half as much again as they can do, and what is refused."""

from __future__ import annotations

import functools

import msgspec
import numpy as np

from mainspring.messages.actions import Command, Reject
from mainspring.messages.codes import Reason
from mainspring.messages.events import Event, RequestArrived
from mainspring.messages.model import ModelSpec, Profile, Symbol
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults, Spread
from mainspring.traces.arrival import Arrival
from mainspring.traces.source import OpenSource
from tests.scheduler.hand import MS, spec

Stream = list[tuple[int, Event | Command]]
POLICIES = ("mainspring", "clockwork", "edf", "fifo")
EVEN, ERRATIC, BUCKETS, UNHELD = "even", "erratic", "buckets", "unheld"
"""Kinds of models: those that always take as long, those that do not, those with an open dimension, and more
of them than there is memory for."""
MODELS, MANY, WORKERS, SLO_MS, LENGTH_MS = 6, 24, 2, 60, 1500
PAGES = {UNHELD: 8}
DURATIONS_NS = {size: round((1.7 + size) * MS) for size in (1, 2, 4, 8, 16)}
SHARES = {32: 0.3, 64: 0.5, 128: 1.0}
"""What a bucket takes of what the largest one does."""
SPREADS = (Spread(models="m0,m1,m2", kind="bimodal", long_share=0.1, long_factor=5.0),)
LOADS = {EVEN: 1.5, ERRATIC: 1.5, BUCKETS: 1.5, UNHELD: 1.0}
"""How many times what the devices do with full batches of the durations above."""


def models(kind: str = EVEN) -> list[ModelSpec]:
    """Models that are alike, as quick as a ResNet-50 on a V100."""
    profile = Profile(DURATIONS_NS, 8 * MS)
    count = MANY if kind == UNHELD else MODELS
    if kind != BUCKETS:
        return [msgspec.structs.replace(spec(f"m{n}"), profiles={"gpu": profile}) for n in range(count)]
    shaped = {
        str(ceiling): {size: round(share * ns) for size, ns in DURATIONS_NS.items()}
        for ceiling, share in SHARES.items()
    }
    profile = Profile(DURATIONS_NS, 8 * MS, shaped)
    symbols = (Symbol("seq", tuple(SHARES)),)
    return [
        msgspec.structs.replace(spec(f"m{n}"), profiles={"gpu": profile}, symbols=symbols)
        for n in range(count)
    ]


def arrivals(seed: int, kind: str = EVEN, retry_ms: int = 0) -> list[Arrival]:
    """A Poisson process over all models; each tenth request has no deadline."""
    rate = LOADS[kind] * WORKERS * 16e9 / DURATIONS_NS[16]
    draw = np.random.default_rng(seed)
    found, at_s, count = [], 0.0, MANY if kind == UNHELD else MODELS
    while (at_s := at_s + float(draw.exponential(1 / rate))) < LENGTH_MS / 1e3:
        model = f"m{draw.integers(count)}"
        slo_ns = None if draw.random() < 0.1 else SLO_MS * MS
        sizes = (int(draw.integers(1, 129)),) if kind == BUCKETS else ()
        found.append(Arrival(round(at_s * 1e9), model, slo_ns=slo_ns, sizes=sizes, retry_ns=retry_ms * MS))
    return found


@functools.cache
def played(
    seed: int, policy: str, refuse: str, retry_ms: int = 0, kind: str = EVEN
) -> tuple[Simulation, Stream]:
    """Let them all be answered; return the event stream too."""
    served = models(kind)
    stream: Stream = []

    names: dict[int, str] = {}

    def record(now_ns: int, message: Event | Command) -> None:
        stream.append((now_ns, message))
        if isinstance(message, RequestArrived):
            names[message.request_id] = message.model
        elif isinstance(message, Reject) and message.reason is Reason.OVERLOADED:
            name = names[message.request_id]
            held = simulation.scheduler.cluster.models[name].usable
            assert held, f"request {message.request_id} was refused early, and no worker holds {name}"

    resident = served[: PAGES[kind] - 2] if kind in PAGES else served
    simulation = Simulation(
        SchedulerConfig(policy=policy, refuse_wrongly=0.15 if refuse == "early" else 0.0),
        served,
        [(f"w{n}", "gpu", PAGES.get(kind, 200)) for n in range(WORKERS)],
        seed=seed,
        faults=Faults(delay_ns=100_000, duration_jitter=0.001, spreads=SPREADS if kind == ERRATIC else ()),
        preloaded={f"w{n}": Preloaded(served, resident) for n in range(WORKERS)},
        source=OpenSource(iter(arrivals(seed, kind, retry_ms))),
        record=record,
        keep=True,
        validate_every=50,
    )
    while simulation.now_ns < LENGTH_MS * MS or not simulation.finished():
        simulation.run(simulation.now_ns + 50 * MS)
        assert simulation.now_ns < 60_000 * MS, "some request has no reply"
    simulation.validate()
    return simulation, stream


def refusals(stream: Stream) -> list[tuple[int, RequestArrived, int, Reject]]:
    """(arrival, request, rejection's instant, rejection) of every rejection."""
    came = {each.request_id: (now_ns, each) for now_ns, each in stream if isinstance(each, RequestArrived)}
    return [(*came[each.request_id], now_ns, each) for now_ns, each in stream if isinstance(each, Reject)]
