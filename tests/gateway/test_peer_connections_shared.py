"""What a gateway and its workers share: seeded runs of both real ends over connections that break.

Each request's content is its own. A worker that reads another's, or a client that is sent another's, has read
a place that was used again too early; a place that is not free at the end was lost. Some inputs lie in
memory of clients, which use a place again as soon as their request has its reply, and some clients leave.
"""

from __future__ import annotations

import os

import pytest

from mainspring.gateway.memory import Memory
from mainspring.gateway.peer_connections import Shared
from mainspring.messages.codec import FROM_GATEWAY, BadMessage, encode
from mainspring.messages.peers import (
    ClientSegment,
    ClientSegmentOver,
    ClientSegmentTaken,
    Input,
    Output,
    Place,
    Read,
    Segment,
    Taken,
)
from mainspring.transport.bounds import Delivery
from mainspring.worker.segments import Segments
from tests.fuzz import seeded
from tests.gateway.sharing import LARGE, ROOM, STEPS, ClientEnd, GatewayEnd, Wire, WorkerEnd, World


@seeded(40)
def test_no_place_is_used_again_while_anybody_may_read_it(seed: int) -> None:
    world = World(seed)
    steps, weights = list(STEPS), list(STEPS.values())
    for number in range(1500):
        world.rng.choices(steps, weights)[0](world)
        if number % 10 == 0:
            world.check()
    world.check()
    world.end()
    assert world.counts["inputs in places"] > 20
    assert world.counts["outputs in places"] > 10


def test_the_runs_come_to_late_readers_and_to_clients_memory() -> None:
    overtaken = in_clients = copied = late = 0
    for seed in range(40, 60):
        world = World(seed)
        steps, weights = list(STEPS), list(STEPS.values())
        for _ in range(1500):
            world.rng.choices(steps, weights)[0](world)
        overtaken += world.counts["overtaken"]
        in_clients += world.counts["inputs in clients' memory"]
        copied += world.counts["copied by the device"]
        late += world.counts["overtaken late"]
    assert overtaken, "no worker ever read a place that was not waited for: the runs show nothing"
    assert in_clients > 100
    assert copied > 100
    assert late, "no device ever read a place that was not waited for"


# --- messages that make no sense ---


def pair() -> tuple[Shared, GatewayEnd, World]:
    """Return a gateway's end whose worker has answered, with both behind it."""
    world = World(0)
    shared = world.shared[0]
    shared.send(Input(1, 1), [bytes(LARGE)])
    for _ in range(40):
        world.take_input()
        if (parts := world.links[0].receive()) is not None and shared.receive(parts) is None:
            break
    return shared, world.links[0], world


def test_places_are_named_only_once_the_worker_has_answered() -> None:
    world = World(0)
    world.contents[1] = [bytes(LARGE)]
    shared, wire = world.shared[0], world.links[0].wire
    assert wire is not None
    shared.send(Input(1, 1), [bytes(LARGE)])
    kinds = [FROM_GATEWAY.decode(parts[0]) for parts, _ in wire.to_worker]
    assert [type(each) for each in kinds] == [Segment, Input]
    assert kinds[1].places == ()  # type: ignore[union-attr]
    shared, link, world = pair()
    assert link.wire is not None
    link.wire.to_worker.clear()
    shared.send(Input(2, 1), [bytes(LARGE), b"small"])
    parts, _ = link.wire.to_worker.popleft()
    message = FROM_GATEWAY.decode(parts[0])
    assert isinstance(message, Input)
    assert message.places[0] is not None
    assert message.places[1] is None
    assert parts[1:] == [b"small"]


def test_a_full_slab_leaves_frames() -> None:
    shared, link, world = pair()
    assert link.wire is not None
    all_of_it = [place for _ in range(64) if (place := world.slab.take(LARGE)) is not None]
    link.wire.to_worker.clear()
    shared.send(Input(2, 1), [bytes(LARGE)])
    parts, _ = link.wire.to_worker.popleft()
    message = FROM_GATEWAY.decode(parts[0])
    assert isinstance(message, Input)
    assert message.places == ()
    assert parts[1:] == [bytes(LARGE)]
    assert len(world.memory.take(LARGE)) == LARGE, "it is received all the same"
    assert all_of_it


@pytest.mark.parametrize(
    ("places", "frames", "why"),
    [
        ((Place(0, 100, 0, 1),), 0, "not in the slab"),
        ((Place(1 << 40, 100, 0, 1),), 0, "not in the slab"),
        ((Place(8 * 4096, 1 << 40, 0, 1),), 0, "not in the slab"),
        ((Place(8 * 4096, 0, 0, 1),), 0, "not in the slab"),
        ((Place(8 * 4096, 64, 1 << 20, 1),), 0, "no slot"),
        ((Place(8 * 4096, 64, 0, 1), None), 0, "fewer frames"),
        ((Place(8 * 4096, 64, 0, 1), None), 2, "more frames"),
        ((Place(8 * 4096, 64, 0, 1), Place(8 * 4096, 64, 0, 1)), 0, "before"),
    ],
)
def test_outputs_that_are_not_there_are_unusable(places: tuple[Place, ...], frames: int, why: str) -> None:
    shared, _, _ = pair()
    with pytest.raises(BadMessage, match=why):
        shared.receive([encode(Output(1, 1, 1, None, places)), *[b"x"] * frames])
    assert shared.receive([encode(Output(1, 1, 1)), b"x"]) == (Output(1, 1, 1), (b"x",))


def test_the_worker_reads_memory_of_a_client_once_it_has_said_so() -> None:
    shared, link, world = pair()
    client = ClientEnd(world.memory)
    seen = client.write(1, b"x" * (LARGE + 8))
    assert seen is not None
    assert link.wire is not None
    for number, answer in enumerate([None, ClientSegmentTaken(client.lent.number, "no"), None, None]):
        if answer is not None:
            shared.receive([encode(answer)])
        link.wire.to_worker.clear()
        shared.send(Input(number, 1), [seen])
        sent = [FROM_GATEWAY.decode(parts[0]) for parts, _ in link.wire.to_worker]
        # It is offered once, and what comes before the answer, or behind a refusal, lies in the slab.
        offered = [ClientSegment(client.lent.number, client.own.size)] if number == 0 else []
        assert [each for each in sent if isinstance(each, ClientSegment)] == offered
        (message,) = [each for each in sent if isinstance(each, Input)]
        (place,) = message.places
        assert place is not None
        assert place.client == 0
    shared.receive([encode(ClientSegmentTaken(client.lent.number))])
    shared.receive([encode(ClientSegmentTaken(77))])
    link.wire.to_worker.clear()
    shared.send(Input(9, 1), [seen[8:]])
    shared.send(Input(9, 1), [client.lent.mapped[-LARGE:].data])
    places = [FROM_GATEWAY.decode(parts[0]).places[0] for parts, _ in link.wire.to_worker]  # type: ignore[union-attr]
    begin = client.slab.find(client.requests[1][0])
    assert begin is not None
    assert places == [
        Place(begin[0] + 8, LARGE, 0, 0, client.lent.number),
        Place(client.own.size - LARGE, LARGE, 0, 0, client.lent.number),
    ]
    world.memory.lendings.end(client.lent)
    link.wire.to_worker.clear()
    shared.settle()
    shared.settle()
    assert [parts[0] for parts, _ in link.wire.to_worker] == [encode(ClientSegmentOver(client.lent.number))]
    shared.send(Input(9, 1), [seen])
    parts, _ = link.wire.to_worker.pop()
    assert FROM_GATEWAY.decode(parts[0]).places[0].client == 0, "it is copied"  # type: ignore[union-attr]


def test_a_worker_can_not_say_that_it_has_read_what_was_not_sent() -> None:
    shared, _, _ = pair()
    with pytest.raises(BadMessage, match="were sent"):
        shared.receive([encode(Taken(5))])


def test_a_segment_that_was_not_asked_for_is_unusable() -> None:
    shared, _, world = pair()
    with pytest.raises(BadMessage, match="not asked for"):
        shared.receive([encode(Segment(100))])
    with pytest.raises(BadMessage, match="no segment"):
        world.shared[1].receive([encode(Output(1, 1, 1, None, (Place(8 * 4096, 64, 0, 1),)))])


def test_a_worker_takes_one_segment_with_a_descriptor() -> None:
    end = WorkerEnd()
    segments = Segments(end, ROOM)
    with pytest.raises(BadMessage, match="without its descriptor"):
        segments.said(b"g", Segment(100))
    end._descriptor = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(BadMessage, match="not a file in memory"):
        segments.said(b"g", Segment(100))
    segments.said(b"g", Read((1, 2)))
    with pytest.raises(BadMessage, match="no segment came"):
        segments.frames(b"g", Input(1, 1, places=(Place(8 * 4096, 64, 0, 1),)), [])
    assert segments.lend(b"g", [bytes(LARGE)]) == ((), [bytes(LARGE)])


def test_what_a_message_that_could_not_be_sent_would_have_said_the_next_one_says() -> None:
    shared, link, _ = pair()
    assert link.wire is not None
    received = shared.receive([encode(Output(1, 1, 1, None, (Place(8 * 4096, 64, 0, 7),)))])
    assert received is not None
    del received
    link.wire.to_worker.clear()
    send, link.send = link.send, lambda parts, keeps=True: Delivery.FULL  # type: ignore[method-assign]
    assert shared.send(Input(2, 1), [bytes(LARGE)]) is Delivery.FULL
    link.send = send  # type: ignore[method-assign]
    for wanted in ((7,), ()):
        assert shared.send(Input(3, 1), [b"small"]) is Delivery.SENT
        message = FROM_GATEWAY.decode(link.wire.to_worker.popleft()[0][0])
        assert isinstance(message, Input)
        assert message.read == wanted


def test_a_gateway_without_a_slab_offers_none() -> None:
    link = GatewayEnd()
    shared = Shared(link, Memory(0))
    link.wire, link.opened = Wire(b"g"), 1
    shared.send(Input(1, 1), [bytes(LARGE)])
    assert len(link.wire.to_worker) == 1
