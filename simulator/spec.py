"""The spec of a simulation: devices, models, workloads, network, faults, costs and the scheduler's
configuration.

Plain frozen structs, to be made in Python or read from a file (`spec_file.read_spec`). Durations and sizes
are in the unit that ends each name.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from mainspring.messages.choices import did_you_mean
from mainspring.messages.targets import check_targets
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.checks import LEAST_MS, MOST, check_durations, check_range
from mainspring.simulator.costs import CostSpec, ProcessCosts
from mainspring.simulator.graph_groups import FamilyGroup, GraphGroup
from mainspring.simulator.objective import Objective
from mainspring.traces.arrival import FROM_FILE, Kind
from mainspring.traces.rows import RowsSpec
from mainspring.traces.shapes import parse_distribution

LOG = "log"
"""The kind of a workload that was recorded in an event log."""
OF_LOG = ("kind", "log", "models")
"""Keys that are allowed for such a workload: all else is as it was recorded."""
KINDS = (*(kind.value for kind in Kind), LOG)


class SpecError(ValueError):
    """A spec asks for what can't be; the text says what would be right."""


def matches(name: str, patterns: str) -> bool:
    """Return whether a name matches one of several patterns with commas between."""
    return any(fnmatchcase(name, pattern.strip()) for pattern in patterns.split(",") if pattern.strip())


class DeviceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that are alike."""

    count: int = 1
    """Number of devices; they are called ``worker-0`` and so on over all groups."""
    kind: str = "gpu"
    """Name of the kind of device. Groups of one kind are alike in all but their pages."""
    pages: int = 1984
    """Pages of 16 MiB for weights; 1984 are the 31 GiB that a V100 of 32 GiB has to spare."""
    speed: float = 1.0
    """Speed as a multiple of what the models' profiles say, for EXEC and LOAD alike."""
    profiles: str | None = None
    """Table of profiles of this kind of device, for models of the same names; None for the models' own."""
    targets: tuple[str, ...] = ()
    """Targets of the artifacts that they run, the best first, such as ``tvm-sm_90``; empty: any."""
    serves: str = ""
    """Model that alone runs on them, and that runs on no others."""
    max_batch: int = 0
    """Most of its rows that run together, as any group says that it serves; 0: as its largest batch."""
    price: float = 0.0
    """Price of one device for an hour, in any currency; it and the next two are for plans alone."""
    least: int = 0
    """The fewest that a plan may have."""
    most: int | None = None
    """The most that a plan may have, in the place of ``count``; None for as many as improve anything."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        for name in ("count", "price", "max_batch"):
            check_range(name, getattr(self, name), least=0)
        if self.most is not None:
            check_range("most", self.most, least=0)
        check_range("least", self.least, least=0, most=self.most)
        check_range("pages", self.pages, least=1)
        check_range("speed", self.speed, least=1e-6)
        check_targets(self.targets)


class ModelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Models from one place: ``profiles``, ``store``, or, with ``name`` and ``infer_ms``, described here."""

    profiles: str | None = None
    """CSV file in the columns of Clockwork's table 1 (appendix A)."""
    store: str | None = None
    """Folder of a model store."""
    name: str | None = None
    """Name of a model that is described here."""
    include: str = "*"
    """Pattern of the names to take, such as ``resnet*``; several with commas between."""
    exclude: str = ""
    """Pattern of the names to leave out, such as ``*tuned*``; several with commas between."""
    copies: int = 1
    """Instances of each, with weights of their own; called ``NAME-1`` and so on if more than one."""
    infer_ms: dict[str, float] = {}
    """Duration of an INFER by batch size, for a model that is described here."""
    symbols: tuple[str, ...] = ()
    """Its open dimensions, such as ``seq``."""
    shaped_ms: dict[str, dict[str, float]] = {}
    """Durations by bucket, such as ``128`` or ``640x480``, and then by batch size; only with ``symbols``."""
    pads: bool = False
    """True if requests of one bucket may share an execution."""
    target: str = ""
    """Devices that these artifacts are for, such as ``tvm-sm_90``; models of one name in several groups are
    one, with an artifact for each target. Empty: any device runs them."""
    load_ms: float = 10.0
    """Duration of its LOAD."""
    weights_mb: float = 100.0
    """Its weights, in millions of bytes."""
    input_kb: float = 602.0
    """Its inputs for each row, in thousands of bytes."""
    output_kb: float = 4.0
    """Its outputs for each row."""
    at_s: float = 0.0
    """Time at which they are registered, from the start of the simulation with its warm-up; 0: they are there
    from the start, and prepared. Requests that come for them before are rejected."""

    def __post_init__(self) -> None:
        """Raise `ValueError` unless the models come from one place."""
        places = [name for name in ("profiles", "store", "name") if getattr(self, name) is not None]
        if len(places) != 1:
            given = " and ".join(places) or "nothing"
            raise ValueError(f"models come from one of profiles, store or name with infer_ms, not {given}")
        check_range("copies", self.copies, least=1)
        check_targets((self.target,) if self.target else ())
        if (self.name is None) != (not self.infer_ms and not self.shaped_ms):
            raise ValueError("name and infer_ms belong together: a model described here needs both")
        check_durations("infer_ms", self.infer_ms)
        self._check_shaped()
        check_range("load_ms", self.load_ms, least=LEAST_MS)
        for name in ("weights_mb", "input_kb", "output_kb"):
            check_range(name, getattr(self, name), above=0)
        check_range("at_s", self.at_s, least=0)

    def _check_shaped(self) -> None:
        """Raise `ValueError` unless buckets are of the symbols."""
        if bool(self.symbols) != bool(self.shaped_ms) or (self.shaped_ms and self.infer_ms):
            raise ValueError("symbols and shaped_ms belong together, and stand in the place of infer_ms")
        for bucket, durations in self.shaped_ms.items():
            sizes = bucket.split("x")
            whole = all(size.isdecimal() and len(size) <= 9 and int(size) >= 1 for size in sizes)
            if not whole or len(sizes) != len(self.symbols) or not durations:
                raise ValueError(
                    f"shaped_ms has {bucket!r} for a bucket of {', '.join(self.symbols)}; it must be a whole "
                    "number from 1 for each, such as 128 or 640x480, with durations by batch size"
                )
            check_durations(f"shaped_ms.{bucket}", durations)


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to some of the models; several workloads run side by side."""

    kind: str = Kind.POISSON.value
    """azure2019, azure2021, csv, poisson, gamma, synthetic, closed, or log for a recorded event log."""
    models: str = "*"
    """Pattern of the models' names; several with commas between."""
    rate: float | None = None
    """Requests per second of all these models together; None for a trace's own, 100 for generators."""
    load: float | None = None
    """Load of these requests in the place of ``rate`` and ``scale``, as a multiple of what all devices can
    do, by the models' profiles, in full batches of the best size (`traces.capacity`)."""
    slo_ms: float | tuple[float, ...] = 100.0
    """Time to each request's deadline; of several the models take one each, in turn."""
    best_effort: bool = False
    """Requests have no deadline."""
    rows: int | RowsSpec = 1
    """Rows of each request, or how they are distributed."""
    shape: dict[str, str] = {}
    """Distributions of the sizes of open dimensions, by symbol, as `replay --shapes` takes them; by default
    the largest."""
    trace: str | None = None
    """File of an azure2019, azure2021 or csv workload."""
    log: str | None = None
    """Folder of a recorded event log, whose arrivals come again with their models, rows and deadlines."""
    start_s: float = 0.0
    """Instant of the trace to begin at, in its own time."""
    scale: float = 1.0
    """Factor on the number of requests."""
    time_scale: float = 1.0
    """Factor on the trace's time: 0.1 plays ten minutes of it in one."""
    cv: float = 4.0
    """gamma: coefficient of variation of the gaps."""
    zipf_exponent: float = 0.0
    """poisson, gamma: skew of the rates over the models; 0 for none."""
    concurrency: int = 16
    """closed: requests that each model's client keeps in flight."""
    think_ms: float = 0.0
    """closed: pause between an answer and the next request."""
    retry_ms: float = 0.0
    """Time that a client waits after a refusal for want of time before it asks once more, with what is left
    until its deadline; 0: it does not."""
    seed: int | None = None
    """Seed of the workload; None for one that follows from the spec's."""
    tenant: str = ""
    """The tenant whose requests these are, as a token would name it; empty: none's."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        if self.kind not in KINDS:
            hint = did_you_mean(self.kind, KINDS)
            raise ValueError(f"there is no kind {self.kind!r} of workload: choose {', '.join(KINDS)}{hint}")
        if self.kind in FROM_FILE and self.trace is None:
            raise ValueError(f"a workload of kind {self.kind} is read from a file: name it with trace")
        if self.kind == LOG:
            if self.log is None:
                raise ValueError("a workload of kind log is read from an event log: name its folder with log")
            usual = WorkloadSpec()
            fields = self.__struct_fields__
            refuse_over_log(name for name in fields if getattr(self, name) != getattr(usual, name))
        elif self.log is not None:
            raise ValueError(f"a workload of kind {self.kind} is not read from a log: take log out, or kind")
        if not self.slos_ms:
            raise ValueError("slo_ms is an empty list; give a number of milliseconds, or several")
        for slo_ms in self.slos_ms:
            check_range("slo_ms", slo_ms, least=LEAST_MS)
        for name in ("scale", "time_scale"):
            check_range(name, getattr(self, name), least=1e-6)
        check_range("cv", self.cv, least=1e-3)
        if self.rate is not None:
            check_range("rate", self.rate, least=1e-6)
        self._check_load()
        for name in ("start_s", "zipf_exponent", "think_ms", "retry_ms"):
            check_range(name, getattr(self, name), least=0)
        check_range("concurrency", self.concurrency, least=1)
        if self.seed is not None:
            check_range("seed", self.seed, least=0)
        if not isinstance(self.rows, RowsSpec):
            check_range("rows", self.rows, least=1)
        elif self.kind == Kind.CSV.value:
            raise ValueError("requests of a csv trace have the rows of its column rows; elsewhere a number")
        for distribution in self.shape.values():
            parse_distribution(distribution)

    @property
    def slos_ms(self) -> tuple[float, ...]:
        """The times to deadlines that the models take in turn."""
        return (self.slo_ms,) if isinstance(self.slo_ms, int | float) else tuple(self.slo_ms)

    def _check_load(self) -> None:
        """Raise `ValueError` for a load that can't be, or beside what says the same."""
        if self.load is None:
            return
        check_range("load", self.load, least=1e-6)
        if self.kind == Kind.CLOSED.value:
            raise ValueError(
                "load says how many requests come, and closed-loop clients decide that: take it out"
            )
        other = "rate" if self.rate is not None else "scale"
        if self.rate is not None or self.scale != 1.0:
            raise ValueError(f"load and {other} both say how many requests come: take one of them out")


def refuse_over_log(given: Iterable[str]) -> None:
    """Raise `ValueError` for what changes nothing of a workload of kind log."""
    idle = [name for name in given if name not in OF_LOG]
    if idle:
        raise ValueError(
            f"{', '.join(idle)} would change nothing of a workload of kind log, which has the requests, rows "
            "and deadlines that were recorded: take it out"
        )


class NetworkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of messages."""

    delay_us: float = 100.0
    """Delay of each way between gateway, controller and workers, in microseconds."""
    delay_jitter_us: float = 0.0
    """Greatest addition to a delay, drawn evenly; messages between two processes stay in order."""
    client_delay_us: float = 0.0
    """Delay of each way between clients and gateway, in microseconds."""
    input_ns_per_byte: float = 0.0
    """Time of each byte of inputs on a worker's link, one request's after the other's; 1.0 is 1 GB/s."""
    input_loss_probability: float = 0.0
    """Chance that a request's inputs never come to the worker."""
    output_loss_probability: float = 0.0
    """Chance that an INFER's outputs never come to the gateway."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        for name in self.__struct_fields__:
            most = 1.0 if name.endswith("probability") else None
            check_range(name, getattr(self, name), least=0, most=most)


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """A worker dies with its memory and joins again, empty."""

    worker: str
    at_s: float
    """Time from the start of the simulation, the warm-up included."""
    down_s: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        check_range("at_s", self.at_s, least=0)
        check_range("down_s", self.down_s, least=1e-9)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """INFERs of some models take a random multiple of what the profile says, whatever the inputs' shapes.

    It is drawn for each request; a batch takes as many times as long as the largest multiple among its own.
    """

    models: str = "*"
    """Pattern of the models' names; several with commas between."""
    kind: str = "bimodal"
    """lognormal or bimodal."""
    sigma: float = 0.5
    """lognormal: standard deviation of the multiple's logarithm, whose median is 1."""
    long_share: float = 0.1
    """bimodal: part of the requests that take long; the others take what the profile says."""
    long_factor: float = 10.0
    """bimodal: how many times as long these take."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        if self.kind not in ("lognormal", "bimodal"):
            raise ValueError(f"kind is {self.kind!r}; choose lognormal or bimodal")
        check_range("sigma", self.sigma, above=0)
        check_range("long_share", self.long_share, above=0, most=1)
        check_range("long_factor", self.long_factor, least=1e-6)


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that are slow for a while, now and then: whether one is slow is a two-state Markov process.

    Both states last for exponentially distributed times. What runs as a spell begins or ends is slow for the
    part of it that lies in the spell.
    """

    devices: str = "*"
    """Pattern of the devices' names, such as ``worker-3``; several with commas between."""
    infer_factor: float = 2.0
    """Factor on the time that EXEC's work takes meanwhile; 1 for as long as usual."""
    load_factor: float = 1.0
    """Factor on the time that LOAD's work takes meanwhile; 1 for as long as usual."""
    every_s: float = 10.0
    """Mean time from one spell's beginning to the next one's."""
    lasts_s: float = 1.0
    """Mean length of a spell."""
    together: bool = False
    """True if all these devices are slow at the same time, as where they share a power supply or a switch."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        for name in ("infer_factor", "load_factor"):
            check_range(name, getattr(self, name), least=1)
        if self.infer_factor == self.load_factor == 1:
            raise ValueError("infer_factor and load_factor are both 1, so that nothing is slow: raise one")
        check_range("lasts_s", self.lasts_s, least=0.001)
        check_range("every_s", self.every_s, above=self.lasts_s)


class FaultsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The deviations of devices from their profiles, and the faults that happen."""

    duration_jitter: float = 0.0003
    """Standard deviation of the logarithm of a duration."""
    slow_probability: float = 0.0
    """Chance that an action takes up to ``slow_ms`` longer."""
    slow_ms: float = 20.0
    engine_error_probability: float = 0.0
    """Chance that an action's engine fails."""
    detection_ms: float = 1000.0
    """Time from a crash until the controller knows of it."""
    open_ms: float = 0.0
    """Time that a device does nothing else while it opens an executable that no model of the start has; 0: it
    opens all beside what it does."""
    crashes: tuple[Crash, ...] = ()
    spreads: tuple[Spread, ...] = ()
    """Models whose durations vary; of several that fit a model the first counts."""
    spells: tuple[Spell, ...] = ()
    """Devices that are slow now and then; of several that fit a device all count, and factors multiply."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        for name in ("duration_jitter", "slow_ms", "detection_ms", "open_ms"):
            check_range(name, getattr(self, name), least=0)
        for name in ("slow_probability", "engine_error_probability"):
            check_range(name, getattr(self, name), least=0, most=1)


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of the network and the devices. Probabilities are for each message or action."""

    delay_ns: int = 100_000
    """One-way delay of every message between gateway, controller and workers."""
    delay_jitter_ns: int = 0
    """Greatest addition to a delay, drawn evenly; messages between two processes stay in order."""
    client_delay_ns: int = 0
    """One-way delay between clients and gateway."""
    input_ns_per_byte: float = 0.0
    """Time of each byte of inputs on a worker's link, one request's after the other's; 1.0 is 1 GB/s."""
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
    """Time from a crash until the controller knows of it."""
    session_losses: tuple[tuple[int, str, int], ...] = ()
    """(instant, worker, notice): the controller gives the worker up, which notices it so much later, forgets
    what it was to do, and joins again with what it holds."""
    open_ns: int = 0
    """Time that a device does nothing else while it opens an executable that no model of the start has. 0: it
    opens all beside what it does."""
    surprising_opens: bool = False
    """True if workers open at PREPARE with ``open_ns``, so that the scheduler does not know of it."""
    spreads: tuple[Spread, ...] = ()
    """Same as in `FaultsSpec`."""
    spells: tuple[Spell, ...] = ()
    """Same as in `FaultsSpec`."""
    worker_loss_notices: bool = False
    """True if the controller tells the gateway of each worker that is gone, as it does live: the gateway then
    submits what it last pushed there again, under new ids. Implies the gateway's core, not its stand-in."""


class SimulationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides a simulation: the same spec gives the same run, unless costs are measured."""

    devices: tuple[DeviceGroup, ...]
    models: tuple[ModelGroup, ...]
    workload: tuple[WorkloadSpec, ...]
    graphs: tuple[GraphGroup, ...] = ()
    families: tuple[FamilyGroup, ...] = ()
    scheduler: SchedulerConfig = SchedulerConfig()
    network: NetworkSpec = NetworkSpec()
    faults: FaultsSpec = FaultsSpec()
    objective: Objective = Objective()
    """Heeded by plans alone."""
    cost: CostSpec = CostSpec()
    processes: ProcessCosts = ProcessCosts()
    """Time that gateway and workers add to a request."""
    warm_up_s: float = 5.0
    """Played before what is counted."""
    duration_s: float = 20.0
    """Time that is counted, from the end of the warm-up."""
    seed: int = 0
    preload: Literal["fill", "popular", "once", "none"] = "fill"
    """Models that devices hold at first. ``fill``: one after the other to each device in turn until each is
    everywhere or nothing more fits; ``popular``: so too, the most requested first; ``once``: each on one."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be."""
        for name in [each for each in ("devices", "models", "workload") if not getattr(self, each)]:
            raise ValueError(f"a simulation needs {name}: give at least one [[{name}]]")
        if not any(group.count for group in self.devices):
            raise ValueError("every count of devices is 0: a simulation needs one device at least")
        check_range("warm_up_s", self.warm_up_s, least=0)
        check_range("duration_s", self.duration_s, least=1e-3)
        check_range("seed", self.seed, least=0)
        alike: dict[str, tuple[float, str | None]] = {}
        for group in self.devices:
            if alike.setdefault(group.kind, (group.speed, group.profiles)) != (group.speed, group.profiles):
                raise ValueError(
                    f"two groups of devices are of kind {group.kind!r} and differ in speed or profiles: "
                    "give one another kind"
                )
        if sum(group.count for group in self.devices) > MOST["count"]:
            raise ValueError(f"all groups of devices have more than {MOST['count']:,} together")
        length_s = self.warm_up_s + self.duration_s
        for models in self.models:
            if models.at_s >= length_s:
                raise ValueError(f"models come at_s = {models.at_s:g}, and the run ends after {length_s:g} s")
        if all(models.at_s for models in self.models):
            raise ValueError("all models come later: give at least one [[models]] without at_s")

    def fault_options(self) -> Faults:
        """Return network and faults as the simulation takes them."""
        network, faults = self.network, self.faults
        return Faults(
            delay_ns=round(network.delay_us * 1e3),
            delay_jitter_ns=round(network.delay_jitter_us * 1e3),
            client_delay_ns=round(network.client_delay_us * 1e3),
            input_ns_per_byte=network.input_ns_per_byte,
            duration_jitter=faults.duration_jitter,
            slow_probability=faults.slow_probability,
            slow_ns=round(faults.slow_ms * 1e6),
            engine_error_probability=faults.engine_error_probability,
            input_loss_probability=network.input_loss_probability,
            output_loss_probability=network.output_loss_probability,
            crashes=tuple(
                (round(each.at_s * 1e9), each.worker, round(each.down_s * 1e9)) for each in faults.crashes
            ),
            spreads=faults.spreads,
            spells=faults.spells,
            detection_ns=round(faults.detection_ms * 1e6),
            open_ns=round(faults.open_ms * 1e6),
        )
