"""A peer's session with the controller: hello until it is welcomed, and again when the session is lost. Pure.

Gateways, workers, the model repository and consoles all keep one. Their drivers own the connection, report to
the session what happens, and do what is due::

    session.connected(now_ns, link.opened)        # in every turn
    session.heard(now_ns)                         # for every message of the controller
    session.welcome(now_ns), session.refused(...), session.lose(now_ns)
    if session.timed_out(now_ns): ...             # give up what belonged to the session
    if session.hello_due(now_ns): ...; session.hello_sent(now_ns)
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_SESSION = "unknown_session"
"""The controller's refusal of a peer whose hello it has not received, or whose session it has ended."""
BAD_MESSAGE = "bad_message"
"""The controller's refusal of one message; the session goes on."""


class Refusal(NamedTuple):
    """The meaning of a refusal."""

    lost: bool
    """The session has ended by it."""
    news: bool
    """A person should read it: it is neither repeated nor the usual answer to a peer that is not welcomed."""


class ControllerSession:
    """The state of one peer's session; all instants are on the peer's monotonic clock."""

    def __init__(self, now_ns: int, *, hello_ns: int, silence_ns: int, longest_hello_ns: int = 0) -> None:
        """``hello_ns``: from a hello to its repetition, which doubles each time up to ``longest_hello_ns``.

        ``silence_ns``: a controller from which nothing has come for this long is lost.
        """
        self.welcomed = False
        """True if the controller knows this peer."""
        self.refusal = ""
        """Reason why the controller does not take this peer, by its last refusal; empty once it is
        welcomed."""
        self._first_hello_ns = hello_ns
        self._longest_hello_ns = max(hello_ns, longest_hello_ns)
        self._silence_ns = silence_ns
        self._repeat_ns = hello_ns
        self._hello_ns = now_ns
        self._heard_ns = now_ns
        self._opened = 0
        self._acted = False
        self._reported = ""

    def connected(self, now_ns: int, opened: int) -> None:
        """Note how many connections there have been: over a new one, the hello is due at once."""
        if opened != self._opened:
            self._opened = opened
            if not self.welcomed:
                self._greet_at_once(now_ns)

    def heard(self, now_ns: int) -> None:
        """Note a message of the controller."""
        self._heard_ns = now_ns

    def acted(self) -> None:
        """Note that the content of the last hello is out of date."""
        self._acted = True

    def welcome(self, now_ns: int) -> bool:
        """Begin a session; return False if it is lost at once, because its hello is out of date."""
        if self.welcomed and self._acted:
            self.lose(now_ns)
            return False
        self.welcomed = True
        self.refusal = self._reported = ""
        self._repeat_ns = self._first_hello_ns
        self.heard(now_ns)
        return True

    def refused(self, now_ns: int, code: str, text: str) -> Refusal:
        """Take a refusal in: it ends the session, or changes nothing about when the hello is repeated."""
        news = (self.welcomed or code != UNKNOWN_SESSION) and text != self._reported
        if news:
            self._reported = text
        if code == BAD_MESSAGE and self.welcomed:
            return Refusal(False, news)
        return Refusal(self.lose(now_ns, text), news)

    def lose(self, now_ns: int, refusal: str = "") -> bool:
        """End the session, so that the hello is due at once; return whether there was one."""
        lost, self.welcomed = self.welcomed, False
        self.refusal = refusal or self.refusal
        if lost:
            self._greet_at_once(now_ns)
        return lost

    def silent(self, now_ns: int) -> bool:
        """Say whether the controller has been silent for too long."""
        return self.silent_for_ns(now_ns) >= self._silence_ns

    def silent_for_ns(self, now_ns: int) -> int:
        """Return for how long nothing has come of the controller."""
        return now_ns - self._heard_ns

    def timed_out(self, now_ns: int) -> bool:
        """End a session whose controller is silent; return whether there was one."""
        return self.welcomed and self.silent(now_ns) and self.lose(now_ns)

    def hello_due(self, now_ns: int) -> bool:
        """Say whether a hello should be sent now."""
        return not self.welcomed and now_ns >= self._hello_ns

    def hello_sent(self, now_ns: int) -> None:
        """Note that a hello was sent; the next one is due later."""
        self._hello_ns = now_ns + self._repeat_ns
        self._repeat_ns = min(2 * self._repeat_ns, self._longest_hello_ns)

    def next_wakeup_ns(self) -> int:
        """Return when `timed_out` or `hello_due` becomes true if nothing happens."""
        return self._heard_ns + self._silence_ns if self.welcomed else self._hello_ns

    def _greet_at_once(self, now_ns: int) -> None:
        self._acted = False
        self._repeat_ns = self._first_hello_ns
        self._hello_ns = now_ns
