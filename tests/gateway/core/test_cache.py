"""The prediction cache: what is found again, what makes room, and what is dropped with its model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainspring.gateway.core.cache import ENTRY_BYTES, LONGEST_SWEEP, PredictionCache
from mainspring.gateway.core.effects import Accepted
from mainspring.gateway.core.validation import Signature
from mainspring.messages.model import ModelSpec, TensorSpec
from tests.gateway.fakes import make_spec

OUTPUTS = (b"o" * 16, b"p" * 4)
SIZE = ENTRY_BYTES + 20


def accepted(
    name: str = "m", rows: int = 1, order: tuple[int, ...] = (0,), spec: ModelSpec | None = None
) -> Accepted:
    return Accepted(name, rows, None, order, (0, 1), Signature(spec or make_spec(name)))


def found_by(cache: PredictionCache, request: Accepted, *frames: bytes) -> bytes:
    digest = cache.digest(request, frames)
    assert digest is not None
    return digest


def test_nothing_is_kept_unless_it_is_turned_on() -> None:
    cache = PredictionCache(1 << 20)
    assert cache.digest(accepted(), [bytes(16)]) is None
    cache = PredictionCache(1 << 20, ["res*", "bert"])
    assert [name for name in ("resnet", "bert", "bert2", "m") if cache.is_on(name)] == ["resnet", "bert"]
    assert cache.digest(accepted("m"), [bytes(16)]) is None


def test_what_was_kept_is_found_again_and_counted() -> None:
    cache = PredictionCache(1 << 20, ["m"], clock=iter([100, 103]).__next__)
    request = accepted()
    digest = found_by(cache, request, b"x" * 16)
    assert cache.get("m", digest) is None
    assert cache.put(request, digest, OUTPUTS) == 3
    assert cache.put(request, digest, OUTPUTS) == 0, "they are kept already"
    # The controller may tell the same model again: another object, the same model.
    assert cache.get("m", found_by(cache, accepted(), b"x" * 16)) == OUTPUTS
    assert cache.bytes == SIZE
    counts = cache.counts_of("m")
    assert (counts.hits, counts.misses) == (1, 1)
    assert (cache.counts["cache_hits"], cache.counts["cache_misses"]) == (1, 1)
    cache.took("m", digest, 5)
    cache.took("m", b"other", 7)
    assert (counts.hit_ns, counts.miss_ns) == (5, 3 + 7)
    cache.validate()


def test_kept_outputs_do_not_hold_on_to_the_buffer_that_they_came_in() -> None:
    cache = PredictionCache(1 << 20, ["m"])
    request = accepted()
    digest = found_by(cache, request, b"x" * 16)
    came = bytearray(b"o" * 16 + b"p" * 4)
    cache.put(request, digest, (memoryview(came)[:16], memoryview(came)[16:]))
    came[:] = bytes(20)
    assert cache.get("m", digest) == OUTPUTS


@pytest.mark.parametrize(
    "change",
    [
        {"name": "n"},
        {"weights_hash": "2" * 64},
        {"executable": "3" * 64},
        {"inputs": (TensorSpec("data", "int32", (4,)),)},
        {"inputs": (TensorSpec("data", "float32", (2, 2)),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_model_version_or_signature_is_another_key(change: dict[str, Any]) -> None:
    cache = PredictionCache(1 << 20, ["*"])
    ours = found_by(cache, accepted(), b"x" * 16)
    other = msgspec.structs.replace(make_spec("m"), **change)
    assert found_by(cache, accepted(other.name, spec=other), b"x" * 16) != ours


def test_rows_and_bytes_are_part_of_the_key_and_the_order_of_inputs_is_not() -> None:
    cache = PredictionCache(1 << 20, ["*"])
    two = msgspec.structs.replace(
        make_spec("two"), inputs=(TensorSpec("a", "uint8", (2,)), TensorSpec("b", "uint8", (2,)))
    )
    one_way = found_by(cache, accepted("two", 1, (0, 1), two), b"aa", b"bb")
    assert found_by(cache, accepted("two", 1, (1, 0), two), b"bb", b"aa") == one_way
    assert found_by(cache, accepted("two", 1, (1, 0), two), b"aa", b"bb") != one_way
    assert found_by(cache, accepted("two", 2, (0, 1), two), b"aaaa", b"bbbb") != one_way
    empty = msgspec.structs.replace(make_spec("e"), inputs=(TensorSpec("a", "uint8", (0,)),))
    assert found_by(cache, accepted("e", 1, spec=empty), b"") != found_by(
        cache, accepted("e", 2, spec=empty), b""
    )


@given(st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=8)), min_size=2, max_size=20))
def test_keys_are_equal_just_where_rows_and_bytes_are(requests: list[tuple[int, bytes]]) -> None:
    cache = PredictionCache(1 << 20, ["*"])
    digests = [found_by(cache, accepted(rows=rows), data) for rows, data in requests]
    for one, by_one in zip(requests, digests, strict=True):
        for other, by_other in zip(requests, digests, strict=True):
            assert (one == other) == (by_one == by_other)


def test_outputs_of_a_model_that_was_replaced_or_removed_meanwhile_are_not_kept() -> None:
    cache = PredictionCache(1 << 20, ["m"])
    old = accepted()
    digest = found_by(cache, old, b"x" * 16)
    new = Signature(msgspec.structs.replace(make_spec("m"), weights_hash="9" * 64))
    cache.revise({"m": new}, "m")
    cache.put(old, digest, OUTPUTS)
    assert len(cache) == 0
    fresh = Accepted("m", 1, None, (0,), (0, 1), new)
    fresh_digest = found_by(cache, fresh, b"x" * 16)
    cache.put(old, digest, OUTPUTS)
    assert len(cache) == 0
    cache.put(fresh, fresh_digest, OUTPUTS)
    assert len(cache) == 1
    cache.revise({})
    assert (len(cache), cache.bytes) == (0, 0)
    assert cache.counts["cache_dropped"] == 1
    cache.validate()


def test_a_model_that_is_told_again_keeps_its_entries() -> None:
    cache = PredictionCache(1 << 20, ["m"])
    request = accepted()
    cache.put(request, found_by(cache, request, b"x" * 16), OUTPUTS)
    cache.revise({"m": Signature(make_spec("m"))}, "m")
    cache.revise({"m": Signature(make_spec("m"))})
    assert len(cache) == 1


def test_turning_it_off_drops_what_was_kept() -> None:
    cache = PredictionCache(1 << 20)
    cache.switch("m", on=True)
    request = accepted()
    cache.put(request, found_by(cache, request, b"x" * 16), OUTPUTS)
    assert len(cache) == 1
    cache.switch("m", on=False)
    assert len(cache) == 0
    assert cache.digest(request, [b"x" * 16]) is None
    cache.switch("m", on=None)
    assert not cache.is_on("m")
    cache.validate()


def test_the_name_that_clients_use_decides_for_every_version() -> None:
    cache = PredictionCache(1 << 20)
    specs = [
        msgspec.structs.replace(make_spec(f"m:{number}"), served_as="m", version=number) for number in (1, 2)
    ]
    requests = [accepted(spec.name, spec=spec) for spec in specs]
    assert [cache.digest(each, [b"x" * 16]) for each in requests] == [None, None]
    cache.switch("m", on=True)
    digests = [found_by(cache, each, b"x" * 16) for each in requests]
    for request, digest in zip(requests, digests, strict=True):
        cache.put(request, digest, OUTPUTS)
    assert len(cache) == 2
    cache.forget("m:1")
    assert len(cache) == 1
    cache.switch("m", on=None)
    assert len(cache) == 0
    cache.validate()


def test_outputs_larger_than_the_cache_are_not_kept_and_cost_nobody_his_place() -> None:
    cache = PredictionCache(2 * SIZE, ["m"])
    request = accepted()
    cache.put(request, found_by(cache, request, b"x"), OUTPUTS)
    cache.put(request, found_by(cache, request, b"y"), (bytes(3 * SIZE), b""))
    assert len(cache) == 1
    cache.validate()


def test_what_was_hit_stays_longer() -> None:
    cache = PredictionCache(3 * SIZE, ["m"])
    request = accepted()
    digests = [found_by(cache, request, bytes([number])) for number in range(5)]
    for digest in digests[:3]:
        cache.put(request, digest, OUTPUTS)
    cache.get("m", digests[0])
    cache.put(request, digests[3], OUTPUTS)
    # The oldest had its second chance: the next one went.
    assert [cache.get("m", each) is not None for each in digests[:4]] == [True, False, True, True]


def test_one_eviction_does_not_go_round_a_large_ring() -> None:
    count = LONGEST_SWEEP + 50
    cache = PredictionCache(count * SIZE, ["m"])
    request = accepted()
    digests = [found_by(cache, request, number.to_bytes(4)) for number in range(count + 1)]
    for digest in digests[:count]:
        cache.put(request, digest, OUTPUTS)
        cache.get("m", digest)
    cache.put(request, digests[count], OUTPUTS)
    assert cache.get("m", digests[LONGEST_SWEEP]) is None
    assert len(cache) == count
    cache.validate()


class ByTheBook(RuleBasedStateMachine):
    """The cache beside CLOCK as textbooks draw it: a ring of slots, a hand, a bit for each slot."""

    ROOM = 4

    @initialize()
    def start(self) -> None:
        self.cache = PredictionCache(self.ROOM * SIZE, ["m"])
        self.request = accepted()
        self.ring: list[list[Any]] = []
        self.hand = 0

    @rule(value=st.integers(0, 7))
    def ask(self, value: int) -> None:
        digest = found_by(self.cache, self.request, bytes([value]))
        kept = self.cache.get("m", digest)
        slot = next((each for each in self.ring if each[0] == value), None)
        assert (kept is not None) == (slot is not None)
        if slot is not None:
            assert kept == (bytes([value]) * 16, b"p" * 4)
            slot[1] = True
            return
        self.cache.put(self.request, digest, (bytes([value]) * 16, b"p" * 4))
        if len(self.ring) < self.ROOM:
            self.ring.append([value, False])
            return
        while self.ring[self.hand][1]:
            self.ring[self.hand][1] = False
            self.hand = (self.hand + 1) % self.ROOM
        self.ring[self.hand] = [value, False]
        self.hand = (self.hand + 1) % self.ROOM

    @invariant()
    def consistent(self) -> None:
        self.cache.validate()
        assert len(self.cache) == len(self.ring)


ByTheBook.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestByTheBook = ByTheBook.TestCase
