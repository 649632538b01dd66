"""A peer's session with the controller, for all kinds of peers: hello, welcome, refusal, silence."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainspring.controller.config import ControllerConfig
from mainspring.transport.link import BAD_MESSAGE, UNKNOWN_SESSION, ControllerSession
from mainspring.worker.network import LONGEST_HELLO_NS

HELLO_NS, SILENCE_NS = 200, 1000


def begun() -> ControllerSession:
    return ControllerSession(0, hello_ns=HELLO_NS, silence_ns=SILENCE_NS)


def welcomed() -> ControllerSession:
    session = begun()
    session.hello_sent(0)
    assert session.welcome(10)
    return session


def hellos(session: ControllerSession, until_ns: int, step_ns: int = 1) -> list[int]:
    """Return when hellos leave if nothing is answered."""
    found = []
    for now_ns in range(0, until_ns + 1, step_ns):
        if session.hello_due(now_ns):
            session.hello_sent(now_ns)
            found.append(now_ns)
    return found


def test_the_hello_is_repeated_until_it_is_answered() -> None:
    assert hellos(begun(), 700) == [0, 200, 400, 600]
    assert not hellos(welcomed(), 5000)


def test_hellos_are_spaced_wider_up_to_a_bound() -> None:
    session = ControllerSession(0, hello_ns=200, longest_hello_ns=500, silence_ns=1000)
    assert hellos(session, 2100) == [0, 200, 600, 1100, 1600, 2100]


def test_a_new_connection_is_greeted_at_once_and_one_that_is_known_is_not() -> None:
    session = begun()
    session.hello_sent(0)
    session.connected(50, 1)
    assert session.hello_due(50)
    session.hello_sent(50)
    session.connected(60, 1)
    assert not session.hello_due(60)
    session.welcome(70)
    session.connected(80, 2)
    assert session.welcomed


def test_silence_counts_from_the_last_message_and_only_in_a_session() -> None:
    session = welcomed()
    session.heard(500)
    assert not session.timed_out(1499)
    assert session.next_wakeup_ns() == 1500
    assert session.timed_out(1500)
    assert session.hello_due(1500)
    assert not session.timed_out(9000), "there is no session to lose"
    assert session.silent(9000), "nothing has been heard all the same"


def test_a_controller_that_does_not_know_the_session_is_greeted_at_once() -> None:
    session = welcomed()
    assert session.refused(20, UNKNOWN_SESSION, "say hello first") == (True, True)
    assert not session.welcomed
    assert session.hello_due(20)
    assert session.refusal == "say hello first"
    session.welcome(30)
    assert session.refusal == ""


def test_a_refused_hello_is_repeated_at_its_own_pace() -> None:
    session = begun()
    session.hello_sent(0)
    assert session.refused(10, UNKNOWN_SESSION, "say hello first") == (False, False)
    assert session.refused(10, "name_taken", "a newer process") == (False, True)
    assert session.refused(20, "name_taken", "a newer process") == (False, False), "it was reported before"
    assert not session.hello_due(199)
    assert session.hello_due(200)
    assert session.refusal == "a newer process"


def test_a_refused_message_does_not_end_a_session() -> None:
    session = welcomed()
    assert session.refused(20, BAD_MESSAGE, "what is this") == (False, True)
    assert session.welcomed


def test_a_name_that_another_process_took_ends_the_session() -> None:
    session = welcomed()
    assert session.refused(20, "name_taken", "a newer process").lost
    assert not session.welcomed


def test_a_second_welcome_answers_a_hello_that_is_out_of_date_once_the_peer_has_acted() -> None:
    session = welcomed()
    assert session.welcome(20), "nothing has happened since the hello"
    session.acted()
    assert not session.welcome(30)
    assert not session.welcomed
    assert session.hello_due(30)
    assert not session.welcome(35), "the next hello is not sent yet"
    session.hello_sent(40)
    assert session.welcome(50), "the next hello is up to date"


def test_a_welcome_is_refused_whose_hello_is_out_of_date_though_there_is_no_session_any_more() -> None:
    session = welcomed()
    session.acted()
    assert session.timed_out(10 + SILENCE_NS)
    assert not session.welcome(1100), "another controller was sent the hello of before"
    assert not session.welcomed
    assert session.hello_due(1100)
    session.hello_sent(1100)
    assert session.welcome(1110)


def test_a_workers_hellos_are_closer_together_than_a_new_controller_keeps_requests() -> None:
    session = ControllerSession(0, hello_ns=200_000_000, longest_hello_ns=LONGEST_HELLO_NS, silence_ns=10**9)
    longest_ns = max(after - before for before, after in pairwise(hellos(session, 20 * 10**9, 10_000_000)))
    assert 2 * longest_ns < ControllerConfig().start_grace_ms * 1e6


class Peer(RuleBasedStateMachine):
    """A peer that does what its session says, against a model of what it has been through."""

    @initialize(hello_ns=st.integers(1, 300), longest_ns=st.integers(0, 900), silence_ns=st.integers(1, 1000))
    def begin(self, hello_ns: int, longest_ns: int, silence_ns: int) -> None:
        self.now_ns = 1000
        self.hello_ns, self.longest_ns = hello_ns, max(hello_ns, longest_ns)
        self.silence_ns = silence_ns
        self.session = ControllerSession(
            self.now_ns, hello_ns=hello_ns, longest_hello_ns=longest_ns, silence_ns=silence_ns
        )
        self.known = self.acts = False
        self.heard_ns = self.now_ns
        self.greeted_ns: int | None = None
        """When the last hello left; None if another one is due at once."""
        self.opened = 0

    @rule(ns=st.integers(1, 500))
    def wait(self, ns: int) -> None:
        due_ns = self.session.next_wakeup_ns()
        self.now_ns += ns
        expected = self.known and self.now_ns - self.heard_ns >= self.silence_ns
        if self.known:
            assert expected == (self.now_ns >= due_ns)
        assert self.session.timed_out(self.now_ns) == expected
        if expected:
            self.lost()

    @rule()
    def say_hello(self) -> None:
        due = self.session.hello_due(self.now_ns)
        if self.greeted_ns is None or self.known:
            assert due == (not self.known)
        else:
            assert due <= (self.now_ns - self.greeted_ns >= self.hello_ns), "sooner than it may"
            assert due >= (self.now_ns - self.greeted_ns >= self.longest_ns), "later than it must"
        if due:
            self.session.hello_sent(self.now_ns)
            self.greeted_ns, self.acts = self.now_ns, False

    @rule()
    def hear(self) -> None:
        self.session.heard(self.now_ns)
        self.heard_ns = self.now_ns

    @rule()
    def connect(self) -> None:
        self.opened += 1
        self.session.connected(self.now_ns, self.opened)
        if not self.known:
            self.greeted_ns = None

    @rule()
    def be_welcomed(self) -> None:
        assert self.session.welcome(self.now_ns) == (not self.acts)
        if self.acts:
            self.lost()
        else:
            self.known, self.heard_ns = True, self.now_ns
            assert self.session.refusal == ""

    @precondition(lambda self: self.known)
    @rule()
    def act(self) -> None:
        self.session.acted()
        self.acts = True

    @rule(code=st.sampled_from([UNKNOWN_SESSION, BAD_MESSAGE, "name_taken", "too_many_peers"]))
    def be_refused(self, code: str) -> None:
        lost = self.known and code != BAD_MESSAGE
        assert self.session.refused(self.now_ns, code, code).lost == lost
        if lost or not self.known:
            assert self.session.refusal == code
        if lost:
            self.lost()

    @rule()
    def be_left(self) -> None:
        assert self.session.lose(self.now_ns) == self.known
        if self.known:
            self.lost()

    def lost(self) -> None:
        self.known = False
        self.greeted_ns = None

    @invariant()
    def the_session_is_what_the_peer_has_been_through(self) -> None:
        if hasattr(self, "session"):
            assert self.session.welcomed == self.known


TestPeer = Peer.TestCase


def test_a_session_ends_with_its_connection_and_not_after_silence() -> None:
    session = welcomed()
    assert not session.cut_off(20, obeyed=True)
    assert session.cut_off(20, obeyed=False)
    assert session.hello_due(20)
    assert not session.cut_off(20, obeyed=False)
