"""The answers of the console's queries, as the page, the terminal and scripts get them.

Instants are nanoseconds on the controller's monotonic clock (`Head.unix_ns` relates it to the calendar);
identifiers of requests are decimal strings, since JavaScript's numbers do not hold 64 bits.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.scaling import KindStatus


class Head(msgspec.Struct, frozen=True):
    """The subject and instant of each picture."""

    now_ns: int
    """Instant of the last record that is in the picture."""
    unix_ns: int
    """The same instant as Unix time."""
    state: str
    """``live``, ``catching_up``, ``connecting`` (the controller does not answer) or ``recorded``."""
    policy: str = ""
    first_ns: int = 0
    """The earliest instant that can be shown."""
    operable: bool = False
    """True if an operator with a token may ask for changes here."""
    shard: int = 0
    """Shard of this controller, if there are several."""
    shards: tuple[str, ...] = ()
    """Addresses of the consoles of all of them; empty if there is one."""


class Attainment(msgspec.Struct, frozen=True):
    """Requests that ended within some time, and how."""

    seconds: float
    offered_rps: float
    in_time_rps: float
    """Goodput; best-effort requests count as in time."""
    late: int
    rejected: dict[str, int]
    """Number of rejected requests by reason code."""
    turned_away: dict[str, int]
    """Number of requests that gateways refused themselves, by reason code: the controller never saw them, and
    no other count has them."""
    cold: int
    p50_ms: float | None
    p99_ms: float | None
    p9999_ms: float | None
    """Latency from arrival at the controller to the end of EXEC; None where nothing ended."""
    slo_p50_ms: float | None
    """Median of the time that requests were given; None where none had a deadline."""


class Series(msgspec.Struct, frozen=True):
    """One number for each whole second, oldest first."""

    first_ns: int
    offered: list[int]
    in_time: list[int]
    late: list[int]
    rejected: list[int]
    turned_away: list[int]
    """Requests that gateways refused themselves, as in `Attainment.turned_away`."""
    cold: list[int]
    p99_ms: list[float | None]


class Overview(msgspec.Struct, frozen=True):
    """A whole recorded run: one number for each step of it, oldest first."""

    first_ns: int
    step_ns: int
    reached_ns: int
    """Instant up to which the run has been read: what comes later is not counted yet."""
    whole: bool
    """True if that is the end of the run."""
    offered: list[int]
    in_time: list[int]
    late: list[int]
    rejected: list[int]
    p99_ms: list[float | None]


class Clock(msgspec.Struct, frozen=True):
    """The difference between a worker's clock and the controller's."""

    offset_ms: float
    error_us: float
    """Bound of the offset's error: windows of the worker's actions end earlier by as much."""
    rate_ppm: float
    """Rate at which it gains on the controller's, in microseconds per second."""


class WorkerPicture(msgspec.Struct, frozen=True):
    """One worker at one moment."""

    name: str
    device_kind: str
    state: str
    """``serving``, ``draining``, ``silent`` (it gives no sign of life) or ``gone``."""
    pages: int
    pages_free: int
    resident: int
    prepared: int
    outstanding: int
    exec_busy: float
    """Share of the last 10 s."""
    load_busy: float
    infer_error_p99_us: float | None
    """p99 of |predicted - actual| duration over its last INFERs."""
    failed: dict[str, int]
    """Actions that did not end well, by ``KIND status``."""
    last_result_ns: int | None
    detail: str = ""
    """Reason why it is gone, or whatever else a person should know."""
    load_error_p99_us: float | None = None
    """p99 of |predicted - actual| duration over its last LOADs."""
    targets: list[str] = []
    """Targets of the artifacts that it runs, the best first; empty: any."""
    clock: Clock | None = None
    """None where it is gone, or where a recorded run is shown."""


class RequestLine(msgspec.Struct, frozen=True):
    """One request in a list."""

    id: str
    model: str
    arrived_ns: int
    outcome: str
    """``waiting``, ``running``, ``in_time``, ``late``, ``rejected``, ``cancelled`` or ``lost``."""
    reason: str = ""
    detail: str = ""
    latency_ms: float | None = None


class Cluster(msgspec.Struct, frozen=True):
    """Query ``cluster``."""

    last_10s: Attainment
    last_60s: Attainment
    last_300s: Attainment
    series: Series
    workers: list[WorkerPicture]
    models: int
    queued: int
    recent: list[RequestLine]
    """The newest rejected and late requests, newest first."""
    operations: list[OperationLine] = []
    """Commands of operators, newest first."""
    happenings: list[HappeningLine] = []
    """Events of workers and of the controller, newest first."""
    kinds: list[KindStatus] = []
    """Kinds of workers that a provider starts and stops."""
    awaited: dict[str, str] = {}
    """Models that are to be served and are not yet, by what clients call them, each with why."""
    awaited_more: int = 0
    """Number of these that ``awaited`` leaves out."""


class HappeningLine(msgspec.Struct, frozen=True):
    """One thing that happened to a worker or to the controller."""

    at_ns: int
    kind: str
    """``gone``, ``back``, ``silent``, ``stopping``, ``drained``, ``resumed``, ``slow``, ``failed`` or
    ``controller``; of models ``added`` or ``removed``, of gateways ``refused``."""
    worker: str
    """Empty for the controller, for models and for gateways."""
    text: str


class OperationLine(msgspec.Struct, frozen=True):
    """One thing an operator did."""

    at_ns: int
    who: str
    what: str


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """Adjacent pages of one owner."""

    first: int
    count: int
    model: int
    """Index into `Memory.models`; -1 for free pages."""
    state: str
    """``resident``, ``loading`` or ``free``."""


class Eviction(msgspec.Struct, frozen=True):
    """A model that gave its pages up."""

    at_ns: int
    model: str
    pages: int
    for_model: str
    """Model that was loaded into its pages next; empty while none was."""


class Memory(msgspec.Struct, frozen=True):
    """Query ``memory`` of one worker."""

    worker: str
    pages: int
    pages_free: int
    page_bytes: int
    models: list[str]
    extents: list[Extent]
    """Every page is in exactly one, in the order of pages."""
    last_used_ns: list[int | None]
    """Instant of the last use of each of ``models``."""
    evictions: list[Eviction]
    """Newest first."""


class ActionLine(msgspec.Struct, frozen=True, array_like=True):
    """One action on an executor's track; an instant that is not known yet is None."""

    id: int
    lane: int
    """Index into `Schedule.lanes`."""
    kind: str
    """``INFER``, ``LOAD``, ``OPEN``, ``UNLOAD``, ``PREPARE`` or ``RELEASE``."""
    model: str
    batch_size: int
    rows: int
    requests: list[str]
    """Ids of its requests, at most 16."""
    sent_ns: int
    earliest_ns: int
    latest_ns: int
    predicted_begin_ns: int
    predicted_end_ns: int
    begin_ns: int | None
    end_ns: int | None
    status: str
    """Empty while outstanding, else a `messages.codes.Status`, or ``lost`` if it went with its worker."""
    detail: str = ""
    why: str = ""
    """Reason for a LOAD, for a person, and the first of the models that were evicted for it; empty of other
    actions."""
    evicted: list[str] = []
    """Models that were evicted for a LOAD, at most 16."""
    device_ns: int | None = None
    """The device's part of its duration, of an INFER or a LOAD that ended well; the rest is the host's. None
    where it is not known."""


class Lane(msgspec.Struct, frozen=True):
    """One executor."""

    worker: str
    executor: str
    """``EXEC``, ``LOAD`` or ``OTHER``."""


class Waiting(msgspec.Struct, frozen=True):
    """The requests of one model that wait for an INFER."""

    model: str
    requests: int
    deadline_ns: int | None
    """The earliest deadline among them; None if none has one."""
    slack_ns: int | None
    """Time that is left until then after INFER, and LOAD where the model is resident nowhere, by the
    estimates."""
    workers: list[str]
    """Workers on which the model is resident or being loaded."""


class Schedule(msgspec.Struct, frozen=True):
    """Query ``schedule``: actions that lie in ``[from_ns, to_ns]``, past and planned."""

    from_ns: int
    to_ns: int
    lanes: list[Lane]
    actions: list[ActionLine]
    version: int
    """Ask with ``after=version`` for what changed since; the actions that did come whole."""
    truncated: bool = False
    """True if there were more actions than fit a picture; the newest are included."""
    whole: bool = True
    """True if these are all the actions in the span and replace what was known; False if they are only those
    that changed since ``after``."""
    happenings: list[HappeningLine] = []
    """Events of these workers and of the controller, newest first; unless `whole`, only those in the span."""
    waiting: list[Waiting] = []
    """Requests that wait at `Head.now_ns`, the least slack first, unless that instant lies behind the
    span."""
    waiting_requests: int = 0
    """Number of requests that wait in all."""


class ModelLine(msgspec.Struct, frozen=True):
    """One model in the table."""

    name: str
    pages: int
    resident_on: list[str]
    loading_on: list[str]
    prepared_on: int
    failed_on: int
    queued: int
    demand_rps: float
    """Arrivals over the last 10 s."""
    in_time: int
    late: int
    rejected: int
    cold: int
    """The four over the last 300 s at most."""
    last_load_ns: int | None
    infer_ms: dict[int, float]
    """Estimate or profile by batch size, of the device kind that most workers have."""
    pinned: bool = False
    slo_ms: float | None = None
    """Default SLO that an operator set."""
    loads_pm: float = 0.0
    evictions_pm: float = 0.0
    """LOADs sent and pages given up, a minute, over the last 300 s at most."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    """Latency of its newest requests (128 at most) that were executed; None where there were none."""
    thrashes: bool = False
    """True if it was evicted at least three times over those 300 s and loaded again after most of them."""
    erratic: bool = False
    """True if the 99th percentile of its durations exceeded three times their median."""


class Models(msgspec.Struct, frozen=True):
    """Query ``models``: a part of the sorted, searched table."""

    total: int
    """Models that the search found."""
    offset: int
    rows: list[ModelLine]


class Step(msgspec.Struct, frozen=True):
    """One thing that happened to a request, or was decided about it."""

    at_ns: int
    what: str
    """``arrived``, ``planned``, ``sent``, ``loaded``, ``opened``, ``overdue``, ``began``, ``ended``,
    ``rejected``, ``cancelled``, ``retried`` or ``lost``."""
    text: str
    action: int | None = None


class Alternative(msgspec.Struct, frozen=True):
    """The option of one worker for a request at the instant of the choice."""

    worker: str
    chosen: bool
    feasible: bool
    finish_ns: int | None
    """Earliest predicted end there; None if it could not run the model at all."""
    text: str
    """Explanation for a person: resident or not, busy until when with what, LOAD needed, how long it
    takes."""


class Story(msgspec.Struct, frozen=True):
    """Query ``request``: one request explained."""

    id: str
    model: str
    rows: int
    priority: int
    arrived_ns: int
    deadline_ns: int | None
    outcome: str
    reason: str
    summary: str
    """One sentence: whether it made it, and why."""
    earliest_finish_ns: int | None
    steps: list[Step]
    decided_ns: int
    """Instant of the choice that `alternatives` are about."""
    alternatives: list[Alternative]
    """Options that the scheduler compared: for a request that was sent, the worker that got it; for one that
    was rejected, the best worker and some others; for one that waits, the same as of now. Empty if workers
    had nothing to do with it."""
    more: int = 0
    """Number of workers that are left out of them."""


class ApplicationMember(msgspec.Struct, frozen=True):
    """A member of an application, as all gateways know it together."""

    name: str
    weight: float
    """Mean of the gateways' weights, by how often each asked it."""
    loss: float | None
    judged: int
    asked: int
    missing: int
    fault: str
    weights: list[float | None]
    """Weight in each second from `ApplicationPicture.first_ns` on; None where nothing was told."""


class ApplicationPicture(msgspec.Struct, frozen=True):
    """An application, as all gateways know it together; its counts are as of `ApplicationReport`."""

    name: str
    policy: str
    kind: str
    context: bool
    gateways: list[str]
    fault: str
    requests: int
    rows: int
    defaults: int | None
    """None where it has no default."""
    missing: int
    confidence: float | None
    loss: float | None
    judged: int
    regret: float | None
    joined: int
    late: int
    duplicate: int
    unknown: int
    policy_failed: int
    contexts: int
    """The most that one gateway has in memory."""
    waiting: int
    versions: list[int]
    """Versions that serve, of policy `linear`."""
    members: list[ApplicationMember]
    first_ns: int


class Applications(msgspec.Struct, frozen=True):
    """Query ``applications``."""

    applications: list[ApplicationPicture]
    more: int
    """Number of applications that gateways left out."""
