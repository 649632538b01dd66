"""Gateways' questions, and the answers: the index and, in mode explicit, loading and unloading.

A connection brings one question, gets its answer, and ends; handshake and framing are those of all processes
(`transport.listener`). A configuration that is sent along is JSON with the names of Triton's ``ModelConfig``,
as its protocol buffer has them or in protobuf's own JSON (``maxBatchSize``): what a server has given can be
changed and sent back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from mainspring.messages.codes import Reason
from mainspring.messages.repository import (
    MAX_FILES,
    MAX_LOAD_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_QUESTION_BYTES,
    Changed,
    GetIndex,
    Index,
    LoadModel,
    NotChanged,
    Question,
    Reply,
    UnloadModel,
)
from mainspring.messages.roles import Role
from mainspring.repository.config import RepositoryConfig
from mainspring.repository.layout import MAX_FAULT_CHARACTERS, NAMES, is_model_name
from mainspring.repository.model_config import ModelConfig, read_fields
from mainspring.repository.reading import ConfigFault
from mainspring.repository.reconciler import Reconciler, index_of
from mainspring.repository.scanner import Scanner
from mainspring.repository.sent_files import Content, Given, sent_with
from mainspring.repository.textproto import MAX_DEPTH, MAX_VALUES, Entry, Message, Word
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.listener import Listener
from mainspring.transport.loop import ready

_ENUMS = frozenset({"data_type", "kind", "format", "priority", "timeout_action"})
_MAPS = frozenset({"parameters", "metric_tags", "cc_model_filenames", "priority_queue_policy"})
_BY_NUMBER = frozenset({"priority_queue_policy"})
"""Maps whose keys are numbers."""
_NUMBERS = frozenset(
    {
        *("dims", "shape", "versions", "priority_levels", "default_priority_level", "num_versions"),
        *("max_queue_delay_microseconds", "default_timeout_microseconds", "max_queue_size"),
        *("max_sequence_idle_microseconds", "max_candidate_sequences", "minimum_slot_utilization"),
        *("max_batch_size", "preferred_batch_size", "count", "gpus", "level"),
        *("int32_false_true", "fp32_false_true", "gather_kernel_buffer_threshold"),
    }
)
"""Fields of numbers, which may be in quotes: protobuf's JSON writes those of 64 bits so, and reads all so."""
_OURS = frozenset({"mainspring"})
"""Values of ``platform`` and ``backend`` that this server gives its models; to the compiler they are ONNX."""
_DIGITS = re.compile(r"-?[0-9]{1,19}")
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def read_json(text: str, model: str) -> ModelConfig:
    """Return the configuration of the model in the folder ``model``; raise `ConfigFault`."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigFault(f"it is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ConfigFault('it is not an object of JSON, such as {"max_batch_size": 8}')
    for name in ("platform", "backend"):
        if given.get(name) in _OURS:
            del given[name]
    return read_fields(_JsonReader().message(given, 0), model)


class _JsonReader:
    def __init__(self) -> None:
        self._values = 0

    def message(self, given: dict[str, Any], depth: int) -> Message:
        """Return an object's fields; raise `ConfigFault` for what no configuration has."""
        found = Message()
        for key, value in given.items():
            name = _HUMP.sub(r"_\1", key).lower()
            values = value if isinstance(value, list) else [value]
            if name in _MAPS and isinstance(value, dict):
                values = [{"key": _key(name, each), "value": held} for each, held in value.items()]
            # Empty text is what protobuf says of a field that nobody set.
            entries = [self._entry(name, each, depth) for each in values if each not in (None, "")]
            if entries:
                found[name] = entries
        return found

    def _entry(self, name: str, value: Any, depth: int) -> Entry:
        self._values += 1
        if self._values > MAX_VALUES or depth >= MAX_DEPTH:
            raise ConfigFault(f"more than {MAX_VALUES:,} values, or {MAX_DEPTH} levels, make no sense")
        match value:
            case dict():
                return Entry(self.message(value, depth + 1), 1)
            case bool():
                return Entry(Word("true" if value else "false"), 1)
            case str() if name in _ENUMS:
                return Entry(Word(value), 1)
            case str() if name in _NUMBERS and _DIGITS.fullmatch(value):
                return Entry(int(value), 1)
            case float() if name in _NUMBERS and value.is_integer():
                return Entry(int(value), 1)
            case str() | int() | float():
                return Entry(value, 1)
        raise ConfigFault(f"{name[:80]} has lists within lists")


def _key(name: str, key: str) -> str | int:
    """Return a key of a map as text format has it: JSON has texts alone."""
    return int(key) if name in _BY_NUMBER and _DIGITS.fullmatch(key) else key


_LOGGER = logging.getLogger("mainspring.repository")

Answer = Callable[[Question, Sequence[Content]], Awaitable[Reply]]

MAX_QUESTIONS = 256
"""Questions answered at the same time; one more is refused."""
QUESTION = Limits(
    part_bytes=MAX_LOAD_BYTES,
    backlog_bytes=0,
    backlog_messages=0,
    message_bytes=MAX_QUESTION_BYTES + MAX_LOAD_BYTES,
    tensors=MAX_FILES,
)
"""A question is a name in an envelope; that to load a model may have files behind it."""

_DECODER = msgspec.msgpack.Decoder(Question)
_ENCODER = msgspec.msgpack.Encoder()
CLUSTER_WAIT_S = 10.0
"""Longest time that a question waits for a controller, or for a worker, in seconds."""
SETTLE_S = 60.0
"""Longest time that a load waits for files that are being changed, in seconds."""
LOOK_S = 0.02
OFF = "loading and unloading by clients is off; `mainspring up --model-control-mode explicit` turns it on"
POLLED = "; without it, a file that is put into the repository's folder, as NAME/1/model.onnx, is served soon"
NO_WORKER = NotChanged(
    Reason.NO_WORKER, "no worker is connected; the model is served once one has prepared it"
)
NO_CONTROLLER = NotChanged(Reason.CONTROLLER_UNREACHABLE, "the repository has no controller")


class Requests:
    """Requests to one repository; `changed` is called after the reconciler has taken one."""

    def __init__(
        self, config: RepositoryConfig, reconciler: Reconciler, scanner: Scanner, changed: Callable[[], None]
    ) -> None:
        self._config = config
        self._reconciler = reconciler
        self._scanner = scanner
        self._changed = changed
        self._turns: dict[str, asyncio.Lock] = {}
        """Lock of each model whose loads are under way: one undoes what it did before the next begins."""

    async def answer(self, question: Question, parts: Sequence[Content] = ()) -> Reply:
        """Answer a gateway's question; ``parts`` are what follows it."""
        if isinstance(question, GetIndex):
            return Index(index_of(self._reconciler))
        if self._config.mode != "explicit":
            return NotChanged(Reason.FORBIDDEN, OFF + (POLLED if self._config.mode == "poll" else ""))
        if not await _until(
            lambda: self._reconciler.cluster.known and self._reconciler.looked, CLUSTER_WAIT_S
        ):
            return NO_CONTROLLER
        if isinstance(question, UnloadModel):
            return await self._unload(question.name)
        turn = self._turns.setdefault(question.name, asyncio.Lock())
        try:
            async with turn:
                return await self._load_with(question, parts)
        finally:
            if not turn.locked():
                self._turns.pop(question.name, None)

    async def _load_with(self, question: LoadModel, parts: Sequence[Content]) -> Reply:
        """Load a model with what the client gave, its folder's if that is nothing.

        If that can't be done, what counted before does again.
        """
        name, scanner = question.name, self._scanner
        try:
            given = await asyncio.to_thread(self._given, question, parts)
        except (ConfigFault, OSError) as error:
            why = f"model {name[:200]!r} can't be loaded: {error}"
            return NotChanged(Reason.BAD_INPUT, why[:MAX_FAULT_CHARACTERS])
        files = given.folder if given is not None else ""
        if not files and not scanner.holds(name):
            return NotChanged(Reason.UNKNOWN_MODEL, self._unknown(name))
        former = scanner.override(name, given)
        reply = await self._load(name)
        if isinstance(reply, NotChanged) and given != former and scanner.given(name) is given:
            scanner.override(name, former)
            await scanner.look(name)
            self._changed()
        counts = scanner.given(name)
        await asyncio.to_thread(scanner.sent.drop_but, [counts.folder] if counts is not None else [], name)
        return reply

    def _given(self, question: LoadModel, parts: Sequence[Content]) -> Given | None:
        """Return what a load brings, its files kept in a folder; raise `ConfigFault` or OSError."""
        sent = sent_with(question, parts)
        if not sent.config and not sent.files:
            return None
        if not is_model_name(question.name):
            raise ConfigFault(NAMES)
        try:
            config = read_json(sent.config, question.name) if sent.config else None
        except ConfigFault as error:
            raise ConfigFault(f"the parameter config: {error}") from None
        folder = self._scanner.sent.keep(question.name, sent.files) if sent.files else ""
        return Given(config, folder)

    def _unknown(self, name: str) -> str:
        sent = self._scanner.given(name)
        again = "; it was loaded with files that a client sent: send them again" if sent is not None else ""
        return f"the repository {self._config.path} has no model {name[:200]!r}{again}"

    async def _load(self, name: str) -> Reply:
        found = await self._scanner.look(name, SETTLE_S)
        if found is None:
            return NotChanged(Reason.UNKNOWN_MODEL, self._unknown(name))
        if found.settling:
            detail = f"the files of model {name!r} are being changed; load it once they are whole"
            return NotChanged(Reason.MODEL_NOT_READY, detail)
        self._reconciler.load(name)
        # What failed before is tried again.
        await self._scanner.look(name)
        self._changed()
        while not await _until(lambda: not self._reconciler.moves(name), CLUSTER_WAIT_S):
            obstacle = self._obstacle(name)
            if obstacle is not None:
                return obstacle
        record, served = self._reconciler.records.get(name), self._reconciler.cluster.versions_of(name)
        wanted = record.wanted if record is not None else {}
        if any(served.get(number) == build.name for number, build in wanted.items()):
            return Changed(served)
        reasons = [
            f"version {each.version}: {each.reason}" if each.version else each.reason
            for each in index_of(self._reconciler)
            if each.name == name and each.reason
        ]
        why = "; ".join(reasons[:5]) or "it was unloaded meanwhile"
        return NotChanged(Reason.BAD_INPUT, f"model {name!r} can't be loaded: {why}")

    def _obstacle(self, name: str) -> NotChanged | None:
        """Return what keeps a model from being loaded that waiting will not mend, if anything does."""
        cluster, record = self._reconciler.cluster, self._reconciler.records.get(name)
        if not cluster.known:
            return NO_CONTROLLER
        compiled = record is not None and all(build.spec is not None for build in record.wanted.values())
        return NO_WORKER if compiled and not cluster.workers else None

    async def _unload(self, name: str) -> Reply:
        record = self._reconciler.records.get(name)
        if record is None or (not record.loaded and name not in self._reconciler.cluster.served):
            return NotChanged(Reason.UNKNOWN_MODEL, f"model {name[:200]!r} is not loaded")
        self._scanner.override(name, None)
        self._reconciler.unload(name)
        self._changed()
        if not await _until(lambda: name not in self._reconciler.cluster.served, CLUSTER_WAIT_S):
            return NO_CONTROLLER
        await asyncio.to_thread(self._scanner.sent.drop_but, [], name)
        return Changed({})


async def _until(condition: Callable[[], bool], seconds: float | None = None) -> bool:
    """Wait until a condition holds; return whether it does in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(LOOK_S)
    return condition()


ITSELF = Pass(Role.REPOSITORY)
"""Credentials for processes of its own user on its host."""


class Control:
    """Listens for questions, and sends the answers."""

    def __init__(self, answer: Answer, address: str, shows: Pass = ITSELF) -> None:
        """Listen; raise OSError that names the address if that is not possible.

        ``shows``: the run's secret or keys; without either, only this user's processes of this host are
        answered.
        """
        self._answer = answer
        self._hub = Hub()
        self._answering: set[asyncio.Task[None]] = set()
        try:
            self._listener = Listener(self._hub, address, {Role.GATEWAY: QUESTION}, shows)
        except (OSError, ValueError, OverflowError) as error:
            self._hub.close()
            raise OSError(
                f"the model repository can't listen at {address}: {error}; "
                "choose another with [repository] address"
            ) from None
        self.address = self._listener.address
        """Address at which it listens, with the real port."""

    async def run(self) -> None:
        """Answer questions until cancelled; then close all connections."""
        try:
            while True:
                await ready(self._hub)
                self._hub.wait(0)
                while (received := self._listener.receive()) is not None:
                    peer, (data, *parts) = received
                    task = asyncio.create_task(self._serve(peer, data, parts))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
        finally:
            for task in self._answering:
                task.cancel()
            self._hub.close()

    async def _serve(self, peer: bytes, question: bytes, parts: Sequence[Content]) -> None:
        """Send the answer to a question; end the connection if there is none."""
        try:
            data = _ENCODER.encode(await self._reply(question, parts))
            if len(data) > MAX_MESSAGE_BYTES:
                data = _ENCODER.encode(NotChanged(Reason.OVERLOADED, "the index is too long to be sent"))
            self._listener.send(peer, (data,))
        except Exception:
            _LOGGER.exception("a gateway's question has no answer")
            self._listener.disconnect(peer, "its question has no answer")

    async def _reply(self, data: bytes, parts: Sequence[Content]) -> Reply:
        """Return the answer to a question as it came."""
        try:
            question = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return NotChanged(Reason.BAD_MESSAGE, f"the question can't be read: {error}")
        if len(self._answering) > MAX_QUESTIONS:
            return NotChanged(Reason.OVERLOADED, f"{MAX_QUESTIONS} such questions wait already")
        wanted = (1 if question.encoded else len(question.files)) if isinstance(question, LoadModel) else 0
        if len(data) > MAX_QUESTION_BYTES or len(parts) != wanted:
            return NotChanged(
                Reason.BAD_MESSAGE,
                f"the question can't be read: it has {len(data)} bytes (at most {MAX_QUESTION_BYTES}) and "
                f"{len(parts)} parts for {wanted} files",
            )
        return await self._answer(question, parts)
