"""Random clusters that were played to their end, with what went in and came out."""

from __future__ import annotations

from mainspring.messages.actions import Command
from mainspring.messages.events import Event, Wakeup
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.scenario import SECOND, random_scenario, run_to_end
from mainspring.simulator.simulation import Simulation

Stream = list[tuple[int, Event | Command]]


def played(
    seed: int,
    policy: str = "clockwork",
    validate_every: int = 1000,
    refuse_wrongly: float = 0.0,
) -> tuple[Simulation, Stream]:
    """Play a second of the seed's cluster, and let what is under way end; return the event stream too."""
    stream: Stream = []
    simulation = random_scenario(
        seed,
        policy=policy,
        length_ns=SECOND,
        validate_every=validate_every,
        record=lambda now_ns, message: stream.append((now_ns, message)),
        refuse_wrongly=refuse_wrongly,
    )
    run_to_end(simulation, SECOND)
    simulation.validate()
    return simulation, stream


def decided_again(simulation: Simulation, stream: Stream) -> Stream:
    """Return the stream's events with what a fresh scheduler decides at them."""
    again: Stream = []
    scheduler = Scheduler(simulation.scheduler.config)
    for now_ns, message in stream:
        if isinstance(message, Event):
            again.append((now_ns, message))
            scheduler.handle(now_ns, message)
            again.extend((now_ns, command) for command in scheduler.taken())
            if isinstance(message, Wakeup):
                again.extend((now_ns, command) for command in scheduler.schedule(now_ns))
    return again
