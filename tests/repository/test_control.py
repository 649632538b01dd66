"""The endpoint for gateways, with the gateway's end of it, and the files for a controller that starts anew"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from mainspring.experiments.blocking import LIMITS
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.repository import ModelRepository, RepositoryError, repository_of
from mainspring.messages.codes import Reason
from mainspring.messages.model import ServedModel
from mainspring.messages.repository import (
    MAX_MESSAGE_BYTES,
    Changed,
    GetIndex,
    Index,
    IndexEntry,
    LoadModel,
    ModelState,
    NotChanged,
    Question,
    Reply,
)
from mainspring.repository.requests import MAX_QUESTIONS, QUESTION, Control
from mainspring.repository.served_files import ServedFiles, State
from mainspring.transport import streams
from mainspring.transport.framing import HEAD, head
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Identity, Violation
from tests.gateway.test_versions import version_spec

READY = IndexEntry("net", "2", ModelState.READY)
FAILED = IndexEntry("bad", "1", ModelState.UNAVAILABLE, "broken")


async def answer(question: Question) -> Reply:
    """Play the repository."""
    match question:
        case GetIndex():
            return Index((READY, FAILED))
        case LoadModel(name="net"):
            return Changed({2: "net@2-aa"})
        case LoadModel(name="slow"):
            await asyncio.sleep(60)
    return NotChanged(Reason.UNKNOWN_MODEL, f"no {question.name}")


def using(what: Callable[[Control, ModelRepository, Catalog], Awaitable[None]], **config: float) -> None:
    async def run() -> None:
        control, catalog = Control(answer), Catalog()
        await control.listen(f"unix://{tempfile.mkdtemp()}/repository.sock")
        settings = GatewayConfig(repository_address=control.address, **config)  # type: ignore[arg-type]
        try:
            await what(control, ModelRepository(settings, catalog), catalog)
        finally:
            await control.close()

    asyncio.run(run())


def test_the_index_has_what_else_is_served_too() -> None:
    async def steps(_: Control, repository: ModelRepository, catalog: Catalog) -> None:
        catalog.model_up(version_spec("net", 2))
        catalog.serve(ServedModel("net", {2: "net@2-aa"}))
        plain = version_spec("plain", 1)
        catalog.model_up(plain)
        catalog.serve(ServedModel("plain", {1: plain.name}))
        entries = [FAILED, READY, IndexEntry("plain", "1", ModelState.READY)]
        assert await repository.index() == entries
        assert await repository.index(True) == entries[1:]

    using(steps)
    assert repository_of(GatewayConfig(), Catalog()) is None


def test_a_load_returns_once_this_gateway_knows_of_it() -> None:
    async def steps(_: Control, repository: ModelRepository, catalog: Catalog) -> None:
        loading = asyncio.create_task(repository.load("net"))
        await asyncio.sleep(0.05)
        assert not loading.done()
        catalog.serve(ServedModel("net", {2: "net@2-aa"}))
        await loading
        with pytest.raises(RepositoryError, match="no other") as caught:
            await repository.unload("other")
        assert caught.value.reason is Reason.UNKNOWN_MODEL

    using(steps)


def test_a_repository_that_is_away_or_stuck_says_so() -> None:
    async def steps(control: Control, repository: ModelRepository, _: Catalog) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
            stuck = ModelRepository(
                GatewayConfig(repository_address=address, repository_timeout_ms=50.0), Catalog()
            )
            with pytest.raises(RepositoryError, match=r"did not answer within 0.05 s") as caught:
                await stuck.index()
            assert caught.value.reason is Reason.TIMED_OUT
        await control.close()
        with pytest.raises(RepositoryError, match="is away") as caught:
            await repository.index()
        assert caught.value.reason is Reason.CONTROLLER_UNREACHABLE

    using(steps)


MOST_BYTES = QUESTION.part_bytes


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (HEAD.pack((1 << 32) - 1, 0), "a part of 4294967295 bytes came; at most 65536 are allowed"),
        (HEAD.pack(MOST_BYTES + 1, 0), "a part of 65537 bytes came; at most 65536 are allowed"),
        (HEAD.pack(1, 1), "a message of it has 1 tensors; 0 are allowed"),
        (head([3]) + b"abc", "can't be read"),
        (head([1]) + b"\x80", "can't be read"),
        (head([0]), "can't be read"),
        (head([MOST_BYTES]) + bytes(MOST_BYTES), "can't be read"),
        (head([6]) + b"\x81\xa4type\xff"[:6], "can't be read"),
    ],
)
def test_garbage_is_answered_and_harms_no_other_connection(data: bytes, says: str) -> None:
    async def steps(control: Control, repository: ModelRepository, catalog: Catalog) -> None:
        reader, writer = await streams.open_connection(
            control.address, Pass("gateway"), Identity("repository")
        )
        writer.write(data)
        (reply,) = await streams.receive(reader, LIMITS)
        refused = msgspec.msgpack.decode(reply, type=Reply)
        assert isinstance(refused, NotChanged)
        assert refused.reason is Reason.BAD_MESSAGE
        assert says in refused.detail
        assert await reader.read() == b"", "the connection is over"
        writer.close()
        half_open = (await asyncio.open_unix_connection(control.address.removeprefix("unix://")))[1]
        half_open.write(b"\x05")
        half_open.close()
        assert len(await repository.index()) == 2

    using(steps)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (HEAD.pack(MAX_MESSAGE_BYTES + 1, 0), "at most 67108864 are allowed"),
        (HEAD.pack(4, 255), "255 tensors; 0 are allowed"),
        (head([3]) + b"abc", "is away"),
        (head([300]) + b"abc", "is away"),
        (b"", "is away"),
    ],
)
def test_a_gateway_reads_no_answer_beyond_its_bounds(answer: bytes, says: str) -> None:
    """Nor does it wait for the rest of one: it says at once that the repository can't be asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await streams.accept(reader, writer, Pass("repository"), ("gateway",))
        await streams.receive(reader, QUESTION)
        writer.write(answer)
        writer.close()

    async def steps(_: Control, __: ModelRepository, catalog: Catalog) -> None:
        address, server = await streams.serve(f"unix://{tempfile.mkdtemp()}/fake.sock", serve)
        asked = ModelRepository(GatewayConfig(repository_address=address), catalog)
        with pytest.raises(RepositoryError, match=says) as caught:
            await asked.index()
        assert caught.value.reason is Reason.CONTROLLER_UNREACHABLE
        server.close()

    using(steps)


def test_only_a_gateway_is_answered() -> None:
    async def steps(control: Control, _: ModelRepository, __: Catalog) -> None:
        with pytest.raises(Violation, match="refuses this process"):
            await streams.open_connection(control.address, Pass("worker"), Identity("repository"))

    using(steps)


def test_questions_at_one_time_are_bounded() -> None:
    async def steps(control: Control, repository: ModelRepository, catalog: Catalog) -> None:
        waiting = [asyncio.create_task(repository.load("slow")) for _ in range(MAX_QUESTIONS + 1)]
        done = (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30))[0]
        (refused,) = [task.exception() for task in done]
        assert isinstance(refused, RepositoryError)
        assert refused.reason is Reason.OVERLOADED
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    using(steps)


def test_an_address_that_can_not_be_had_is_named() -> None:
    async def listen(address: str) -> None:
        await Control(answer).listen(address)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for each in (address, "tcp://127.0.0.1:x", "tcp://127.0.0.1:99999"):
            with pytest.raises(OSError, match=rf"can't listen at {each}: .*\[repository\] address"):
                asyncio.run(listen(each))


def test_a_controller_that_starts_anew_reads_what_gateways_were_told(tmp_path: Path) -> None:
    files = ServedFiles(tmp_path / "state")
    assert files.read() == ([], [])
    assert files.state() == State()
    assert not files.begun()
    old, new = version_spec("net", 1), version_spec("net", 2)
    model = ServedModel("net", {2: new.name}, slo_ns=3, config="{}")
    files.write(model, [old, new])
    files.write(ServedModel("gone", {1: old.name}), [old])
    files.remove("gone")
    files.remove("gone")
    files.write(ServedModel("lacks", {1: old.name}), [])
    (tmp_path / "state" / "served" / "damaged.json").write_bytes(b"{")
    assert files.read() == ([old, new], [model])
    files.write_state(State(settled=True, models=1))
    assert files.state() == State(settled=True, models=1)
    assert files.begun()
    files.clear()
    assert files.read() == ([], [])
    assert not files.begun()
    files.clear()
