"""A client of a town: it speaks the clients' protocol, and judges every reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mainspring.client.transports import Heartbeat
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.clients import (
    Alive,
    CancelRequest,
    ClientHello,
    ClientRefused,
    ClientWelcome,
    ErrorReply,
    InferReply,
    InferRequest,
)
from mainspring.messages.codec import TO_CLIENT, encode
from mainspring.messages.peers import TensorHeader
from mainspring.messages.roles import Role
from mainspring.simulator.town.device import ROW_BYTES
from mainspring.simulator.town.gateways import PORT
from mainspring.simulator.town.ports import ANY, TownLink
from mainspring.simulator.town.process import Process
from mainspring.simulator.town.workload import Sent

_HELLO_AGAIN_NS: Final = 200_000_000
_HELLO_LOST_NS: Final = 1_000_000_000


class TownClient:
    """See the module's docstring."""

    def __init__(self, process: Process, gateway: str, replied: Callable[[Sent], None]) -> None:
        """``gateway``: the host of the gateway; ``replied`` is told each reply."""
        self.process, self._replied = process, replied
        address, name = f"tcp://{gateway}:{PORT}", f"{process.name}:{process.life}".encode()
        self._gateway = address
        self._link = TownLink(process.hub, address, ANY, str(Role.CLIENT).encode(), name, keeps=False)
        self._opened = self._ended = 0
        self._welcome = False
        self._hello_ns = 0
        self._waiting: dict[int, Sent] = {}
        self._heartbeat = Heartbeat(process.now_ns())

    def send(self, sent: Sent) -> None:
        """Send a request, if there is a session."""
        request = sent.request
        if not self._welcome:
            return
        header = TensorHeader("x", "uint8", (request.rows, ROW_BYTES))
        message = InferRequest(
            key=sent.key, model=request.model, inputs=(header,), slo_ns=request.slo_ns,
            sent_ns=self.process.now_ns(),
        )  # fmt: skip
        self._link.send((encode(message), sent.inputs))
        sent.sent_ns = self.process.agenda.now_ns
        self._waiting[sent.key] = sent

    def cancel(self, key: int) -> None:
        """Give a request up."""
        if self._welcome and key in self._waiting:
            self._link.send((encode(CancelRequest(key)),))

    def turn(self, now_ns: int) -> int:
        """Take replies, and keep the session."""
        while self._link.pending():
            parts = self._link.receive()
            if parts is None:
                break
            self._heartbeat.heard(now_ns)
            self._take(now_ns, parts)
        if self._link.ended != self._ended:
            self._ended = self._link.ended
            self._lose()
        if self._link.connected and (self._link.opened != self._opened or self._hello_is_due(now_ns)):
            # Over ZeroMQ the transport's own heartbeats find out that nobody is there.
            self._opened, self._hello_ns = self._link.opened, now_ns + _HELLO_LOST_NS
            hello = ClientHello(PROTOCOL_VERSION, self.process.name, "", now_ns)
            self._link.send((encode(hello),))
        if self._welcome:
            return self._listen(now_ns)
        return max(self._hello_ns, now_ns + _HELLO_AGAIN_NS)

    def check(self) -> None:
        """Have nothing to check: what it is told is checked as it comes."""

    def _hello_is_due(self, now_ns: int) -> bool:
        return 0 < self._hello_ns <= now_ns

    def _listen(self, now_ns: int) -> int:
        """Ask a silent gateway for a sign of life, or give it up, as `client.connection` does."""
        if self._heartbeat.silent(now_ns):
            self._link.close(0)
            self._link = TownLink(
                self.process.hub, self._gateway, ANY, str(Role.CLIENT).encode(),
                f"{self.process.name}:{now_ns}".encode(), keeps=False,
            )  # fmt: skip
            self._opened = self._ended = 0
            self._lose()
            return now_ns + _HELLO_AGAIN_NS
        if self._heartbeat.due(now_ns):
            self._heartbeat.asked(now_ns)
            self._link.send((encode(Alive()),))
        return self._heartbeat.next_ns()

    def _lose(self) -> None:
        self._welcome = False
        for sent in self._waiting.values():
            sent.lost = True
        self._waiting.clear()

    def _take(self, now_ns: int, parts: list[bytes]) -> None:
        message = TO_CLIENT.decode(parts[0])
        match message:
            case ClientWelcome():
                self._welcome, self._hello_ns = True, 0
                self._heartbeat = Heartbeat(now_ns)
            case ClientRefused():
                self._lose()
                self._hello_ns = now_ns + _HELLO_AGAIN_NS
            case InferReply(key=key):
                self._answered(key, "ok", b"".join(parts[1:]))
            case ErrorReply(key=key, reason=reason):
                self._answered(key, str(reason.value), b"")
            case Alive():
                pass
            case _:
                raise AssertionError(f"{self.process.name} gets {message}")

    def _answered(self, key: int, outcome: str, outputs: bytes) -> None:
        sent = self._waiting.pop(key, None)
        assert sent is not None, (
            f"{self.process.name} gets a second reply, or one to nothing: {key} {outcome}"
        )
        sent.replies += 1
        sent.outcome, sent.outputs = outcome, outputs
        sent.replied_ns = self.process.agenda.now_ns
        self._replied(sent)
