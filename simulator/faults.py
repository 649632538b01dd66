"""What goes wrong in a simulation: one seeded options object."""

from __future__ import annotations

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How the network and the devices misbehave. Probabilities are for each message or action."""

    delay_ns: int = 100_000
    """One-way delay of every message between gateway, controller and workers."""
    delay_jitter_ns: int = 0
    """Greatest addition to a delay, drawn evenly; messages between two processes stay in order."""
    client_delay_ns: int = 0
    """One-way delay between clients and gateway."""
    input_ns_per_byte: float = 0.0
    """What each byte of inputs takes on a worker's link, one request's after the other's; 1.0 is 1 GB/s."""
    duration_jitter: float = 0.0003
    """Standard deviation of the logarithm of a duration."""
    slow_probability: float = 0.0
    """Chance that an action takes up to ``slow_ns`` longer."""
    slow_ns: int = 20_000_000
    engine_error_probability: float = 0.0
    """Chance that an action's engine fails."""
    input_loss_probability: float = 0.0
    """Chance that a request's inputs never come to the worker."""
    output_loss_probability: float = 0.0
    """Chance that an INFER's outputs never come to the gateway."""
    crashes: tuple[tuple[int, str, int], ...] = ()
    """(instant, worker, down time): the worker dies with its memory and joins again, empty."""
    detection_ns: int = 1_000_000_000
    """From a crash until the controller knows of it."""
    session_losses: tuple[tuple[int, str, int], ...] = ()
    """(instant, worker, notice): the controller gives the worker up, which notices it so much later, forgets
    what it was to do, and joins again with what it holds."""
    worker_loss_notices: bool = False
    """Whether the controller tells the gateway of each worker that is gone, as it does live: the gateway then
    submits what it last pushed there again, under new ids. Implies the gateway's core, not its stand-in."""
