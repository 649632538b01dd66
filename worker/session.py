"""The worker's conversation with its controller, without sockets: when to say hello, when all is lost."""

from __future__ import annotations

from enum import StrEnum

from mainspring.messages.peers import Refused

LONGEST_RETRY_NS = 400_000_000
"""Well within the time for which a controller that begins anew keeps requests for its first worker
(`ControllerConfig.start_grace_ms`): else they would be refused for want of one that is there."""


class State(StrEnum):
    """How the worker stands with its controller."""

    GREETING = "greeting"
    """Not (or no longer) known to the controller: says hello until it is welcomed."""
    WELCOMED = "welcomed"


class Session:
    """State machine; whoever moves it to GREETING must abandon what the controller had asked for."""

    def __init__(self, now_ns: int, retry_ns: int, silence_ns: int) -> None:
        self.state = State.GREETING
        self._first_retry_ns = retry_ns
        self._retry_ns = retry_ns
        self._silence_ns = silence_ns
        self._next_hello_ns = now_ns
        self._heard_ns = now_ns
        self._acted = False

    def connected(self, now_ns: int) -> None:
        """There is a new connection: greet over it at once."""
        if self.state is State.GREETING:
            self._next_hello_ns = now_ns
            self._retry_ns = self._first_retry_ns

    def hello_due(self, now_ns: int) -> bool:
        """Whether a hello should be sent now."""
        return self.state is State.GREETING and now_ns >= self._next_hello_ns

    def hello_sent(self, now_ns: int) -> None:
        """A hello was sent; the next one waits twice as long, up to `LONGEST_RETRY_NS`."""
        self._next_hello_ns = now_ns + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, LONGEST_RETRY_NS)

    def heard(self, now_ns: int) -> None:
        """The controller gave a sign of life."""
        self._heard_ns = now_ns

    def acted(self) -> None:
        """An action was accepted: what the last hello told is history."""
        self._acted = True

    def welcome(self, now_ns: int) -> bool:
        """Return whether the worker has to greet again: this welcome answers a hello that is out of date."""
        if self.state is State.WELCOMED and self._acted:
            self.lose(now_ns)
            return True
        self.state = State.WELCOMED
        self._retry_ns = self._first_retry_ns
        return False

    def refused(self, now_ns: int, refused: Refused) -> bool:
        """Return whether the session is lost by this; a refused hello is repeated at its own pace."""
        if self.state is State.WELCOMED and refused.code == "unknown_session":
            self.lose(now_ns)
            return True
        return False

    def silent(self, now_ns: int) -> bool:
        """Whether the controller of this session has been silent for too long."""
        return self.state is State.WELCOMED and now_ns - self._heard_ns > self._silence_ns

    def lose(self, now_ns: int) -> None:
        """The session is over: greet anew, at once."""
        self.state = State.GREETING
        self._acted = False
        self._retry_ns = self._first_retry_ns
        self._next_hello_ns = now_ns
