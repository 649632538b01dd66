"""The commands that an operator may give to a running cluster, and the answer.

A command that is granted goes into the scheduler, and so into the event log, as `events.OperatorAsked`. What
operators set lasts until they unset it or the cluster stops, a controller's death included where it has a
state file; a configuration outlives both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.messages.durations import in_milliseconds
from mainspring.messages.graphs import GraphSpec

LEAST_WEIGHT: Final = 1e-3
MOST_WEIGHT: Final = 1e3


class DrainWorker(msgspec.Struct, frozen=True, tag="drain_worker"):
    """Give the worker nothing more; what it was told to do it finishes, and its memory stays as it is."""

    worker: str


class ResumeWorker(msgspec.Struct, frozen=True, tag="resume_worker"):
    """Give a drained worker work again."""

    worker: str


class PinModel(msgspec.Struct, frozen=True, tag="pin_model"):
    """Keep the model resident somewhere: load it if it is nowhere, and never evict its last copy."""

    model: str


class UnpinModel(msgspec.Struct, frozen=True, tag="unpin_model"):
    """Let the model be evicted again."""

    model: str


class LoadOn(msgspec.Struct, frozen=True, tag="load_on"):
    """Load the model, now or once a LOAD executor is idle, over the least recently used ones if there is no
    room."""

    model: str
    worker: str | None = None
    """Name of the worker; None for the one that has the most free pages."""
    idle: bool = False
    """True if the LOAD is to wait until it delays no other one, and no model goes for it that is in use. It
    is given up if the model is loaded on any worker meanwhile; ``worker`` must be None."""


class UnloadFrom(msgspec.Struct, frozen=True, tag="unload_from"):
    """Give the model's pages up now; the next request for it has it loaded again."""

    model: str
    worker: str | None = None
    """Name of the worker; None for every worker."""


class SetDefaultSlo(msgspec.Struct, frozen=True, tag="set_default_slo"):
    """Give requests for the model that bring no SLO over HTTP and gRPC this one."""

    model: str
    """Name by which clients call the model."""
    slo_ns: int | None = None
    """SLO of such requests, in nanoseconds; None for what the configuration says."""


class SetMaxQueue(msgspec.Struct, frozen=True, tag="set_max_queue"):
    """Refuse requests for the model while this many wait for it already; what runs does not wait."""

    model: str
    """Name by which clients call the model."""
    size: int | None = None
    """Most requests that may wait; None for what the configuration says."""


class SetGoodputWeight(msgspec.Struct, frozen=True, tag="set_goodput_weight"):
    """Have an answer of the model in time count as this many others'."""

    model: str
    """Name by which clients call the model."""
    weight: float | None = None
    """Weight of an answer in time; None for what the configuration says."""


class AssignModel(msgspec.Struct, frozen=True, tag="assign_model", omit_defaults=True):
    """Give the model workers of its own: they run nothing else, and no other worker runs it.

    It gets those that are there, and others as they come. The last command about a model counts.
    """

    model: str
    workers: int
    """Number of workers; 0: it has none of its own any more and runs wherever others do."""
    max_batch: int = 0
    """Most rows that run together; 0 for as many as its largest batch has."""
    kind: str = ""
    """Kind of their device; empty for any."""


class AssignWorkers(msgspec.Struct, frozen=True, tag="assign_workers", omit_defaults=True):
    """Give a model workers of its own from now on; `Done` says that it is decided, not that it is so.

    A client's message. The fields are those of `AssignModel`.
    """

    key: int
    name: str
    """Name of the model, of one in versions that of a version."""
    workers: int
    max_batch: int = 0
    kind: str = ""


class SetGraph(msgspec.Struct, frozen=True, tag="set_graph"):
    """Serve a graph of models under its name."""

    name: str
    graph: GraphSpec | None = None
    """None: it is not served any more."""


class ScaleWorkers(msgspec.Struct, frozen=True, tag="scale_workers"):
    """Have this many workers of a kind from now on, of those that its provider runs.

    New ones are started; those that are too many hand their models over, are drained and stopped. The last
    command about a kind counts.
    """

    kind: str
    count: int


class MoveWorker(msgspec.Struct, frozen=True, tag="move_worker"):
    """Send the worker to another controller: others load what only it holds, it is drained, and then goes."""

    worker: str
    controller: str
    """Its address."""


OperatorCommand = (
    DrainWorker
    | ResumeWorker
    | PinModel
    | UnpinModel
    | LoadOn
    | UnloadFrom
    | SetDefaultSlo
    | SetMaxQueue
    | SetGoodputWeight
    | AssignModel
    | SetGraph
    | ScaleWorkers
    | MoveWorker
)


OfClients = ScaleWorkers | AssignModel | SetMaxQueue | SetGoodputWeight | SetGraph
"""Commands that clients may give, over their gateways."""


class Operate(msgspec.Struct, frozen=True, tag="operate"):
    """A console passes an operator's command on; the controller answers with one `Operated`."""

    token: int
    """Chosen by the console; comes back with the answer."""
    who: str
    """Name of the operator for the log: that of the token that was shown."""
    command: OperatorCommand


class Operated(msgspec.Struct, frozen=True, tag="operated"):
    """The answer to a command: granted or not."""

    token: int
    done: bool
    detail: str
    """Text that says what was begun, or why not and what would be right."""


def weight_fault(weight: float) -> str | None:
    """Return why a model's answers can't have a weight, or None if they can."""
    if LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        return None
    return f"a goodput_weight of {weight:g} can't be; give {LEAST_WEIGHT:g} to {MOST_WEIGHT:,g}"


def subject(command: OperatorCommand) -> tuple[str, str] | None:
    """Return what a command sets until another one about the same is granted; None if it sets nothing."""
    match command:
        case DrainWorker(worker=name) | ResumeWorker(worker=name):
            return "worker", name
        case PinModel(model=name) | UnpinModel(model=name):
            return "model", name
        case SetDefaultSlo(model=name):
            return "slo", name
        case SetMaxQueue(model=name):
            return "queue", name
        case SetGoodputWeight(model=name):
            return "goodput weight", name
        case AssignModel(model=name):
            return "assignment", name
        case SetGraph(name=name):
            return "graph", name
        case ScaleWorkers(kind=kind):
            return "kind", kind
        case _:
            return None


def described(command: OperatorCommand) -> str:
    """Return a command in words."""
    match command:
        case DrainWorker(worker=worker):
            return f"drain {worker}"
        case ResumeWorker(worker=worker):
            return f"resume {worker}"
        case PinModel(model=model):
            return f"pin {model}"
        case UnpinModel(model=model):
            return f"unpin {model}"
        case LoadOn(model=model, idle=True):
            return f"load {model} once a LOAD executor is idle"
        case LoadOn(model=model, worker=worker):
            return f"load {model} on {worker or 'the worker with the most free pages'}"
        case UnloadFrom(model=model, worker=worker):
            return f"unload {model} from {worker or 'every worker'}"
        case SetDefaultSlo(model=model, slo_ns=slo_ns):
            if slo_ns is None:
                return f"give {model} its configured default SLO again"
            return f"give {model} a default SLO of {in_milliseconds(slo_ns)}"
        case SetMaxQueue(model=model, size=None):
            return f"bound the queue of {model} as the configuration does"
        case SetMaxQueue(model=model, size=size):
            return f"have at most {size:,} requests wait for {model}"
        case SetGoodputWeight(model=model, weight=None):
            return f"weigh answers of {model} as the configuration does"
        case SetGoodputWeight(model=model, weight=weight):
            return f"have an answer of {model} count as {weight:g}"
        case AssignModel(model=model, workers=0):
            return f"run {model} wherever others run"
        case AssignModel(model=model, workers=workers, max_batch=most, kind=kind):
            of_kind = f" of kind {kind}" if kind else ""
            batch = f", in batches of at most {most}" if most else ""
            return f"give {model} {workers:,} worker{'' if workers == 1 else 's'}{of_kind} of its own{batch}"
        case SetGraph(name=name, graph=None):
            return f"remove the graph {name}"
        case SetGraph(name=name, graph=graph):
            steps = () if graph is None else graph.steps
            return f"serve the graph {name} of {', '.join(each.model for each in steps)}"
        case ScaleWorkers(kind=kind, count=count):
            return f"have {count:,} worker{'' if count == 1 else 's'} of kind {kind}"
        case MoveWorker(worker=worker, controller=controller):
            return f"move {worker} to the controller at {controller}"
