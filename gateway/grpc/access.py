"""The caller of a gRPC call: what the call's metadata say, and whether its token lets it pass."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns

from mainspring.gateway.config import GRPC_PREFIX, TRITON, GatewayConfig, Group, Restrictions
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.grpc.status import Context, Ended
from mainspring.transport.tokens import NOTHING, Credential, Gate, from_header

GRPC_WEB = "x-grpc-web"
"""Metadata that clients of gRPC-Web send."""
NO_GRPC_WEB = (
    "gRPC-Web is not spoken here: put a proxy in front that translates it, such as Envoy with its filter "
    "grpc_web, or have the page call the gateway's HTTP address"
)
TOKEN = "authorization"
"""Metadata with ``Bearer TOKEN``."""

NOT_READY_METADATA = "x-mainspring-not-ready"
"""Trailing metadata with the reason, where an answer says that something is not ready."""

_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("ServerLive", "ServerReady", "ModelReady", "Check", "Watch"), Group.HEALTH),
    **dict.fromkeys(("ServerMetadata", "ModelMetadata"), Group.METADATA),
    **dict.fromkeys(("ModelInfer", "ModelStreamInfer"), Group.INFERENCE),
    **dict.fromkeys(("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"), Group.REPOSITORY),
    **dict.fromkeys(("List", "Show", "Put", "Remove", "Forget"), Group.REPOSITORY),
    "Observe": Group.INFERENCE,
    "ModelConfig": Group.MODEL_CONFIG,
    "ModelStatistics": Group.STATISTICS,
    "TraceSetting": Group.TRACE,
    "LogSettings": Group.LOGGING,
}
"""Group of each call in the configuration's restrictions; calls about shared memory have their own."""


class Caller:
    """The known facts about a call beside its messages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._metadata = dict(context.invocation_metadata() or ())

    @property
    def peer(self) -> str:
        """Return gRPC's name of the client's connection: kind, address and port."""
        named: str = self._context.peer()
        return named

    def said(self, name: str) -> str | None:
        """Return the text of the metadata of this name, in lower case; None if there is none."""
        value = self._metadata.get(name)
        return value if value is None or isinstance(value, str) else repr(value)

    def told_why(self, reason: str) -> None:
        """Have the answer say why it is a no, in its trailing metadata; nothing for an empty reason."""
        if reason:
            self._context.set_trailing_metadata(((NOT_READY_METADATA, ascii_of(reason)),))

    def left_s(self) -> float | None:
        """Return the seconds that the call's own deadline leaves; None if it has none."""
        left_s: float | None = self._context.time_remaining()
        return left_s


def ascii_of(text: str) -> str:
    """Return a text as metadata can hold it: printable ASCII, on one line."""
    return "".join([each if " " <= each <= "~" else "?" for each in text])[:1_000]


class Lock:
    """Calls that need metadata by the configuration's ``grpc_restricted_protocol``."""

    def __init__(self, config: GatewayConfig) -> None:
        self.triton = config.compatibility == TRITON
        """True if texts of errors are Triton's."""
        rules = config.grpc_restricted_protocol
        self._restrictions = Restrictions("grpc_restricted_protocol", rules, GRPC_PREFIX)

    def check(self, call: str, caller: Caller) -> None:
        """Raise `Ended` if a call of this name lacks what it needs, with Triton's code and words.

        Or if it is gRPC-Web's: the library does not tell its content type, and answers as if it were gRPC's.
        """
        if caller.said(GRPC_WEB) is not None:
            raise Ended("UNIMPLEMENTED", NO_GRPC_WEB)
        group = Group.SHARED_MEMORY if "SharedMemory" in call else _GROUPS.get(call, "")
        missing = self._restrictions.missing(group, caller.said)
        if missing is not None:
            raise Ended("UNAVAILABLE", f"This protocol is restricted, expecting header '{missing}'")


def check(gate: Gate, caller: Caller, model: str | None, *, administers: bool = False) -> None:
    """Raise `BadRequest` if a call about this model, or about none, may not pass; count it for its token."""
    if not gate.closed:
        return
    refusal = gate.authorise(caller.said(TOKEN), model, monotonic_ns(), administers=administers)
    if refusal is not None:
        raise BadRequest(*refusal)


def priority(gate: Gate, caller: Caller, asked: int) -> int:
    """Return the priority that a call's request gets which asks for one."""
    return gate.priority(from_header(caller.said(TOKEN)), asked) if asked and gate.closed else asked


def shown_by(gate: Gate, caller: Caller) -> Credential:
    """Return what a call shows, if any token has an account."""
    return from_header(caller.said(TOKEN)) if gate.has_accounts else NOTHING


def sees(gate: Gate, caller: Caller, model: str) -> bool:
    """Say whether a model may be listed for a call."""
    return not gate.closed or gate.may_see(from_header(caller.said(TOKEN)), model)
