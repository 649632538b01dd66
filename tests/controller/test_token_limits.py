"""Limits of tokens over all gateways together, with the gateways' own books, whatever comes and goes when."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from mainspring.controller.token_limits import TokenLimits
from mainspring.gateway.core.accounts import Account
from mainspring.gateway.token_limits import TokenLimits as OwnLimits
from mainspring.messages.limits import TokenParts, TokensUsed
from mainspring.transport.tokens import Credential, Gate, Token, credential, token_sha256

SECOND_NS = 1_000_000_000
SECRETS = ("one", "two", "three")
TOKENS = tuple(
    Token(
        name=secret,
        sha256=token_sha256(secret),
        models=("*",),
        rate=100.0,
        burst=5,
        in_flight=limit,
        in_flight_bytes=1_000 * limit,
    )
    for secret, limit in zip(SECRETS, (1, 7, 40), strict=True)
)


class Gateway:
    """A gateway with its connection to the controller, on which messages take their time."""

    def __init__(self, welcome: int) -> None:
        self.gate = Gate(TOKENS)
        self.limits = OwnLimits(self.gate)
        self.limits.welcomed(welcome)
        self.down: deque[TokenParts] = deque()
        self.up: deque[TokensUsed] = deque()
        self.held: list[tuple[int, Account]] = []
        """Each request in flight: the place of its token, and its account."""

    def ask(self, now_ns: int, place: int) -> bool:
        """Ask for a request with 100 bytes of inputs; return whether it was taken."""
        shown = credential(SECRETS[place])
        if self.gate.check(shown, "m", now_ns) is not None:
            return False
        return self.take(shown, place)

    def take(self, shown: Credential, place: int) -> bool:
        token = self.gate.token_of(shown)
        assert token is not None
        account = self.limits._account(token)
        if account.take(100) is not None:
            return False
        self.held.append((place, account))
        return True

    def end(self, index: int) -> None:
        _, account = self.held.pop(index)
        account.in_flight -= 1
        account.in_flight_bytes -= 100

    def rate(self, place: int) -> float:
        """Return the part of its token's rate that may be used here."""
        return self.limits._rate_of(TOKENS[place])


class Cluster:
    """A controller with gateways that come and go."""

    def __init__(self) -> None:
        self.limits = TokenLimits()
        self.gateways: dict[int, Gateway] = {}
        self._number = 0

    def join(self) -> None:
        self._number += 1
        self.gateways[self._number] = Gateway(self.limits.joined(self._number))
        self.send()

    def leave(self, number: int) -> None:
        del self.gateways[number]
        self.limits.left(number)
        self.send()

    def send(self) -> None:
        for number, parts in self.limits.news():
            self.gateways[number].down.append(parts)

    def step(self, now_ns: int, number: int) -> None:
        """Have the next message of a gateway's connection come, in either direction."""
        gateway = self.gateways[number]
        if gateway.down:
            gateway.up.append(gateway.limits.told(now_ns, gateway.down.popleft()))
        elif gateway.up:
            self.limits.used(number, gateway.up.popleft())
            self.send()

    def check(self) -> None:
        """Check that all together are within the limits."""
        for place, token in enumerate(TOKENS):
            held = sum(place == each for gateway in self.gateways.values() for each, _ in gateway.held)
            assert held <= (token.in_flight or 0), f"{held} of {token.name} are in flight"
            rate = sum(gateway.rate(place) for gateway in self.gateways.values())
            assert rate <= 1.0 + 1e-9, f"{rate} of the rate of {token.name} may be used"


@pytest.mark.parametrize("seed", range(60))
def test_limits_hold_over_all_gateways_whatever_comes_and_goes_when(seed: int) -> None:
    random = Random(seed)
    cluster, now_ns, taken = Cluster(), 0, 0
    cluster.join()
    for _ in range(3_000):
        now_ns += random.randrange(5_000_000)
        number = random.choice(list(cluster.gateways))
        gateway, chance = cluster.gateways[number], random.random()
        if chance < 0.005 and len(cluster.gateways) < 5:
            cluster.join()
        elif chance < 0.008 and len(cluster.gateways) > 1:
            cluster.leave(number)
        elif chance < 0.4:
            taken += gateway.ask(now_ns, random.randrange(3))
        elif chance < 0.6 and gateway.held:
            gateway.end(random.randrange(len(gateway.held)))
        elif chance < 0.7 and gateway.limits.report_due(now_ns):
            gateway.up.append(gateway.limits.report(now_ns))
        else:
            cluster.step(now_ns, number)
        cluster.check()
    assert taken > 300


def settled(cluster: Cluster, now_ns: int) -> None:
    """Have all messages come that are on their way, and those that they lead to."""
    for _ in range(100):
        for number in list(cluster.gateways):
            cluster.step(now_ns, number)


def test_a_gateway_alone_has_all_of_every_limit() -> None:
    cluster = Cluster()
    cluster.join()
    assert sum(cluster.gateways[1].take(credential("three"), 2) for _ in range(50)) == 40
    assert not cluster.gateways[1].down
    assert cluster.gateways[1].limits.next_ns() is None


def test_one_that_comes_has_nothing_until_the_others_have_given_it_up() -> None:
    cluster = Cluster()
    cluster.join()
    cluster.join()
    assert not cluster.gateways[2].take(credential("three"), 2)
    assert cluster.gateways[2].rate(2) == 0.0
    settled(cluster, 0)
    assert sum(cluster.gateways[2].take(credential("three"), 2) for _ in range(50)) == 20


def test_limits_go_where_requests_are_and_come_back_when_a_gateway_is_gone() -> None:
    cluster = Cluster()
    cluster.join()
    cluster.join()
    settled(cluster, 0)
    for turn in range(1, 20):
        now_ns = turn * SECOND_NS
        for _ in range(40):
            cluster.gateways[2].ask(now_ns, 2)
        cluster.gateways[2].up.append(cluster.gateways[2].limits.report(now_ns))
        settled(cluster, now_ns)
    assert len(cluster.gateways[2].held) >= 36
    assert cluster.gateways[2].rate(2) > 0.85
    assert cluster.gateways[1].take(credential("three"), 2)
    cluster.leave(2)
    settled(cluster, 30 * SECOND_NS)
    assert cluster.gateways[1].rate(0) == 1.0
    for turn in range(31, 36):
        now_ns = turn * SECOND_NS
        while cluster.gateways[1].take(credential("three"), 2):
            pass
        settled(cluster, now_ns)
    assert len(cluster.gateways[1].held) == 40


def test_what_cannot_be_divided_goes_round() -> None:
    cluster, served = Cluster(), {1: 0, 2: 0}
    cluster.join()
    cluster.join()
    settled(cluster, 0)
    for turn in range(1, 100):
        now_ns = turn * SECOND_NS // 4
        for number, gateway in cluster.gateways.items():
            served[number] += gateway.ask(now_ns, 0)
            cluster.check()
            while gateway.held:
                gateway.end(0)
            gateway.up.append(gateway.limits.report(now_ns))
        settled(cluster, now_ns)
    assert min(served.values()) > 15
