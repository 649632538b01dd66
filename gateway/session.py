"""The gateway's standing with its controller: hello until welcomed, lost when silent. Pure."""

from __future__ import annotations

from enum import StrEnum

from mainspring.gateway.config import GatewayConfig, milliseconds


class SessionEvent(StrEnum):
    """What `ControllerSession.tick` asks the driver to do."""

    HELLO = "hello"
    LOST = "lost"


class ControllerSession:
    """Says when to say hello and when the controller is lost."""

    def __init__(self, config: GatewayConfig) -> None:
        self._hello_interval_ns = milliseconds(config.hello_interval_ms)
        self._timeout_ns = milliseconds(config.controller_timeout_ms)
        self._hello_ns = 0
        self._silent_ns = 0
        self.welcomed = False
        self.refusal = ""
        """Why the controller's last refusal said it does not take this gateway."""

    def connected(self, now_ns: int) -> None:
        """There is a new connection: say hello over it at once."""
        if not self.welcomed:
            self._hello_ns = now_ns

    def heard(self, now_ns: int) -> None:
        """Note a sign of life."""
        self._silent_ns = now_ns + self._timeout_ns

    def welcome(self, now_ns: int) -> None:
        """The controller knows this gateway from now on."""
        self.welcomed = True
        self.refusal = ""
        self.heard(now_ns)

    def lose(self, now_ns: int, refusal: str = "") -> None:
        """The controller does not know this gateway, or leaves: say hello again after the usual interval."""
        if self.welcomed:
            self._hello_ns = now_ns + self._hello_interval_ns
        self.welcomed = False
        self.refusal = refusal or self.refusal

    def next_wakeup_ns(self) -> int:
        """Return when `tick` is to be called next."""
        return self._silent_ns if self.welcomed else self._hello_ns

    def tick(self, now_ns: int) -> SessionEvent | None:
        """Return what is due."""
        if self.welcomed:
            if now_ns < self._silent_ns:
                return None
            self.welcomed = False
            self._hello_ns = now_ns
            return SessionEvent.LOST
        if now_ns < self._hello_ns:
            return None
        self._hello_ns = now_ns + self._hello_interval_ns
        return SessionEvent.HELLO
