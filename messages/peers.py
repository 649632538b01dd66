"""The messages between gateways, workers and the controller.

The controller listens; workers and gateways connect to it, and gateways to each worker's *data address*:
tensors never pass through the controller. A message's parts are itself, encoded, and its tensors' bytes.
A peer says hello first, and again where `Refused` of code ``unknown_session`` says that it is not known.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.codes import Reason
from mainspring.messages.durations import OutputTimes as OutputTimes  # noqa: PLC0414
from mainspring.messages.events import Resident
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.leading import Deposed as Deposed  # noqa: PLC0414
from mainspring.messages.leading import Leads as Leads  # noqa: PLC0414
from mainspring.messages.learning import AboutFeedback, GatewayLearning
from mainspring.messages.limits import TokenParts, TokensUsed
from mainspring.messages.metrics import ClusterMetrics, DeviceHealth
from mainspring.messages.model import Artifact, ModelSpec
from mainspring.messages.operating import MoveWorker, OfClients
from mainspring.messages.queries import Chosen, Piece, QueryStep, StepsKnown
from mainspring.messages.scaling import FromProvider, Notice, Provide
from mainspring.messages.served import Awaited, ServedModel, Told
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus

# --- any peer and the controller ---


class AnyHello(msgspec.Struct, frozen=True):
    """The fields that the hello of every version of the protocol has, past and to come."""

    type: str
    protocol: int


class WorkerHello(msgspec.Struct, frozen=True, tag="worker_hello"):
    """A worker's first message, and its first again after each `Refused`."""

    protocol: int
    worker: str
    device_kind: str
    pages: int
    page_bytes: int
    data_address: str
    """Address of its data socket, which gateways connect to."""
    prepared: dict[str, Artifact] = {}
    resident: tuple[Resident, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the operator on what the worker lacks (no real-time priority, memory not locked)."""
    sent: str = ""
    """`MOVED` or `AGAIN` (`sharding`) if another controller sent it here; empty if none did."""
    targets: tuple[str, ...] = ()
    """Targets of the artifacts that it runs, the best first (`messages.targets`); empty: any."""
    again: bool = False
    """True if this process has been welcomed before: it has not ended since."""
    epoch: int = 0
    """The highest epoch of a controller that has welcomed this process; 0 for none."""


class GatewayHello(msgspec.Struct, frozen=True, tag="gateway_hello"):
    """A gateway's first message, and its first again after each `Refused`."""

    protocol: int
    gateway: str
    epoch: int = 0
    seed: int = 0
    """The upper bits of its answers' ids (`learning.answered_by`); 0: it has no applications."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The controller accepts the peer. The ids of a gateway's requests hold ``number`` (`messages.ids`)."""

    protocol: int
    number: int
    epoch: int = 0
    """The leader's epoch (`controller.lease`), which the ids of its actions hold (`messages.ids`). A peer of
    several controllers obeys the highest that has welcomed it."""
    gateways: int = 1
    """Number of gateways that share the limits of tokens with this one; 0: it waits for its parts
    (`limits`)."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The message was not accepted; ``code`` is one of protocol_mismatch, unknown_session, bad_message,
    name_taken, bad_page_size, unreachable, too_many_peers, standby."""

    code: str
    detail: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The controller asks a peer for a sign of life and for its clock."""

    sequence: int
    sent_ns: int


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Answer to a `Ping`, with instants on the answering peer's clock."""

    sequence: int
    ping_sent_ns: int
    received_ns: int
    sent_ns: int
    dropped: dict[str, int] = {}
    """Messages that a worker could not use or deliver since it started, by why."""
    health: DeviceHealth | None = None
    """Report of the monitor of a worker's GPU, if it has one."""
    refused: dict[str, int] = {}
    """Requests that a gateway has refused since it started and that no controller saw, by `Reason`."""


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """A peer leaves in good order (to the controller), or is to leave (from it)."""

    detail: str


# --- worker to controller, beside what any peer says, and back ---


class Restored(msgspec.Struct, frozen=True, tag="restored"):
    """The files of a model that could not be prepared or loaded have changed; ``model`` is what they say."""

    model: ModelSpec


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """The controller asks for the specifications of models that the worker has prepared."""

    models: tuple[str, ...]


class Greet(msgspec.Struct, frozen=True, tag="greet"):
    """The worker belongs to another controller: it is to say hello there from now on."""

    controller: str
    """Its address."""
    again: bool = False
    """True if it was sent there before."""


class Described(msgspec.Struct, frozen=True, tag="described"):
    """Answer to `Describe`, without those that are not prepared (any more)."""

    models: tuple[ModelSpec, ...]


# --- gateway to controller ---


class Arrival(msgspec.Struct, frozen=True, tag="arrival", omit_defaults=True):
    """A request was accepted: its time left, never an instant of the gateway's own clock."""

    request_id: int
    model: str
    rows: int
    left_ns: int | None
    """Time from sending this message to the deadline; None for a best-effort request."""
    priority: int = 0
    """Same as `events.RequestArrived.priority`."""
    sizes: tuple[int, ...] = ()
    """Same as `events.RequestArrived.sizes`."""
    query: int = 0
    """Same as `events.RequestArrived.query`."""
    step: int = 0
    """Same as `events.RequestArrived.step`."""
    tenant: str = ""
    """Same as `events.RequestArrived.tenant`."""


class QueryArrival(msgspec.Struct, frozen=True, tag="query_arrival", omit_defaults=True):
    """A query was accepted: its shape, and the pieces that wait for no others. Further ones, and those that
    have to run again, come as an `Arrival`.

    A rejection of the query ends all its pieces, and so does a `Cancel`.
    """

    query_id: int
    left_ns: int | None
    """Same as `Arrival.left_ns`."""
    steps: tuple[QueryStep, ...]
    pieces: tuple[Piece, ...]
    priority: int = 0
    """Same as `events.RequestArrived.priority`."""
    graph: str = ""
    """Same as `events.QueryArrived.graph`."""
    tenant: str = ""
    """Same as `events.RequestArrived.tenant`."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The request, or the query, is answered or unwanted."""

    request_id: int


class AdminRequest(msgspec.Struct, frozen=True, tag="admin_request"):
    """A client's request to change or see the cluster, passed on by its gateway."""

    token: int
    """Chosen by the gateway; comes back with the answer."""
    add: ModelSpec | None = None
    remove: str | None = None
    status: bool = False
    metrics: bool = False
    """A gateway's own: it is being scraped."""
    serve: ServedModel | None = None
    """Have every gateway take requests for this name to these models from now on."""
    load: str | None = None
    """Load this model once a LOAD executor is idle: the model repository is about to serve it."""
    operate: OfClients | None = None
    """Have this many workers of a kind, or of a model's own, or bound a model's queue, or weigh its answers,
    or serve a graph."""
    drain: bool = False
    """True if ``remove`` waits until no gateway has a request for the model in flight, instead of taking
    effect at once."""
    moves: bool = False
    """Same as `ModelDown.moves`, with ``drain``."""
    shard_map: ShardMap | None = None
    """Have every gateway route by this map from now on; only for the first of several controllers."""
    move_worker: MoveWorker | None = None
    """Send a worker to another controller, once it has ended what it was told to do."""


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """The gateway has no request for the model in flight, and takes none."""

    name: str


# --- controller to gateway ---


class WorkerUp(msgspec.Struct, frozen=True, tag="worker_up"):
    """A worker takes inputs at this address from now on."""

    worker: str
    data_address: str


class WorkerDown(msgspec.Struct, frozen=True, tag="worker_down"):
    """A worker is gone."""

    worker: str


class ModelUp(msgspec.Struct, frozen=True, tag="model_up"):
    """Requests for the model may be accepted from now on."""

    model: ModelSpec


class ModelDown(msgspec.Struct, frozen=True, tag="model_down"):
    """Requests for the model are to be refused from now on."""

    name: str
    drain: bool = False
    """The gateway is to say `Drained` once those that it took before are answered."""
    moves: bool = False
    """Another shard is to have the model: until it does, the gateway takes requests for it to this one."""


class Served(msgspec.Struct, frozen=True, tag="served"):
    """Requests for a repository's model are for these versions from now on."""

    model: ServedModel


class DefaultSlo(msgspec.Struct, frozen=True, tag="default_slo"):
    """An operator says which SLO requests for a model have that bring none over HTTP or gRPC."""

    model: str
    """Name by which clients call the model."""
    slo_ns: int | None = None
    """SLO of such requests, in nanoseconds; None for what the configuration says."""


class Graph(msgspec.Struct, frozen=True, tag="graph"):
    """Clients may ask for a graph of models by this name from now on."""

    name: str
    graph: GraphSpec | None = None
    """None: they may not any more."""
    shares: dict[str, float] = {}
    """Rows of each step for each row of a request, in the mean of earlier queries, by the step's name; none
    where it is 1."""


class Dispatch(msgspec.Struct, frozen=True, tag="dispatch"):
    """Send these requests' inputs to the worker, for this action."""

    action_id: int
    worker: str
    request_ids: tuple[int, ...]
    cold: tuple[bool, ...]
    batch_size: int


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The request will not be served."""

    request_id: int
    reason: Reason
    detail: str
    earliest_finish_left_ns: int | None = None
    """Time from sending this message to the earliest finish that was possible."""


class AdminReply(msgspec.Struct, frozen=True, tag="admin_reply"):
    """Answer to an `AdminRequest`: neither error, status nor metrics means done."""

    token: int
    reason: Reason | None = None
    detail: str = ""
    status: ClusterStatus | None = None
    metrics: ClusterMetrics | None = None


# --- gateway to worker, and back ---


class TensorHeader(msgspec.Struct, frozen=True, array_like=True):
    """The name, type and shape of the tensor in a frame of bytes, which are C-contiguous and
    little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Segment(msgspec.Struct, frozen=True, tag="segment"):
    """Memory of the sender's that the other end, on the same host, may read; its descriptor comes along.

    A gateway sends it first, and names places in it once the worker has answered with one of its own.
    """

    size: int
    """Size of the memory, in bytes; 0 without a descriptor, from a worker whose outputs come as frames."""


class ClientSegment(msgspec.Struct, frozen=True, tag="client_segment"):
    """Memory of a client's of this host; its descriptor comes along. Places may name it from the worker's
    `ClientSegmentTaken` on, until `ClientSegmentOver`."""

    number: int
    """Number of the memory, from 1 on; no other has it over this connection."""
    size: int
    """Size of the memory, in bytes."""


class ClientSegmentTaken(msgspec.Struct, frozen=True, tag="client_segment_taken"):
    """A worker's answer to `ClientSegment`."""

    number: int
    refusal: str = ""
    """Reason why it does not read this memory; empty if it does."""


class ClientSegmentOver(msgspec.Struct, frozen=True, tag="client_segment_over"):
    """No place names this memory any more."""

    number: int


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The position of a tensor in the sender's segment (`transport.slab`), or in a client's."""

    offset: int
    size: int
    """Size of the tensor, in bytes."""
    slot: int
    stamp: int
    """Value that the segment's table has in this slot for as long as the place is the tensor's. A client's
    segment has no table: slot and stamp are 0."""
    client: int = 0
    """The client's segment by its number; 0 for the sender's own."""


class Input(msgspec.Struct, frozen=True, tag="input"):
    """One request's inputs for an action, in the model's order: each has a place, or a frame follows."""

    action_id: int
    request_id: int
    withdrawn: bool = False
    """The request is already answered: no frames follow, its rows stay zero, no outputs are wanted."""
    places: tuple[Place | None, ...] = ()
    """Place of each input, None if its bytes are the next frame; empty if all are frames."""
    read: tuple[int, ...] = ()
    """Same as `Read.stamps`."""


class Read(msgspec.Struct, frozen=True, tag="read"):
    """The gateway reads these places of the worker's segment no more."""

    stamps: tuple[int, ...]


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The worker reads no place any more that the first ``inputs`` messages with places have named."""

    inputs: int


class Output(msgspec.Struct, frozen=True, tag="output"):
    """One request's outputs; a frame follows for each, in the order of the model's outputs.

    Those that lie in the worker's segment have a place instead. The bytes of an output that varies begin with
    the sizes that the run found (`model.FOUND_BYTES`).
    """

    action_id: int
    request_id: int
    execute_ns: int
    """EXEC's duration."""
    times: OutputTimes | None = None
    """Parts of the request's time on the worker; None from a release that does not report them."""
    places: tuple[Place | None, ...] = ()
    """Place of each output, None if its bytes are the next frame; empty if all are frames."""
    taken: int = 0
    """Same as `Taken.inputs`."""


FromGateway = Segment | ClientSegment | ClientSegmentOver | Input | Read
"""Messages that a worker may receive from a gateway."""

FromWorker = Segment | ClientSegmentTaken | Output | Taken
"""Messages that a gateway may receive from a worker."""

ToController = (
    WorkerHello
    | GatewayHello
    | Pong
    | Goodbye
    | Deposed
    | Restored
    | Described
    | ShardMap
    | Arrival
    | QueryArrival
    | StepsKnown
    | Cancel
    | AdminRequest
    | Awaited
    | Drained
    | GatewayLearning
    | AboutFeedback
    | TokensUsed
    | FromProvider
)
"""Messages that a controller may receive, beside a worker's `Result`."""

ToWorker = Welcome | Refused | Ping | Goodbye | Leads | Describe | Greet
"""Messages that a worker may receive from the controller, beside an action."""

ToProvider = Welcome | Refused | Ping | Goodbye | Provide | Notice
"""Messages that a provider of workers may receive from the controller."""

ToGateway = (
    Welcome
    | Refused
    | Ping
    | Goodbye
    | Leads
    | WorkerUp
    | WorkerDown
    | ModelUp
    | ModelDown
    | Served
    | Told
    | DefaultSlo
    | Graph
    | ShardMap
    | Dispatch
    | Rejected
    | Chosen
    | AdminReply
    | AboutFeedback
    | TokenParts
)
"""Messages that a gateway may receive from the controller."""
