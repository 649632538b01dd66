"""The blocking client: one connection, any number of threads, many requests in flight."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mainspring.client.address import gateway_addresses
from mainspring.client.applications import ApplicationCalls
from mainspring.client.catalog import InputTypes, Models
from mainspring.client.channel import Channel, PerProcess
from mainspring.client.deadlines import AnyDeadline, Deadline, deadline_of, slo_nanoseconds, within
from mainspring.client.errors import (
    GatewayUnreachable,
    InvalidRequest,
    MainspringError,
    OfOneProcess,
    TimedOut,
    Unavailable,
    kind_of,
)
from mainspring.client.memory import MEMORY_BYTES, ClientMemory, allocate
from mainspring.client.requests import MAX_UNREAD_BYTES, Call, InferCall, Outbox
from mainspring.client.result import InferResult, check_mapping, is_plain, to_tensors
from mainspring.client.scaling import shares
from mainspring.client.sequences import NOWHERE, Place, Places, Sequence
from mainspring.messages import clients
from mainspring.messages.clients import ServedGraph
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec, read_graph
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import AssignWorkers
from mainspring.messages.status import ClusterStatus
from mainspring.messages.tables import ConfigError

if TYPE_CHECKING:
    from mainspring.client.failover import Gateways

_ADMIN_GUARD_S = 15.0


class Arguments(NamedTuple):
    """The arguments of one `Client.infer`."""

    called_ns: int
    """Instant of the call, on `time.monotonic_ns`."""
    model: str
    inputs: Mapping[str, ArrayLike]
    slo_ms: float | None
    slo: str | timedelta | None
    outputs: Ordered[str] | None
    version: int | None
    priority: int
    traceparent: str
    deadline_ns: int | None
    """The earliest that others set: of the call, and of the blocks that it is in."""
    place: Place = NOWHERE
    at_least: float = 0.0
    context: str = ""

    @property
    def slo_ns(self) -> int | None:
        """Return the time from its call to its deadline, None for best effort; raises as `Client.infer`."""
        return within(self.called_ns, slo_nanoseconds(self.slo_ms, self.slo), self.deadline_ns)


UNBOUNDED_S = 10 * 365 * 86_400.0
"""Time for which a request without a deadline is awaited; while the gateway is there, it is answered."""


class _Link(NamedTuple):
    """The parts of a client that belong to one process."""

    channel: Channel | Gateways
    memory: ClientMemory


class Client(ApplicationCalls, OfOneProcess):
    """A client of a cluster, by one of its gateways or several.

    ```python
    with Client("tcp://127.0.0.1:7400") as client:
        result = client.infer("resnet50", {"data": x}, slo_ms=50)
        result["prob"], result.timing.elapsed_ms, result.late
    ```

    Thread-safe. It connects in the background and again after a break; a call made meanwhile waits for up
    to ``connect_timeout_s``, and no longer than its SLO.

    An SLO counts from the call. Requests wait in the client, the nearest deadline first, while
    ``max_in_flight`` are without an answer or ``max_unread_bytes`` are on their way, and are sent with what
    is left; what has no time left is refused here with `DeadlinePassed`, before its deadline. Every call
    ends: should the gateway not answer, the client gives up ``guard_s`` after the deadline (for a request
    without one, ``best_effort_timeout_s`` after the call, if that is given) with `TimedOut`, and cancels the
    request.

    Given the addresses of several gateways (``Client([a, b])``, or one text with commas), it is connected to
    all and uses the first that answers. When that is lost, drains or gives no reply in time, what has none is
    sent again through another one: requests may be executed twice, and have one reply. Not sent again are
    changes, feedback, and requests that go on with a sequence (`UnknownSequence`: begin it again).

    After a fork the child has a connection of its own with its first call. It can't be pickled: hand its
    address over.
    """

    def __init__(
        self,
        address: str | Ordered[str] | None = None,
        *,
        name: str = "",
        token: str | None = None,
        curve_key: str | None = None,
        connect_timeout_s: float = 5.0,
        guard_s: float = 2.0,
        best_effort_timeout_s: float | None = None,
        max_in_flight: int | None = None,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Begin to connect to ``address``; ``name`` is for the gateway's logs.

        ``address`` may be several. Without it it is the environment's ``MAINSPRING_ADDRESS``, else ``tcp://127.0.0.1:7400``.
        ``token`` is for gateways that need one; None for the environment's ``MAINSPRING_TOKEN``.
        ``curve_key`` is the file of this client's keys of CURVE, for a gateway on another host; None for the
        environment's ``MAINSPRING_CURVE_KEY``.
        ``max_in_flight`` bounds the requests at the gateway, None for as many as it allows;
        ``max_unread_bytes`` the bytes that it has not read yet, though one request always goes.
        ``memory_bytes`` is memory that a gateway of this host may read large inputs in, 0 for none; pages of
        it are taken as they are first written. Raises ValueError for a bound below 1, memory below 0, or an
        invalid key.
        """
        self._guard_s = guard_s
        self._best_effort_timeout_s = UNBOUNDED_S if best_effort_timeout_s is None else best_effort_timeout_s
        self._types = InputTypes()
        addresses = gateway_addresses(address)
        self._address = ", ".join(addresses)
        self._closed = False

        def connect() -> _Link:
            if self._closed:
                raise GatewayUnreachable(f"the client of {self._address} is closed; make a new one")
            memory = ClientMemory(memory_bytes)
            bounds = (max_in_flight, max_unread_bytes)
            if len(addresses) > 1:
                from mainspring.client.failover import Gateways

                each = partial(Outbox, *bounds)
                gateways = Gateways(addresses, name, connect_timeout_s, token, each, memory, curve_key)
                return _Link(gateways, memory)
            told = (name, connect_timeout_s, token, Outbox(*bounds), memory, curve_key)
            return _Link(Channel(self._address, *told), memory)

        self._links = PerProcess(connect, lambda link: link.channel.close())
        self._links.get()

    @property
    def _channel(self) -> Channel | Gateways:
        return self._links.get().channel

    @property
    def address(self) -> str:
        """Return its gateway's address, or those of all, as one text."""
        return self._address

    @property
    def shares_memory(self) -> bool:
        """Return whether its gateway reads large inputs in this client's memory: one of this host does so
        from the first request on that has one."""
        return self._channel.shares_memory

    def allocate(self, shape: int | Ordered[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an array that a gateway of this host reads as it is, for inputs of 64 KB and more.

        Its content is any, as of `numpy.empty`. Requests whose inputs are such arrays, or contiguous parts of
        them, send no tensors; others of that size are copied once. To change one before a request that it
        went with has its result may spoil that result. Its memory is free for others once nothing refers to
        it; if none is free, or the gateway is elsewhere, it is an ordinary array, and all else is the same.
        """
        return allocate(self._links.get().memory, shape, dtype)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Ordered[str] | None = None,
        version: int | None = None,
        priority: int = 0,
        traceparent: str = "",
        *,
        slo: str | timedelta | None = None,
        deadline: AnyDeadline = None,
        at_least: float = 0.0,
        context: str = "",
    ) -> InferResult:
        """Run ``model`` on ``inputs`` and return its outputs by name, with ``timing`` beside them.

        ``inputs`` are arrays by name, with rows along the axis that the model has them on (mostly the first),
        or Python numbers in lists, which become the model's type; ``slo_ms`` the time from this call to its
        deadline, or ``slo`` as text such as ``100ms``, None for best effort; ``outputs`` the names wanted,
        None for all; ``version`` one of the model's, None for its default; ``priority`` its turn among
        requests of equal slack: 1 before 2 and so on, 0 behind all; ``traceparent`` the caller's span, for
        gateways that trace (W3C Trace Context); ``deadline`` what `deadline` returns, or the same as ``slo``:
        the earlier of the two holds, and that of a block which the call is in; ``at_least`` the least score
        of the member that may answer, of a family of models; ``context`` the user or session whose state an
        application answers by.
        Raises a `MainspringError`: `DeadlineError`, `InvalidRequest`, `Unavailable`; TypeError for arguments
        of the wrong kind.
        """
        now_ns = monotonic_ns()
        told = (model, inputs, slo_ms, slo, outputs, version, priority, traceparent)
        return self.run(
            Arguments(now_ns, *told, deadline_of(now_ns, deadline), at_least=at_least, context=context)
        )

    def run(self, arguments: Arguments) -> InferResult:
        """Send a request and wait for its outcome."""
        self._fetch_types(arguments)
        call = self.begin(arguments, awaited=True)
        try:
            result: InferResult = call.result()
        except BaseException:
            # Also when Ctrl-C ends the wait: the outputs are not wanted then.
            call.cancel()
            call.landed(monotonic_ns())
            raise
        return delivered(call, result)

    def submit(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Ordered[str] | None = None,
        version: int | None = None,
        priority: int = 0,
        traceparent: str = "",
        *,
        slo: str | timedelta | None = None,
        deadline: AnyDeadline = None,
        at_least: float = 0.0,
        context: str = "",
    ) -> Future[InferResult]:
        """Send a request and return its result to come; arguments as for `infer`.

        ``cancel`` of the future gives the request up at the gateway too. Large arrays are not copied: leave
        them alone until the future is done.
        """
        now_ns = monotonic_ns()
        told = (model, inputs, slo_ms, slo, outputs, version, priority, traceparent)
        arguments = Arguments(
            now_ns, *told, deadline_of(now_ns, deadline), at_least=at_least, context=context
        )
        self._fetch_types(arguments)
        return self.begin(arguments)

    def deadline(self, within: str | timedelta) -> Deadline:
        """Return a deadline that requests share, ``within`` from now: text such as ``300ms``, or a timedelta.

        ```python
        with client.deadline("300ms") as deadline:
            found = client.infer("detector", {"image": image})
            named = client.infer("classifier", {"crops": crops(found)})  # with what is left of 300 ms
        ```

        It holds for every request in the block, and for those that are given it (``deadline=``, or
        ``deadline.infer``), as in another thread. The earliest of several holds. One that is begun after it
        raises `DeadlinePassed`, and is not sent. Raises TypeError and `InvalidSlo` unless that is a duration.
        """
        return Deadline(self, within)

    def sequence(
        self, model: str, *, sequence_id: int | str | None = None, version: int | None = None
    ) -> Sequence:
        """Return a sequence of requests for a model that keeps a state from one to the next.

        Its id is drawn at random unless it is given: anyone who knows it may go on with the sequence.
        """
        return Sequence(self, Places(model, sequence_id, version))

    def models(self) -> Models:
        """Return the models that are served, by name: ``models()["resnet50"]`` is one."""
        return Models(self.request_models().result())

    def status(self) -> ClusterStatus:
        """Return the cluster as the controller sees it."""
        return self._exchange(clients.GetStatus(self._channel.next_key()))  # type: ignore[no-any-return]

    def add_model(self, spec: ModelSpec) -> None:
        """Have a model served; its artifact must be in the workers' stores. Raises `ModelExists`."""
        self._exchange(clients.AddModel(self._channel.next_key(), spec))

    def remove_model(self, name: str) -> None:
        """Stop serving a model; what is queued for it is rejected. Raises `UnknownModel`."""
        self._exchange(clients.RemoveModel(self._channel.next_key(), name))

    def add_graph(self, graph: GraphSpec | str, *, check: bool = False) -> None:
        """Serve a graph of models under its name; ``graph`` may be the text of its file.

        ``check``: only say whether it makes sense. Raises `InvalidRequest`, which names what is wrong.
        """
        if isinstance(graph, str):
            try:
                graph = read_graph(graph, "the graph")
            except ConfigError as error:
                raise InvalidRequest(str(error), Reason.BAD_INPUT) from None
        self._exchange(clients.AddGraph(self._channel.next_key(), graph, check))

    def remove_graph(self, name: str) -> None:
        """Serve a graph no more. Raises `InvalidRequest` if there is none of this name."""
        self._exchange(clients.RemoveGraph(self._channel.next_key(), name))

    def graphs(self) -> tuple[ServedGraph, ...]:
        """Return the graphs that are served, each with why requests for it are refused now, if they are."""
        return self._exchange(clients.ListGraphs(self._channel.next_key()))  # type: ignore[no-any-return]

    def set_max_queue_size(self, name: str, size: int | None) -> None:
        """Have at most ``size`` requests wait for a model; None for what the configuration says.

        One more is refused as `Overloaded` at once. It holds until it is set again, beyond a controller's
        restart. Raises `InvalidRequest` for a model that is not served, and for a size below 1.
        """
        self._exchange(clients.BoundQueue(self._channel.next_key(), name, size))

    def set_goodput_weight(self, name: str, weight: float | None) -> None:
        """Have an answer of a model in time count as ``weight`` others'; None for the configured weight.

        It holds until it is set again, beyond a controller's restart. Raises `InvalidRequest` for a model
        that is not served, and for a weight out of 0.001 to 1,000.
        """
        self._exchange(clients.WeighModel(self._channel.next_key(), name, weight))

    def assign_model(self, name: str, workers: int, max_batch: int = 0, kind: str = "") -> None:
        """Give a model this many workers of its own, of a kind or of any; 0: it has none any more.

        They run nothing else, and no other worker runs it; at most ``max_batch`` of its rows run together, or
        as many as its largest batch has. It gets what is there, and more as workers come. It holds until it
        is set again, beyond a controller's restart. Raises `InvalidRequest` for what can't be.
        """
        self._exchange(AssignWorkers(self._channel.next_key(), name, workers, max_batch, kind))

    def scale_workers(self, kind: str, count: int, *, shard: int | None = None) -> None:
        """Have this many workers of a kind from now on; `status` says in ``kinds`` how far that has come.

        Of several controllers, one that ``shard`` names is to have as many; otherwise all together are, and
        each new worker goes to the shard with the fewest for its weight, and each that leaves, from the one
        with the most.

        Raises `InvalidRequest`, which says what would be right, if there can't be as many or as few, or
        nothing starts and stops workers of the kind. A token must be one that administers everything.
        """
        parts: list[tuple[int | None, int]] = [(shard, count)]
        if shard is None:
            whole = self._whole()
            # What is wrong with a kind that no shard has is the first one's to say.
            parts = [*shares(whole, kind, count).items()] or [(0 if whole.shards else None, count)]
        for number, workers in parts:
            self._exchange(clients.Scale(self._channel.next_key(), kind, workers, number))

    def _whole(self) -> ClusterStatus:
        """Return the status; raise `Unavailable` unless all controllers answer."""
        status = self.status()
        silent = [each for each in status.shards if not each.up]
        if silent:
            raise Unavailable(
                f"the controller of shard {silent[0].number} does not answer: name the shard that is to have "
                "more workers, or fewer",
                Reason.CONTROLLER_UNREACHABLE,
            )
        return status

    def close(self) -> None:
        """Close the connection; requests without a reply fail."""
        self._closed = True
        link = self._links.made()
        if link is not None:
            link.channel.close()
            link.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        link = self._links.made()
        connected = link is not None and link.channel.welcome is not None
        state = "connected" if connected else "not connected"
        return f"{type(self).__name__}({self.address!r}, {state})"

    def _exchange(self, message: clients.FromClient) -> Any:
        return self._channel.call(message, _ADMIN_GUARD_S).result()

    # --- what `AsyncClient` and `Sequence` are made of ---

    def end_sequence(self, places: Places) -> None:
        """Have the gateway drop a sequence, without waiting for that."""
        message = clients.EndSequence(
            self._channel.next_key(), places.model, places.sequence_id, places.version
        )
        with contextlib.suppress(MainspringError):
            self._channel.call(message, _ADMIN_GUARD_S)

    def request_models(self) -> Call:
        """Request the models that are served; the reply is their specs."""
        return self._channel.call(clients.ListModels(self._channel.next_key()), _ADMIN_GUARD_S)

    def lacks_types(self, model: str, inputs: Mapping[str, ArrayLike]) -> bool:
        """Return whether a Python list among the inputs needs a type that only the list of models has."""
        check_mapping(inputs)
        return any(map(is_plain, inputs.values())) and self._types.known(model) is None

    def learn_types(self, models: Models) -> None:
        """Take in the types of the models' inputs."""
        self._types.learn(models)

    def patience_s(self, arguments: Arguments) -> float:
        """Return how long after its call a request is given up without an answer."""
        slo_ns = arguments.slo_ns
        return self._best_effort_timeout_s if slo_ns is None else slo_ns / 1e9 + self._guard_s

    def _fetch_types(self, arguments: Arguments) -> None:
        """Request the types if they are needed, and wait as long as the request itself may take."""
        if self.lacks_types(arguments.model, arguments.inputs):
            patience_s = self.patience_s(arguments)
            call = self.request_models()
            try:
                self.learn_types(Models(call.result(patience_s)))
            except TimeoutError:
                call.cancel()
                raise no_types(self._address, patience_s) from None

    def begin(self, arguments: Arguments, *, awaited: bool = False) -> InferCall:
        """Have a request wait for its turn; ``awaited``: its caller says when it has the outcome.

        Raises TypeError and ValueError for arguments that can't be sent.
        """
        model, outputs = arguments.model, arguments.outputs
        if not isinstance(model, str):
            raise TypeError(f"model is {kind_of(model)}; pass its name as a str")
        if isinstance(outputs, str):
            raise TypeError(f"outputs is a str; pass a list of names, like [{outputs!r}]")
        slo_ns = arguments.slo_ns
        headers, frames = to_tensors(arguments.inputs, self._types.types.get(model, {}))
        request = clients.InferRequest(
            key=self._channel.next_key(),
            model=model,
            inputs=headers,
            slo_ns=slo_ns,
            outputs=None if outputs is None else tuple(outputs),
            version=arguments.version,
            traceparent=arguments.traceparent,
            priority=arguments.priority,
            at_least=_score(arguments.at_least),
            context=arguments.context,
            **arguments.place._asdict(),
        )
        patience_s = self.patience_s(arguments)
        return self._channel.infer(request, frames, arguments.called_ns, patience_s, awaited=awaited)


def _score(at_least: object) -> float:
    """Return the least score that a caller takes; raise TypeError if it is not a number."""
    try:
        if not isinstance(at_least, str):
            return float(at_least)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        pass
    raise TypeError(f"at_least is {at_least!r}; pass a score of the family as a number, such as 0.75")


def no_types(address: str, waited_s: float) -> TimedOut:
    """Return the error of a request whose inputs are lists, where the gateway did not say of what types."""
    return TimedOut(
        f"the gateway at {address} did not say in {waited_s:g} s which types the model's inputs have"
    )


def delivered(call: InferCall, result: InferResult) -> InferResult:
    """Return a result that its caller has now, with the time that it took until now."""
    now_ns = monotonic_ns()
    call.landed(now_ns)
    result.timing = msgspec.structs.replace(result.timing, elapsed_ns=now_ns - call.called_ns)
    return result
