"""Random whole-cluster scenarios by seed: what deterministic simulation tests run.

One seed decides the cluster, its models, the workload and the faults, so that a failing seed is a
complete report.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from mainspring.messages.actions import Command
from mainspring.messages.events import Event, ModelAdded, ModelRemoved
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, Symbol, TensorSpec
from mainspring.messages.targets import kind_of, merged
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.gateway import BEST_EFFORT_NS
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
KINDS = ("fast", "slow")
TARGETS = {"fast": ("tvm-sm_90a", "tvm-sm_*"), "slow": ("tvm-x86_64-avx2", "tvm-x86_64-baseline")}
"""Targets of the artifacts that devices of each kind run, where they are unlike."""
LONGEST_WAIT_NS = BEST_EFFORT_NS + 2 * SECOND
"""Time after which every request has its answer: the gateway itself gives one at last."""


def random_model(rng: np.random.Generator, name: str, executable: str) -> ModelSpec:
    """Draw a model: its sizes, its pages (with longer extents now and then) and its profiles."""
    extents = tuple(int(rng.choice([1, 1, 1, 2, 3])) for _ in range(int(rng.integers(1, 5))))
    sizes = ((1, 2, 4, 8, 16), (1, 4), (2, 3, 8), (1,))[int(rng.integers(4))]
    single_ns = int(rng.integers(MILLISECOND, 12 * MILLISECOND))
    growth = float(rng.uniform(0.3, 1.0))
    infer_ns = {size: int(single_ns * (1 + growth * (size - 1))) for size in sizes}
    weights_bytes = sum(extents) * PAGE_BYTES - int(rng.integers(PAGE_BYTES))
    load_ns = int(weights_bytes * rng.uniform(0.05, 0.3))
    tensor = (TensorSpec("x", "float32", (4,)),)
    return ModelSpec(
        name=name,
        weights_hash=f"weights of {name} {single_ns}",
        executable=executable,
        batch_sizes=sizes,
        weights_bytes=weights_bytes,
        extents=extents,
        inputs=tensor,
        outputs=tensor,
        profiles={
            "fast": Profile(infer_ns, load_ns),
            "slow": Profile({size: 2 * duration_ns for size, duration_ns in infer_ns.items()}, 2 * load_ns),
        },
    )


def give_symbols(rng: np.random.Generator, model: ModelSpec) -> ModelSpec:
    """Return a model with one or two symbols, whose durations grow with their sizes.

    Some may be padded, and some of these run at their buckets' ceilings alone.
    """
    symbols = []
    for name in ("height", "width")[: int(rng.integers(1, 3))]:
        ladder = np.cumsum(rng.integers(1, 4, size=int(rng.integers(1, 4))))
        symbols.append(Symbol(name, tuple(map(int, ladder)), int(rng.integers(1, ladder[0] + 1))))
    open_model = msgspec.structs.replace(model, symbols=tuple(symbols))
    largest = math.prod(symbol.limit for symbol in symbols)
    profiles = {}
    for kind, profile in model.profiles.items():
        shaped = {
            "x".join(map(str, ceilings)): {
                size: max(1, duration_ns * math.prod(ceilings) // largest)
                for size, duration_ns in profile.infer_ns.items()
            }
            for ceilings in open_model.buckets
        }
        profiles[kind] = msgspec.structs.replace(profile, shaped=shaped)
    pad = {tensor.name: 0.0 for tensor in model.inputs} if rng.random() < 0.5 else {}
    at_ceilings = bool(pad) and largest % 2 == 0
    return msgspec.structs.replace(open_model, profiles=profiles, pad=pad, at_ceilings=at_ceilings)


def give_targets(model: ModelSpec, number: int) -> ModelSpec:
    """Return a model with an artifact for each kind of device; every fourth has one for one kind only."""
    slow = msgspec.structs.replace(
        model,
        target="tvm-x86_64-baseline",
        executable=f"{model.executable} for a CPU",
        weights_hash=f"{model.weights_hash} for a CPU",
        extents=(*model.extents, 1),
    )
    fast = msgspec.structs.replace(model, target="tvm-sm_80")
    return (merged(fast, slow), merged(slow, fast), fast, slow)[number % 4]


def random_faults(rng: np.random.Generator, workers: list[str], length_ns: int) -> Faults:
    """Draw how much goes wrong; nothing at all for one seed in four."""
    if rng.random() < 0.25:
        return Faults()
    crashes = tuple(
        (int(rng.integers(length_ns)), workers[int(rng.integers(len(workers)))], int(rng.integers(SECOND)))
        for _ in range(int(rng.integers(3)))
    )
    session_losses = tuple(
        (int(rng.integers(length_ns)), workers[int(rng.integers(len(workers)))], int(rng.integers(SECOND)))
        for _ in range(int(rng.integers(3)))
    )
    return Faults(
        delay_jitter_ns=int(rng.integers(1, 2 * MILLISECOND)),
        duration_jitter=float(rng.uniform(0, 0.2)),
        slow_probability=float(rng.uniform(0, 0.05)),
        slow_ns=int(rng.integers(1, 100 * MILLISECOND)),
        engine_error_probability=float(rng.choice([0.0, 0.02])),
        input_loss_probability=float(rng.choice([0.0, 0.01])),
        output_loss_probability=float(rng.choice([0.0, 0.01])),
        crashes=crashes,
        session_losses=session_losses,
        detection_ns=int(rng.integers(1, SECOND)),
    )


def random_scenario(
    seed: int,
    policy: str = "clockwork",
    length_ns: int = 2 * SECOND,
    validate_every: int = 1,
    record: Callable[[int, Event | Command], None] | None = None,
    open_ns: int = 0,
    shaped: bool = False,
    refuse_wrongly: float = 0.0,
    unlike: bool = False,
) -> Simulation:
    """Build a random cluster with its workload; run it with `run_to_end`.

    ``record`` gets the event stream, and every ``validate_every`` turns all invariants are checked. With
    ``open_ns`` executables of models that come later are opened by OPENs, which take so long. If ``shaped``,
    some of the models have symbols. If ``unlike``, each kind of device runs artifacts of its own, and some
    models have none for one kind. ``refuse_wrongly`` as in `SchedulerConfig`.
    """
    rng = np.random.default_rng(seed)
    executables = [f"graph {index}" for index in range(int(rng.integers(1, 6)))]
    models: list[ModelSpec] = []
    for index in range(int(rng.integers(1, 25))):
        executable = executables[int(rng.integers(len(executables)))]
        models.append(random_model(rng, f"m{index}", f"{executable} of m{index}"))
    if shaped:
        models = [give_symbols(rng, model) if rng.random() < 0.7 else model for model in models]
    models = [give_targets(model, index) if unlike else model for index, model in enumerate(models)]
    names = [f"w{index}" for index in range(int(rng.integers(1, 5)))]
    largest = max(model.pages for model in models)
    workers = [
        (name, KINDS[int(rng.integers(2))], int(rng.integers(max(1, largest - 1), 3 * largest + 8)))
        for name in names
    ]
    workers = [(name, kind_of(kind, TARGETS[kind] if unlike else ()), pages) for name, kind, pages in workers]
    config = SchedulerConfig(
        policy=policy,
        refuse_wrongly=refuse_wrongly,
        dispatch_delay_ms=float(rng.choice([0.3, 1.0])),
        response_margin_ms=float(rng.choice([0.3, 3.0])),
        pad_batches=bool(rng.integers(2)),
        estimate_rank=(1, 3)[seed % 2],
        max_queued_requests_per_model=int(rng.choice([5, 10_000])),
    )
    faults = msgspec.structs.replace(random_faults(rng, names, length_ns), open_ns=open_ns)
    simulation = Simulation(
        config, models, workers, seed=seed, faults=faults, record=record, validate_every=validate_every
    )
    _add_workload(rng, simulation, models, length_ns)
    return simulation


def run_to_end(simulation: Simulation, length_ns: int = 2 * SECOND) -> None:
    """Run a scenario and let everything that is outstanding end."""
    simulation.run(length_ns + LONGEST_WAIT_NS)


class Story(msgspec.Struct, frozen=True):
    """The result of a scenario, for a person."""

    text: str
    wrong: bool


def check_scenario(seed: int, policy: str, length_ns: int = SECOND, validate_every: int = 7) -> Story:
    """Run a scenario, check invariants throughout and that each request got its one answer.

    Raises ValueError for a policy that there is not.
    """
    simulation = random_scenario(seed, policy, length_ns, validate_every)
    try:
        run_to_end(simulation, length_ns)
        simulation.validate()
    except AssertionError as error:
        return Story(f"at {simulation.now_ns / 1e6:.3f} ms of scenario {seed}, {policy}: {error}", True)
    outcomes = simulation.outcomes.values()
    for outcome in outcomes:
        if outcome.answers != 1:
            return Story(f"scenario {seed}, {policy}: {outcome} should have one answer", True)
    status = simulation.scheduler.status()
    if status.requests_queued or any(worker.outstanding for worker in status.workers):
        return Story(f"scenario {seed}, {policy}: work is left when all is over: {status}", True)
    in_time = sum(outcome.in_time for outcome in outcomes)
    return Story(
        f"scenario {seed}, {policy}: {len(outcomes)} requests, each answered once, {in_time} in time; "
        f"{len(status.workers)} workers, {simulation.faults}",
        False,
    )


def reproduction(seed: int, policy: str) -> str:
    """Return the command that runs a scenario alone."""
    return f"mainspring simulate --scenario {seed} --policy {policy}"


def _add_workload(
    rng: np.random.Generator, simulation: Simulation, models: list[ModelSpec], length_ns: int
) -> None:
    """Draw skewed Poisson arrivals with mixed deadlines and rows, cancellations, and changes of models."""
    rate = float(rng.uniform(20, 600))
    popularity = rng.dirichlet(np.full(len(models), 0.4))
    when_ns = 0.0
    request_id = 0
    while (when_ns := when_ns + rng.exponential(SECOND / rate)) < length_ns:
        request_id += 1
        model = models[int(rng.choice(len(models), p=popularity))]
        rows = 1 if rng.random() < 0.8 else int(rng.integers(1, model.max_rows + 1))
        slo_ns = None if rng.random() < 0.1 else int(rng.uniform(2, 200) * MILLISECOND)
        sizes = tuple(
            [
                each.least + each.step * int(rng.integers(0, (each.limit - each.least) // each.step + 1))
                for each in model.symbols
            ]
        )
        simulation.request(int(when_ns), request_id, model.name, rows, slo_ns, sizes)
        if rng.random() < 0.02:
            later_ns = int(when_ns + rng.exponential(10 * MILLISECOND))
            simulation.cancel(later_ns, request_id)
    for _ in range(int(rng.integers(4))):
        index = int(rng.integers(len(models)))
        away_ns = int(rng.integers(length_ns))
        simulation.feed(away_ns, ModelRemoved(models[index].name))
        new = random_model(rng, models[index].name, models[index].executable + " changed")
        simulation.feed(away_ns + int(rng.integers(SECOND)), ModelAdded(new))
