"""Garbage for every socket, by hypothesis: random bytes, valid messages bent in their bytes or fields."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from mainspring.messages import PROTOCOL_VERSION, actions, clients, peers
from mainspring.messages.codec import encode
from mainspring.messages.codes import Reason, Status
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.status import ClusterStatus
from tests.gateway.fakes import make_spec

MESSAGES = int(os.environ.get("FUZZ_MESSAGES", "2100"))
"""Messages in all, shared out over the sockets; ``make garbage`` asks for more."""
SEED = int(os.environ.get("FUZZ_SEED", "0"))
SOCKETS = 8
BATCH = 50

SPEC = make_spec("fuzzed")
HEADER = peers.TensorHeader("data", "float32", (1, 4))
STATUS = ClusterStatus("clockwork", (), (), 0, {})
RESULT = actions.Result(1, "w0", Status.OK, 1, 2, 1)

TO_CONTROLLER: tuple[msgspec.Struct, ...] = (
    peers.WorkerHello(PROTOCOL_VERSION, "fuzzed", "cpu", 4, PAGE_BYTES, "tcp://127.0.0.1:1"),
    peers.GatewayHello(PROTOCOL_VERSION, "fuzzed"),
    peers.Pong(1, 1, 2, 3),
    peers.Arrival(1 << 40, "fuzzed", 1, 10**9),
    peers.Arrival(1 << 40 | 7, "fuzzed", 1, None),
    peers.Cancel(1 << 40),
    peers.AdminRequest(1, add=SPEC),
    peers.AdminRequest(1, remove="fuzzed"),
    peers.AdminRequest(1, status=True),
    peers.AdminRequest(1, metrics=True),
    RESULT,
    actions.Result(1, "w0", Status.ENGINE_ERROR, 1, 2, 1, "broken"),
)
TO_WORKER: tuple[msgspec.Struct, ...] = (
    peers.Refused("bad_message", "why"),
    peers.Ping(1, 2),
    actions.Prepare(1, "w", SPEC),
    actions.Release(2, "w", "fuzzed"),
    actions.Load(3, "w", "fuzzed", (1,), 0, 1 << 62, 0, 1),
    actions.Unload(4, "w", "fuzzed"),
    actions.Infer(5, "w", "fuzzed", 2, (1, 2), (1, 1), (False, False), 0, 1 << 62, 0, 1),
    actions.Infer(6, "w", "fuzzed", 1, (3,), (1,), (False,), 0, 1, 0, 1),
)
INPUTS: tuple[msgspec.Struct, ...] = (peers.Input(5, 1), peers.Input(5, 2, True), peers.Input(1 << 40, 9))
TO_GATEWAY: tuple[msgspec.Struct, ...] = (
    peers.Welcome(PROTOCOL_VERSION, 3),
    peers.Refused("unknown_session", "who?"),
    peers.Ping(1, 2),
    peers.Goodbye("bye"),
    peers.WorkerUp("fuzzed", "tcp://127.0.0.1:1"),
    peers.WorkerDown("fuzzed"),
    peers.ModelUp(SPEC),
    peers.ModelDown("fuzzed"),
    peers.Dispatch(1, "fuzzed", (3 << 40, (3 << 40) + 1), (True, False), 2),
    peers.Rejected(3 << 40, Reason.DEADLINE_PASSED, "late", 5),
    peers.AdminReply(1, status=STATUS),
)
TIMES = peers.OutputTimes(-5, 1 << 62, -1, 7, -(1 << 62))
OUTPUTS: tuple[msgspec.Struct, ...] = (peers.Output(1, 3 << 40, 1_000), peers.Output(2, 1, 0, TIMES))
FROM_CLIENT: tuple[msgspec.Struct, ...] = (
    clients.ClientHello(PROTOCOL_VERSION, "fuzz"),
    clients.InferRequest(1, "double", (HEADER,), 10**9),
    clients.InferRequest(2, "hold", (HEADER,), 10**6, ("sum",)),
    clients.InferRequest(3, "mute", (HEADER, HEADER), None),
    clients.CancelRequest(2),
    clients.EndSequence(3, "double", "call"),
    clients.ListModels(4),
    clients.AddModel(5, SPEC),
    clients.RemoveModel(6, "fuzzed"),
    clients.GetStatus(7),
)
TO_CLIENT: tuple[msgspec.Struct, ...] = (
    clients.ClientWelcome(PROTOCOL_VERSION, "0", 1 << 28, 100),
    clients.ClientRefused("bad_message", "why"),
    clients.InferReply(1, (HEADER,), clients.Timing(1, 1, 1, None, 1, False, "w")),
    clients.ErrorReply(2, Reason.OVERLOADED, "full"),
    clients.ModelList(3, (SPEC,)),
    clients.StatusReply(4, STATUS),
    clients.Done(5),
)

_WEIRD: tuple[Any, ...] = (
    0, -1, 1, 2, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1.5, float("nan"), float("inf"), True,
    None, "", "fuzzed", "x" * 500, "\x00", "tcp://", "nonsense", b"\xff", [], [1], [-1, 1 << 62], ["a"], [[]],
    {}, {"a": 1}, {"type": "ping"},
)  # fmt: skip


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where every field inside a decoded message is."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, inner in items:
        found += [(*at, key), *_paths(inner, (*at, key))]
    return found


def _bent(place: tuple[Any, tuple[Any, ...]], value: Any) -> bytes:
    """Encode a decoded message with the field at one place changed."""
    plain, path = place
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), strict=False)
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return msgspec.msgpack.encode(copy)


def flipped(whole: bytes, number: int) -> bytes:
    """Change some bytes, and perhaps cut the end off."""
    generator = random.Random(number)
    changed = bytearray(whole)
    for _ in range(generator.randrange(4)):
        changed[generator.randrange(len(changed))] = generator.randrange(256)
    return bytes(changed[: generator.randrange(len(changed) + 1)] if generator.random() < 0.3 else changed)


def messages(valid: Sequence[msgspec.Struct]) -> st.SearchStrategy[list[bytes]]:
    """Draw one message: its first frame bent or random, and a few frames behind it."""
    wholes = [encode(message) for message in valid]
    plains = [msgspec.msgpack.decode(whole) for whole in wholes]
    places = [(plain, path) for plain in plains for path in _paths(plain) if path != ("type",)]
    first = st.one_of(
        st.builds(_bent, st.sampled_from(places), st.sampled_from(_WEIRD)),
        st.builds(flipped, st.sampled_from(wholes), st.integers(0, 1 << 32)),
        st.sampled_from(wholes),
        st.binary(max_size=64),
    )
    behind = st.sampled_from([[], [], [], [b""], [bytes(16)], [bytes(16), b"x"], [b"y" * 99]])
    return st.builds(lambda head, tail: [head, *tail], first, behind)


def storm(valid: Sequence[msgspec.Struct], send: Callable[[list[list[bytes]]], None]) -> int:
    """Send a socket's share of garbage, a batch at a time; return how many messages it was."""
    sent = 0

    @seed(SEED)
    @settings(
        max_examples=max(2, -(-MESSAGES // SOCKETS // BATCH)),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(messages(valid), min_size=BATCH, max_size=BATCH))
    def batches(batch: list[list[bytes]]) -> None:
        nonlocal sent
        send(batch)
        sent += len(batch)

    batches()
    print(f"{sent:,} messages")
    return sent
