"""Every role, message and certificate over TLS between two processes: allowed or refused as a table says."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from mainspring.cli.authority import Authority
from mainspring.messages.roles import MAY_SAY, Role, fault
from mainspring.transport import listener
from mainspring.transport.bounds import Limits
from mainspring.transport.certificate import BadCertificate, Certificate, Named, parse_named, revoked
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from tests.messages.test_roles import MESSAGES, blank
from tests.patience import PATIENCE_S
from tests.transport.issuing import Forced, Issue, issuing
from tests.transport.raw import over_tcp_alone

LIMITS = Limits(1 << 20, 1 << 20, 100)
CERTIFICATES = {
    "right": "",
    "other role": "its certificate is for the role",
    "other name": "its certificate is for the",
    "other cluster": "its certificate is of the cluster 'elsewhere'",
    "other authority": "certificate",
    "expired": "certificate has expired",
    "revoked": "certificate revoked",
    "anonymous": "it shows no certificate",
    "none": "TLS",
}
"""What a process shows, and what the other end says of it; nothing of what is allowed."""
ALLOWED = {
    ("worker", "controller"): "Deposed Described Goodbye Pong Restored Result WorkerHello",
    ("gateway", "controller"): (
        "AdminRequest Arrival Cancel Deposed Drained FeedbackCounted GatewayHello GatewayLearning Goodbye "
        "Pong QueryArrival RelayFeedback ShardMap StepsKnown TokensUsed"
    ),
    ("repository", "controller"): "AdminRequest Awaited Deposed Drained GatewayHello Goodbye Pong",
    ("observer", "controller"): "Goodbye ObserverHello Pong",
    ("operator", "controller"): "Goodbye ObserverHello Operate Pong",
    ("provider", "controller"): "Goodbye Pong ProviderHello Running",
    ("controller", "controller"): "FollowerHello Goodbye Pong",
    ("gateway", "worker"): "Input",
    ("gateway", "repository"): "GetIndex LoadModel UnloadModel",
}
"""What each role may say where it connects over TCP, with its right certificate, and with no other."""


class Outcome(NamedTuple):
    """What the receiver of a connection knows of the other end, empty if it let nobody in; and why not."""

    role: str
    why: str


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    over_tcp_alone(monkeypatch)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of authorities, by what is wrong with what they issue."""
    made = {kind: tmp_path_factory.mktemp("keys") for kind in ("right", "other authority")}
    Authority.create(made["right"], "here")
    Authority.create(made["other authority"], "here")
    return made


def called(kind: str, role: str) -> str:
    return f"{kind.replace(' ', '-')}-{role}"


def shown(kind: str, role: str, folders: dict[str, Path]) -> Keys | None:
    """Return the keys of a process of a role, `called` so, that has a certificate of a kind."""
    right, name = folders["right"], called(kind if kind != "other name" else "another", role)
    match kind:
        case "right":
            return Keys(str(issuing(right)(role, name)))
        case "other role":
            other = Role.WORKER if role != Role.WORKER else Role.GATEWAY
            return Keys(str(issuing(right)(other, name)))
        case "other name":
            return Keys(str(issuing(right)(role, name)))
        case "other cluster":
            return Forced(issuing(right, cluster="elsewhere")(role, name))
        case "other authority":
            return Forced(issuing(folders[kind])(role, name))
        case "expired":
            return Forced(issuing(right, days=0)(role, name))
        case "revoked":
            folder = issuing(right)(role, name)
            if not any(each.named.name == name and each.revoked for each in Authority(right).issued()):
                Authority(right).revoke(name)
            return Forced(folder)
        case "anonymous":
            return Forced(issuing(right)(role, name), shows=False)
    return None


def meet(
    sender: str,
    receiver: str,
    senders: Keys | None,
    receivers: Keys | None,
    kinds: tuple[str, str] = ("right", "right"),
) -> tuple[Outcome, Outcome]:
    """Have ``sender`` connect to ``receiver``; return what each knows of the other."""
    hub, names = Hub(), (called(kinds[0], sender).encode(), called(kinds[1], receiver).encode())
    accepted = {sender: LIMITS for sender, to in ALLOWED if to == receiver}
    server = Listener(hub, "tcp://127.0.0.1:*", accepted, Pass(receiver, receivers), names[1])
    heard: list[str] = []
    server.on_violation = heard.append
    link = Link(
        hub,
        server.address,
        LIMITS,
        name=names[0],
        shows=Pass(sender, senders),
        expects=Identity(receiver, names[1]),
    )
    until_s = time.monotonic() + PATIENCE_S
    while not (server._peers and link.connected) and (server._greeting or not link.failure):
        assert time.monotonic() < until_s, "neither connected nor refused"
        hub.wait(10_000_000)
        server.receive()
        link.receive()
    known = next(iter(server._peers), b"").partition(b"/")[0].decode()
    found = link._greeting is None and link.connected
    hub.close()
    return (
        Outcome(known if found else "", " ".join(heard)),
        Outcome(receiver if found else "", link.refusal or link.failure),
    )


@pytest.mark.parametrize("kind", CERTIFICATES)
def test_each_role_is_let_in_by_its_right_certificate_alone_and_says_its_own_messages(
    kind: str, folders: dict[str, Path]
) -> None:
    if kind == "expired":
        shown(kind, Role.WORKER, folders)
        time.sleep(1.1)
    for sender, receiver in itertools.product(Role, (Role.CONTROLLER, Role.WORKER, Role.REPOSITORY)):
        if kind == "other name" and sender in (Role.OBSERVER, Role.OPERATOR):
            # Their certificates name the person who uses them.
            continue
        keys = shown(kind, sender, folders)
        outcome, told = meet(sender, receiver, keys, shown("right", receiver, folders), (kind, "right"))
        allowed = ALLOWED.get((sender, receiver), "") if kind == "right" else ""
        said = {
            type(message).__name__
            for message in map(blank, MESSAGES)
            if outcome.role and fault(Role(outcome.role), receiver, message) is None
        }
        assert said == set(allowed.split()), f"{sender} with {kind} to {receiver}: {outcome}, {told}"
        if (sender, receiver) in ALLOWED:
            assert bool(outcome.role) == (kind == "right")
            assert CERTIFICATES[kind] in outcome.why, f"{sender} with {kind} to {receiver}: {outcome}"


@pytest.mark.parametrize("kind", [each for each in CERTIFICATES if each != "anonymous"])
def test_a_process_says_nothing_to_a_listener_without_the_right_certificate(
    kind: str, folders: dict[str, Path]
) -> None:
    if kind == "expired":
        shown(kind, Role.WORKER, folders)
        time.sleep(1.1)
    for sender, receiver in ALLOWED:
        keys = shown(kind, receiver, folders)
        kinds = ("right", kind)
        _, outcome = meet(sender, receiver, shown("right", sender, folders), keys, kinds)
        assert bool(outcome.role) == (kind == "right"), f"{sender} to {receiver} with {kind}: {outcome}"
        if kind != "none":
            assert CERTIFICATES[kind] in outcome.why
        else:
            assert "without --keys" in outcome.why


def test_the_table_is_what_processes_are_written_for() -> None:
    for (sender, receiver), names in ALLOWED.items():
        assert {each.__name__ for each in MAY_SAY[Role(sender), Role(receiver)]} == set(names.split())


def test_an_operator_may_come_as_an_observer_and_not_the_other_way_round(issued: Issue) -> None:
    controller = Keys(str(issued("controller", "right-controller")))
    for kind, comes, allowed in (("operator", "observer", True), ("observer", "operator", False)):
        keys = Keys(str(issued(kind, f"some-{kind}")))
        assert bool(meet(Role(comes), Role.CONTROLLER, keys, controller)[0].role) is allowed


def test_a_revoked_peer_is_cut_off_and_a_renewed_one_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LOOK_NS", 10_000_000)
    monkeypatch.setattr("mainspring.transport.keys.LOOK_NS", 10_000_000)
    monkeypatch.setattr("mainspring.transport.link.LOOK_NS", 10_000_000)
    authority = Authority.create(tmp_path, "here")
    folders = [authority.issue(role, role, (), 30) for role in ("controller", "gateway")]
    hub = Hub()
    server = Listener(hub, "tcp://127.0.0.1:*", LIMITS, Pass("controller", Keys(str(folders[0]))))
    link = Link(hub, server.address, LIMITS, shows=Pass("gateway", Keys(str(folders[1]))))

    def until(condition: object) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not eval(str(condition), {"link": link, "server": server}):
            assert time.monotonic() < until_s, condition
            hub.wait(5_000_000)
            server.receive()
            link.receive()

    until("link.connected and server._peers")
    authority.revoke("gateway")
    until("server.ended == 1 and not link.connected")
    assert server._peers == {}
    authority.issue("gateway", "gateway", (), 30)
    until("link.connected and server._peers")
    (folders[0] / "cert.pem").write_text("half")
    time.sleep(0.05)
    until("link.connected")
    hub.close()


@pytest.mark.parametrize(
    ("claimed", "known", "allowed"),
    [
        (b"w0", "w0", True),
        (b"worker:w0:ab12", "w0", True),
        (b"worker:w0", "w0", True),
        (b"", "w0", True),
        (b"anything", "*", True),
        (b"w1", "w0", False),
        (b"worker:w1:ab12", "w0", False),
        (b"w0x", "w0", False),
        (b"worker:w0:a:b", "w0:a", True),
        (b"gateway:w0:ab12", "w0", False),
    ],
)
def test_names_that_a_certificate_allows(claimed: bytes, known: str, allowed: bool) -> None:
    certificate = Certificate((Named("here", "worker", known),), 1, "")
    assert (certificate.fault("here", Identity("worker", claimed)) == "") is allowed


@pytest.mark.parametrize(
    "address",
    ["mainspring://a/b", "mainspring://a/b/c/d", "http://a/b/c", "mainspring:///b/c", "mainspring://a/b/c d"],
)
def test_an_address_that_names_nobody_is_refused(address: str) -> None:
    with pytest.raises(BadCertificate):
        parse_named(address)


@pytest.mark.parametrize(
    "data", [b"", b"\x30", b"\x30\x03\x02\x01\x01", bytes(50), b"\x30\x84\xff\xff\xff\xff"]
)
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(BadCertificate):
        revoked(data)
