"""The prediction cache: outputs that were computed before for the same inputs (Clipper, section 4.2). Pure.

What is asked for again is found by a SHA-256 of the model's identity (its name, its weights, its graph and
its tensors: another version is another model), the number of rows and the inputs' bytes. Anything weaker
would let a client that finds two inputs of one hash have others served its outputs. On a processor with
SHA instructions it costs 1 us and 1 us for each further 1.1 KB, the cheapest of what Python brings along.

Eviction is CLOCK, as Clipper's: the entries stand in a ring, a hit sets an entry's mark, and the hand passes
a marked entry over once, taking the mark. Here the ring is a queue whose front is under the hand.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from mainspring.gateway.core.effects import Accepted, Frame
from mainspring.gateway.core.validation import Signature
from mainspring.messages.codec import encode

ENTRY_BYTES = 448
"""Bytes that an entry takes beside its outputs: measured, for one output, and rounded up."""
LONGEST_SWEEP = 256
"""Marked entries that one eviction passes over at most: no request waits while the hand goes round."""


class ModelCounts(msgspec.Struct):
    """Counts of the cache for one model since it was added."""

    hits: int = 0
    misses: int = 0
    """Requests that were not found: they were submitted, or shared what one of them had submitted."""
    shared: int = 0
    """Misses that were answered by another request's execution."""
    hit_ns: int = 0
    """Time that hits took in all: hashing the inputs and looking for them."""
    miss_ns: int = 0
    """Time that misses took in all, likewise, and for keeping their outputs."""


class _Identity(msgspec.Struct, frozen=True):
    """The parts of two models that must be equal for their outputs to be the same."""

    name: str
    weights_hash: str
    executable: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class _Known:
    """A model that the cache was asked about."""

    __slots__ = ("counts", "digests", "hash", "identity", "signature")

    def __init__(self, signature: Signature, identity: bytes) -> None:
        self.signature = signature
        self.identity = identity
        self.hash = hashlib.sha256(identity)
        """The hash that every request for the model begins with; it is copied for each."""
        self.digests: dict[bytes, None] = {}
        """Its entries."""
        self.counts = ModelCounts()


class _Entry:
    __slots__ = ("frames", "marked", "model", "size")

    def __init__(self, model: str, frames: tuple[bytes, ...], size: int) -> None:
        self.model = model
        self.frames = frames
        self.size = size
        self.marked = False


class PredictionCache:
    """Outputs by what they were computed from, in a bounded number of bytes; see the module's docstring."""

    def __init__(
        self, capacity_bytes: int, models: Sequence[str] = (), clock: Callable[[], int] = lambda: 0
    ) -> None:
        """``models`` are patterns of names such as ``resnet*``: the models that it is on for. ``clock`` is
        the driver's, in ns, and says what keeping outputs takes; without it that counts as nothing.
        """
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._patterns = tuple(models)
        self._switched: dict[str, bool] = {}
        self.used = bool(models)
        """False while it is on for no model."""
        self._known: dict[str, _Known] = {}
        """The models that the cache was asked about, by the scheduler's name."""
        self._off: dict[str, None] = {}
        """Models that were asked for and that it is off for, by the scheduler's name."""
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.bytes = 0
        """Bytes that the entries take."""
        self.counts: Counter[str] = Counter()
        """``cache_hits``, ``cache_misses``, ``cache_stored``, ``cache_evicted`` and ``cache_dropped`` (with
        their model): stored = evicted + dropped + entries."""

    def __len__(self) -> int:
        return len(self._entries)

    # --- which models ---

    def is_on(self, model: str) -> bool:
        """Return whether the outputs of a model are kept, by the name that clients use."""
        switched = self._switched.get(model)
        if switched is not None:
            return switched
        return any(fnmatchcase(model, pattern) for pattern in self._patterns)

    def switch(self, model: str, on: bool | None) -> None:
        """Turn the cache on or off for a model that clients know by this name, in all of its versions,
        whatever the patterns say; None leaves it to them."""
        if on is None:
            self._switched.pop(model, None)
        else:
            self._switched[model] = on
        self.used = bool(self._patterns or self._switched)
        self._off.clear()
        if not self.is_on(model):
            named = [name for name, known in self._known.items() if _public_name(known.signature) == model]
            for name in named:
                self.forget(name)

    def forget(self, model: str) -> None:
        """Drop what is kept of a model, by the scheduler's name."""
        self._off.pop(model, None)
        known = self._known.pop(model, None)
        if known is not None:
            self._drop(known)

    def revise(self, signatures: Mapping[str, Signature], model: str | None = None) -> None:
        """Drop what is kept of a model that is served no more, or as another version; None: of all such."""
        for name in list(self._known) if model is None else [model]:
            known, now = self._known.get(name), signatures.get(name)
            if now is None or known is None or known.identity != _identity(now):
                self.forget(name)

    def counts_of(self, model: str) -> ModelCounts:
        """Return what the cache did for a model; zeros if it was never asked."""
        known = self._known.get(model)
        return ModelCounts() if known is None else known.counts

    # --- one request ---

    def digest(self, accepted: Accepted, frames: Sequence[Any]) -> bytes | None:
        """Return what a request is found by, None if its model's outputs are not kept, as those of a graph
        are not whose shapes are known only after a run.

        ``frames`` hold the inputs' bytes, in the order in which the client sent them.
        """
        known = self._known.get(accepted.model)
        if known is None or known.signature is not accepted.signature:
            if accepted.model in self._off:
                return None
            graph = accepted.signature.graph
            learns = graph is not None and graph.application is not None
            shapeless = graph is not None and accepted.signature.varies
            if learns or shapeless or not self.is_on(_public_name(accepted.signature)):
                self._off[accepted.model] = None
                return None
            known = self._learn(accepted.model, accepted.signature)
        found = known.hash.copy()
        for number in (accepted.rows, *accepted.sizes):
            found.update(number.to_bytes(8, "little"))
        if accepted.at_least:
            found.update(repr(accepted.at_least).encode())
        for place in accepted.frame_order:
            found.update(frames[place])
        return found.digest()

    def took(self, model: str, digest: bytes, spent_ns: int) -> None:
        """Note what it took to find out whether a request's outputs are kept."""
        known = self._known.get(model)
        if known is None:
            return
        if digest in self._entries:
            known.counts.hit_ns += spent_ns
        else:
            known.counts.miss_ns += spent_ns

    def get(self, model: str, digest: bytes) -> tuple[bytes, ...] | None:
        """Return the outputs' bytes, in the order of the model's outputs, or None."""
        known = self._known.get(model)
        entry = self._entries.get(digest)
        if entry is None:
            self.counts["cache_misses"] += 1
            if known is not None:
                known.counts.misses += 1
            return None
        entry.marked = True
        self.counts["cache_hits"] += 1
        if known is not None:
            known.counts.hits += 1
        return entry.frames

    def put(self, accepted: Accepted, digest: bytes, frames: Sequence[Frame]) -> int:
        """Keep a copy of a request's outputs, in the order of the model's outputs; return what it took in ns.

        Not if the model has been removed or replaced since it was asked, nor if they are too large.
        """
        known = self._known.get(accepted.model)
        if known is None or digest in self._entries:
            return 0
        if known.signature is not accepted.signature and known.identity != _identity(accepted.signature):
            return 0
        size = ENTRY_BYTES + sum(map(len, frames))
        if size > self._capacity_bytes:
            return 0
        began_ns = self._clock()
        self._make_room(size)
        # Copies: a frame may be a part of a much larger buffer, which it would keep alive.
        kept = tuple([bytes(frame) for frame in frames])  # type: ignore[call-overload]
        self._entries[digest] = _Entry(accepted.model, kept, size)
        known.digests[digest] = None
        self.bytes += size
        self.counts["cache_stored"] += 1
        spent_ns = self._clock() - began_ns
        known.counts.miss_ns += spent_ns
        return spent_ns

    def validate(self) -> None:
        """Check that all tables say the same; raise AssertionError with what does not."""
        sizes = sum(entry.size for entry in self._entries.values())
        assert sizes == self.bytes, f"{sizes} bytes kept, {self.bytes} counted"
        assert self.bytes <= self._capacity_bytes, f"{self.bytes} bytes kept, {self._capacity_bytes} allowed"
        listed = {digest: name for name, known in self._known.items() for digest in known.digests}
        kept = {digest: entry.model for digest, entry in self._entries.items()}
        assert listed == kept, f"listed by model {listed}, kept {kept}"
        off = [name for name, known in self._known.items() if not self.is_on(_public_name(known.signature))]
        assert not off, f"entries of {off}, for which the cache is off"
        gone = self.counts["cache_evicted"] + self.counts["cache_dropped"]
        assert self.counts["cache_stored"] == gone + len(self._entries), f"entries lost: {self.counts}"

    # --- the steps ---

    def _learn(self, model: str, signature: Signature) -> _Known:
        """Note which version of a model is asked for; drop what was kept of another one."""
        identity = _identity(signature)
        known = self._known.get(model)
        if known is not None and known.identity == identity:
            # The controller has told the same again.
            known.signature = signature
            return known
        if known is not None:
            self._drop(known)
        self._known[model] = known = _Known(signature, identity)
        return known

    def _make_room(self, size: int) -> None:
        spared = 0
        while self.bytes + size > self._capacity_bytes:
            digest, entry = self._entries.popitem(last=False)
            if entry.marked and spared < LONGEST_SWEEP:
                entry.marked = False
                self._entries[digest] = entry
                spared += 1
                continue
            self.bytes -= entry.size
            del self._known[entry.model].digests[digest]
            self.counts["cache_evicted"] += 1

    def _drop(self, known: _Known) -> None:
        for digest in known.digests:
            self.bytes -= self._entries.pop(digest).size
        self.counts["cache_dropped"] += len(known.digests)
        known.digests = {}


def _public_name(signature: Signature) -> str:
    return signature.spec.public_name


def _identity(signature: Signature) -> bytes:
    """Return what the outputs depend on beside the inputs: of a graph what it says, and each step's model."""
    spec = signature.spec
    own = encode(_Identity(spec.name, spec.weights_hash, spec.executable, spec.inputs, spec.outputs))
    if signature.graph is None:
        return own
    graph, models = signature.graph.graph.spec, signature.graph.models
    return b"".join([own, encode(graph), *[_identity(model) for model in models]])
