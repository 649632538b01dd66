"""The messages between a client and its gateway, over ZeroMQ (client DEALER, gateway ROUTER).

One message is one multipart: the encoded message, then a frame for each tensor that it announces. The
client chooses ``key``, unique among its requests in flight on the connection, and gets exactly one reply
with it. The first message is `ClientHello`; before it, everything is answered with `ClientRefused`.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.applications import ApplicationReport
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.learning import Observe, Observed
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import AssignWorkers
from mainspring.messages.peers import TensorHeader
from mainspring.messages.status import ClusterStatus


class ClientHello(msgspec.Struct, frozen=True, tag="client_hello"):
    """A client's first message on a connection."""

    protocol: int
    client: str
    """Name that the client gives itself, for the logs."""
    token: str = ""
    """Access token, if the gateway needs one."""
    sent_ns: int | None = None
    """Same as `InferRequest.sent_ns`."""
    goes: bool = False
    """True if the client knows `GoAway`."""


class ClientWelcome(msgspec.Struct, frozen=True, tag="client_welcome"):
    """The gateway accepts the client."""

    protocol: int
    server_version: str
    max_message_bytes: int
    max_in_flight: int
    """Requests that one connection may have in flight."""
    acknowledges: bool = False
    """True if the gateway answers ``acknowledge`` of a request with `Received`."""
    memory_bytes: int = 0
    """The most that `OfferMemory` may offer; 0: nothing, as over ZeroMQ."""


class ClientRefused(msgspec.Struct, frozen=True, tag="client_refused"):
    """The gateway does not accept the client; ``code`` as in `peers.Refused`."""

    code: str
    detail: str


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """A client asks for a sign of life, and its gateway answers with the same."""


class GoAway(msgspec.Struct, frozen=True, tag="go_away"):
    """The client is to send nothing more over this connection, and to make another one, which may lead to
    another gateway: this one is about to stop, or the connection is as old as one may be. What was sent is
    answered. Only to clients that know it (`ClientHello.goes`).
    """

    grace_ns: int
    """Time after which the connection may be ended whatever is in flight."""


class OfferMemory(msgspec.Struct, frozen=True, tag="offer_memory"):
    """The client has memory of its own that its requests may lie in; its descriptor comes along.

    At most once over a framed connection by name, never over ZeroMQ: a descriptor comes along.
    The reply is `MemoryTaken`; requests may name places in it from then on.
    """

    size: int
    """Size of the memory, in bytes."""


class MemoryTaken(msgspec.Struct, frozen=True, tag="memory_taken"):
    """The gateway reads the memory that was offered, or says why not."""

    refusal: str = ""
    """Reason why the gateway does not read it; empty if it does."""


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """The position of a tensor in the client's memory."""

    offset: int
    size: int
    """Size of the tensor, in bytes."""


class InferRequest(msgspec.Struct, frozen=True, tag="infer_request", omit_defaults=True):
    """Run a model on these inputs, all with the request's rows: first, or as `TensorSpec.rows_axis` says."""

    key: int
    model: str
    inputs: tuple[TensorHeader, ...]
    slo_ns: int | None
    """Time from sending this message to the deadline, which is what is left of the caller's SLO; None for
    best effort. Without ``sent_ns`` it counts from arrival at the gateway."""
    outputs: tuple[str, ...] | None = None
    """Names of the outputs wanted; None for all."""
    version: int | None = None
    """Version of the model; None for its default, the highest that is served."""
    traceparent: str = ""
    """The client's span, as W3C Trace Context writes it; empty for none."""
    priority: int = 0
    """Its turn among requests of equal slack: 1 before 2 and so on, 0 behind all."""
    sent_ns: int | None = None
    """Instant at which the request was sent, on any steady clock of the client. The gateway compares it with
    its own clock, message by message, and subtracts from ``slo_ns`` the time for which this message was held
    on its way, compared with the message that was held least."""
    back_ns: int = 0
    """Time that the answer is expected to take from the gateway to the caller. The gateway plans for outputs
    to leave that long before the deadline."""
    acknowledge: bool = False
    """Answer with `Received` as soon as this message is read, beside its one reply."""
    late_outputs: bool = True
    """True if outputs are wanted that come after the deadline and within the gateway's grace."""
    sequence_id: int | str = 0
    """Sequence that the request belongs to, if the model's requests come in sequences; 0 and empty are
    none."""
    sequence_start: bool = False
    """True for the first request of a sequence; it discards what is left of an earlier sequence of this
    id."""
    sequence_end: bool = False
    """True for the last request of a sequence."""
    places: tuple[Stretch | None, ...] = ()
    """Position of each input in the memory that was offered, None if its bytes are the next frame; empty if
    all are frames. They may be read until the reply has come: what is written there before may show in this
    request's answer, and in no other."""
    at_least: float = 0.0
    """Least score of the member of a family that is to answer; 0: any may."""
    context: str = ""
    """The user or session whose state an application answers by; empty: the application's own."""


class Received(msgspec.Struct, frozen=True, tag="received"):
    """The gateway has read the request of this key, and so all that was sent before it."""

    key: int


class StepTiming(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time that a step of a graph took; of its pieces, the one that ended last."""

    name: str
    rows: int = 0
    """Rows that took part; 0 of a step that was skipped since none did."""
    missing: bool = False
    """True if the answer was made without it."""
    begin_ns: int = 0
    """Time from the request's arrival until all that the step waited for was there."""
    end_ns: int = 0
    """Time from the request's arrival until its last outputs were at the gateway."""
    queue_ns: int = 0
    """Time from its begin to the controller's dispatch."""
    execute_ns: int = 0
    batch_size: int = 0
    worker: str = ""
    model: str = ""
    """The member that answered, of a step that names a family."""


class Learnt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a reply that an application gives beside its answer."""

    query_id: int
    """Under which feedback finds the answer: `Observe`."""
    models: tuple[str, ...] = ()
    """Members that it was made of."""
    missing: tuple[str, ...] = ()
    """Members that were asked and whose output did not come in time; their averages stand in for them."""
    defaults: int = 0
    """Rows that have the default, because too few members agree."""
    shared: bool = False
    """True if the store did not tell the context's state in time, and the shared one stood in for it."""


NOTHING_LEARNT = Learnt(0)


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time that a request took, by parts that add up to ``total_ns``."""

    total_ns: int
    """Time from the request's first bytes at the gateway to its outputs there."""
    queue_ns: int
    """Time from arrival at the gateway to the controller's dispatch, without its LOAD."""
    execute_ns: int
    """EXEC's duration, of the whole batch; of a request that shares an execution under way, what was left of
    it; 0 for cached outputs."""
    left_ns: int | None
    """Time to the deadline when the reply left the gateway; negative if late; None for best effort."""
    batch_size: int
    """0 for cached outputs."""
    cold_start: bool
    worker: str
    """Empty for cached outputs."""
    cached: bool = False
    """True if the gateway had the outputs from an earlier request of equal inputs."""
    receive_ns: int = 0
    """Time from its first bytes until it was there whole and had been read, over HTTP and gRPC."""
    input_ns: int = 0
    """Time from the dispatch until its inputs were in the worker's memory: the transfer, and copying."""
    load_ns: int = 0
    """The LOAD that it found the model resident nowhere for, as far as it took place since its arrival."""
    wait_ns: int = 0
    """Time on the worker from then to EXEC's begin, without its LOAD."""
    output_ns: int = 0
    """Time from EXEC's end to its outputs at the gateway: copying, and the transfer. For cached outputs, the
    time of finding them."""
    steps: tuple[StepTiming, ...] = ()
    """Steps of a graph, in the order in which they may run. The other parts are then those of what
    ended last, with all before it in ``queue_ns``."""
    learnt: Learnt | None = None
    """Set of an application."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the steps that the answer was made without, since they could not be in time."""
        return tuple([each.name for each in self.steps if each.missing])


class InferReply(msgspec.Struct, frozen=True, tag="infer_reply", omit_defaults=True):
    """A request's outputs."""

    key: int
    outputs: tuple[TensorHeader, ...]
    timing: Timing
    sent_ns: int | None = None
    """Instant at which the reply left, on the gateway's clock: from it the client learns how long the way
    back takes."""


class ErrorReply(msgspec.Struct, frozen=True, tag="error_reply", omit_defaults=True):
    """A request, or any other message with a key, failed."""

    key: int
    reason: Reason
    detail: str
    earliest_finish_left_ns: int | None = None
    """Time from sending this reply to the earliest finish that was possible, where it is known."""
    sent_ns: int | None = None
    """Same as `InferReply.sent_ns`."""


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel_request"):
    """Give the request of this key up; its one reply says ``cancelled`` unless outputs came first."""

    key: int


class EndSequence(msgspec.Struct, frozen=True, tag="end_sequence"):
    """Drop the state of a sequence once its requests have their replies; the reply is `Done`.

    For clients that don't know, as they send a request, that it is the last.
    """

    key: int
    model: str
    sequence_id: int | str
    version: int | None = None


class ListModels(msgspec.Struct, frozen=True, tag="list_models"):
    """Ask for the list of models that are served."""

    key: int


class ModelList(msgspec.Struct, frozen=True, tag="model_list"):
    """The models that this gateway serves, by name."""

    key: int
    models: tuple[ModelSpec, ...]


class AddModel(msgspec.Struct, frozen=True, tag="add_model"):
    """Serve this model; its artifact must be in the workers' stores."""

    key: int
    model: ModelSpec


class RemoveModel(msgspec.Struct, frozen=True, tag="remove_model"):
    """Stop serving this model; its queued requests are rejected."""

    key: int
    name: str


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Have this many workers of a kind from now on; `Done` says that it is decided, not that it is so."""

    key: int
    kind: str
    count: int
    shard: int | None = None
    """Number of the controller that is to have as many, if there are several; required then."""


class BoundQueue(msgspec.Struct, frozen=True, tag="bound_queue"):
    """Have at most this many requests wait for a model from now on; `Done` says that it is so."""

    key: int
    name: str
    """Name by which clients call the model."""
    size: int | None
    """Most requests that may wait; None for what the configuration says."""


class WeighModel(msgspec.Struct, frozen=True, tag="weigh_model"):
    """Have an answer of a model in time count as this many others' from now on; `Done` says that it is so."""

    key: int
    name: str
    """Name by which clients call the model."""
    weight: float | None
    """Weight of an answer in time; None for what the configuration says."""


class TopK(msgspec.Struct, frozen=True, tag="top_k", omit_defaults=True):
    """Ask an application with the policy `linear` for the best items; the reply is `BestItems`."""

    key: int
    application: str
    k: int
    items: tuple[int, ...] | None = None
    """Numbers of the items among which they are; None: all."""
    context: str = ""
    """User whom they are for; empty: whoever is new."""


class BestItems(msgspec.Struct, frozen=True, tag="best_items", omit_defaults=True):
    """The best items, the best first."""

    key: int
    query_id: int
    """Under which feedback finds them (`Observe`); its rows are their places."""
    items: tuple[int, ...]
    scores: tuple[float, ...]
    random: int = -1
    """Place of an item that was drawn, whatever its score; -1 if none was."""
    version: int = 1
    """The table and weights that gave them."""


class AddGraph(msgspec.Struct, frozen=True, tag="add_graph"):
    """Serve a graph of models; one of its name that is there is replaced."""

    key: int
    graph: GraphSpec
    check: bool = False
    """True to only say whether it makes sense with the models that are served."""


class RemoveGraph(msgspec.Struct, frozen=True, tag="remove_graph"):
    """Serve a graph no more; requests that have come are answered."""

    key: int
    name: str


class ListGraphs(msgspec.Struct, frozen=True, tag="list_graphs"):
    """Ask for the graphs of models that are served."""

    key: int


class ServedGraph(msgspec.Struct, frozen=True):
    """A graph that clients may ask for."""

    graph: GraphSpec
    fault: str = ""
    """Reason why requests for it are refused now; empty if they are not."""


class GraphList(msgspec.Struct, frozen=True, tag="graph_list"):
    """The served graphs, by name."""

    key: int
    graphs: tuple[ServedGraph, ...]


class ListApplications(msgspec.Struct, frozen=True, tag="list_applications"):
    """Ask for the applications, and what this gateway has learnt of them."""

    key: int


class ApplicationList(msgspec.Struct, frozen=True, tag="application_list"):
    """The applications, by name."""

    key: int
    applications: tuple[ApplicationReport, ...]


class ForgetContext(msgspec.Struct, frozen=True, tag="forget_context"):
    """Erase what an application has learnt of a context, and the answers that wait for its feedback."""

    key: int
    application: str
    context: str


class GetStatus(msgspec.Struct, frozen=True, tag="get_status"):
    """Ask for the state of the cluster."""

    key: int


class StatusReply(msgspec.Struct, frozen=True, tag="status_reply"):
    """The cluster at one moment."""

    key: int
    status: ClusterStatus
    places: dict[str, str] = {}
    """Addresses of the cluster's other listeners, as far as the gateway knows them: ``controller``, ``http``,
    ``grpc``, ``metrics``, ``console``."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The change that was asked for is made."""

    key: int


FromClient = (
    ClientHello
    | Alive
    | OfferMemory
    | InferRequest
    | CancelRequest
    | EndSequence
    | ListModels
    | AddModel
    | RemoveModel
    | Scale
    | BoundQueue
    | WeighModel
    | AssignWorkers
    | AddGraph
    | Observe
    | TopK
    | RemoveGraph
    | ListGraphs
    | ListApplications
    | ForgetContext
    | GetStatus
)
ToClient = (
    ClientWelcome
    | ClientRefused
    | Alive
    | GoAway
    | MemoryTaken
    | Received
    | InferReply
    | ErrorReply
    | ModelList
    | GraphList
    | ApplicationList
    | StatusReply
    | Observed
    | BestItems
    | Done
)
