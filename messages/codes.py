"""The closed lists of codes: why a request was refused, and how an action ended."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reason why a request got an error instead of outputs. The list is closed: clients may rely on
    it."""

    # The deadline.
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    """No plan, however favourable, could finish in time; found on arrival."""
    DEADLINE_PASSED = "deadline_passed"
    """Queued until no device could finish it in time any more."""
    TIMED_OUT = "timed_out"
    """The gateway heard neither outputs nor a rejection within the deadline plus its grace."""

    # The request itself.
    UNKNOWN_MODEL = "unknown_model"
    BAD_INPUT = "bad_input"
    """A wrong name, dtype, shape or byte count, a missing or an extra input."""
    BAD_VALUES = "bad_values"
    """The model's computation fails on what the inputs hold, such as an index out of range, or never ends."""
    BAD_OUTPUT = "bad_output"
    """An output was asked for that the model does not have."""
    BAD_SLO = "bad_slo"
    TOO_MANY_ROWS = "too_many_rows"
    """More rows than a request for the model may have."""
    UNKNOWN_SEQUENCE = "unknown_sequence"
    """The request goes on with a sequence that its gateway has no state of: begin it again."""
    DUPLICATE_KEY = "duplicate_key"
    """The connection has a request of the same key in flight."""
    BAD_MESSAGE = "bad_message"
    CANCELLED = "cancelled"

    # The client that asks.
    UNAUTHENTICATED = "unauthenticated"
    """A token is needed, and none that is known was shown."""
    FORBIDDEN = "forbidden"
    """The token may not use this model, or not change what is served."""
    RATE_LIMITED = "rate_limited"
    """The token's requests come faster than it may send them, or too many of them are in flight."""
    OVER_SHARE = "over_share"
    """Requests are being dropped, and the tenant is ahead of its share of the devices' time."""

    # The cluster.
    NO_WORKER = "no_worker"
    """No worker could run the model: none is connected, or it fits none."""
    MODEL_NOT_READY = "model_not_ready"
    """The model is being compiled or prepared, or can't be loaded."""
    MODEL_REMOVED = "model_removed"
    MODEL_EXISTS = "model_exists"
    WORKER_FAILED = "worker_failed"
    """The action failed on the worker and the deadline allows no other."""
    OVERLOADED = "overloaded"
    """A bounded queue is full; or so much stands before the request that it would hardly be in time."""
    CONTROLLER_UNREACHABLE = "controller_unreachable"
    SHUTTING_DOWN = "shutting_down"


class Status(StrEnum):
    """The way in which an action ended on its worker. Anything but ``OK`` and ``NOT_OPEN`` left the worker's
    state unchanged."""

    OK = "ok"
    TOO_LATE = "too_late"
    """It could not begin by its latest instant."""
    INPUT_MISSING = "input_missing"
    """Its inputs had not all come by its latest instant."""
    NOT_PREPARED = "not_prepared"
    NOT_RESIDENT = "not_resident"
    """The weights were not in the pages by the latest instant."""
    BUSY = "busy"
    """UNLOAD or RELEASE of a model with an action outstanding on it."""
    BAD_PAGES = "bad_pages"
    """A page is out of range, named twice, occupied, or an extent's pages are not adjacent."""
    NO_IO_MEMORY = "no_io_memory"
    BAD_ACTION = "bad_action"
    """Unknown batch size, more rows than the batch holds, a repeated action id, an empty window."""
    STOPPING = "stopping"
    """The worker is stopping and begins nothing more."""
    ENGINE_ERROR = "engine_error"
    BAD_VALUES = "bad_values"
    """A node of the model failed on the values in the inputs of one of an INFER's requests."""
    OVERRUN = "overrun"
    """An INFER computed for so much longer than predicted that the worker ended it."""
    NOT_OPEN = "not_open"
    """A PREPARE brought the weights into place, and an OPEN has to follow."""
    OUTPUT_LOST = "output_lost"
    """It ran, and the connection of a gateway that was to have outputs had ended meanwhile."""
