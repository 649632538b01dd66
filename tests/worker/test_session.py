"""When the worker says hello, and when it takes a session for lost."""

from __future__ import annotations

from itertools import pairwise

from mainspring.controller.config import ControllerConfig
from mainspring.messages.peers import Refused
from mainspring.worker.session import Session, State

UNKNOWN = Refused("unknown_session", "")


def welcomed() -> Session:
    session = Session(0, retry_ns=200, silence_ns=1000)
    session.hello_sent(0)
    assert not session.welcome(10)
    session.heard(10)
    return session


def test_hellos_are_spaced_wider_and_wider() -> None:
    session = Session(0, retry_ns=200, silence_ns=1000)
    sent = []
    for now_ns in range(0, 3001, 50):
        if session.hello_due(now_ns):
            session.hello_sent(now_ns)
            sent.append(now_ns)
    assert sent == [0, 200, 600, 1400, 3000]


def test_silence_is_measured_from_the_last_word() -> None:
    session = welcomed()
    session.heard(500)
    assert not session.silent(1500)
    assert session.silent(1501)


def test_greeting_worker_does_not_count_silence() -> None:
    assert not Session(0, 200, 1000).silent(10**12)


def test_unknown_session_is_greeted_anew_at_once() -> None:
    session = welcomed()
    assert session.refused(20, UNKNOWN)
    assert session.state is State.GREETING
    assert session.hello_due(20)


def test_refused_hello_is_repeated_at_its_own_pace() -> None:
    session = Session(0, 200, 1000)
    session.hello_sent(0)
    assert not session.refused(10, UNKNOWN)
    assert not session.refused(10, Refused("name_taken", ""))
    assert not session.hello_due(199)
    assert session.hello_due(200)


def test_second_welcome_after_actions_means_that_the_hello_was_out_of_date() -> None:
    session = welcomed()
    assert not session.welcome(20), "nothing has happened since the hello"
    session.acted()
    assert session.welcome(30)
    assert session.state is State.GREETING


def test_hellos_are_closer_together_than_a_new_controller_keeps_requests() -> None:
    session, now_ns, instants = Session(0, 200_000_000, 10**9), 0, [0]
    while now_ns < 20 * 10**9:
        now_ns += 10_000_000
        if session.hello_due(now_ns):
            session.hello_sent(now_ns)
            instants.append(now_ns)
    longest_ns = max(after - before for before, after in pairwise(instants))
    assert 2 * longest_ns < ControllerConfig().start_grace_ms * 1e6
