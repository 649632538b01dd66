"""A client and what it made, in a child of a fork, as servers, Celery and a DataLoader have them."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

import mainspring
from mainspring import AsyncClient, Client
from mainspring.client.channel import PerProcess
from mainspring.client.connection import Connection
from mainspring.messages.clients import Alive
from tests.client.fakes import fake_gateway, mute
from tests.client.test_deadlines import Script, X
from tests.patience import PATIENCE_S


def in_child(work: Callable[[], object]) -> str:
    """Return what a child of a fork returns, or raises, as text; it is killed if it waits for ever."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(round(PATIENCE_S))
        try:
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    assert os.waitpid(pid, 0)[1] == 0, "it waited for ever"
    return said


@pytest.fixture
def address() -> Iterator[str]:
    with fake_gateway(Script()) as address:
        yield address


def ask(client: Client) -> list[str]:
    return [*client.infer("m", {"data": X}, slo="20s")]


def test_a_child_connects_anew_and_its_parent_goes_on(address: str) -> None:
    with Client(address) as client:
        assert ask(client) == ["y"]
        for _ in range(3):
            assert in_child(lambda: ask(client)) == "['y']"
            assert ask(client) == ["y"]
        assert in_child(lambda: ask_closed(client)).startswith("GatewayUnreachable: the client of")
        assert ask(client) == ["y"]
        # A grandchild, too, and a child's own threads.
        assert in_child(lambda: in_child(lambda: ask(client))) == repr("['y']")
        assert in_child(lambda: run_in_threads(lambda: ask(client))) == "['y', 'y', 'y', 'y']"


def ask_closed(client: Client) -> list[str]:
    client.close()
    return ask(client)


def run_in_threads(work: Callable[[], list[str]]) -> list[str]:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(work())) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    return found


def test_a_child_that_forked_amid_other_threads_requests_waits_for_none_of_their_locks(address: str) -> None:
    with Client(address) as client:
        stop = threading.Event()

        def go_on() -> None:
            while not stop.is_set():
                client.infer("m", {"data": X})

        threads = [threading.Thread(target=go_on) for _ in range(4)]
        for each in threads:
            each.start()
        try:
            for _ in range(20):
                assert in_child(lambda: ask(client)) == "['y']"
        finally:
            stop.set()
            for each in threads:
                each.join()


def test_sequences_and_asyncio_go_on_in_a_child(address: str) -> None:
    with Client(address) as client, client.sequence("m") as sequence:
        sequence.infer({"data": X}, slo="20s")
        assert in_child(lambda: [*sequence.infer({"data": X}, slo="20s")]) == "['y']"
    client_of_loops = AsyncClient(address)

    async def once() -> list[str]:
        return [*await client_of_loops.infer("m", {"data": X}, slo="20s")]

    assert asyncio.run(once()) == ["y"]
    assert in_child(lambda: asyncio.run(once())) == "['y']"
    assert asyncio.run(once()) == ["y"]
    asyncio.run(client_of_loops.close())


def test_what_the_parent_had_sent_is_the_parents() -> None:
    with fake_gateway(Script(answers=False)) as address, Client(address) as client:
        asked = client.submit("m", {"data": X}, slo="60s")
        for waits in (asked.result, asked.exception):
            assert in_child(waits).startswith(f"GatewayUnreachable: process {os.getpid()}, which forked,")
        asked.cancel()
    with Connection("tcp://127.0.0.1:1") as connection:
        said = in_child(lambda: connection.send(Alive()))
        assert "which forked: make another" in said


def test_an_answer_that_had_come_is_the_childs_too(address: str) -> None:
    with Client(address) as client:
        asked = client.submit("m", {"data": X}, slo="20s")
        asked.result()
        assert in_child(lambda: [*asked.result()]) == "['y']"


def test_arrays_of_the_clients_memory_are_good_in_a_child(address: str) -> None:
    with Client(address) as client:
        image = client.allocate((64, 1024))
        image[:] = 3
        assert in_child(lambda: (ask(client), float(image.sum()), client.allocate(4).shape)) == repr(
            (["y"], 3.0 * 64 * 1024, (4,))
        )


def test_no_wait_is_longer_than_the_slo_and_the_guard() -> None:
    """Of a gateway that says nothing: for types, and for the turn in a sequence."""
    with fake_gateway(mute) as address, Client(address, guard_s=0.1) as client:
        with pytest.raises(mainspring.TimedOut, match="which types"):
            client.infer("m", {"data": [[1, 2, 3]]}, slo="100ms")
        sequence = client.sequence("m")

        def hold() -> None:
            with pytest.raises(mainspring.TimedOut):
                sequence.infer({"data": X}, 1e3)

        held = threading.Thread(target=hold)
        held.start()
        with pytest.raises(mainspring.MainspringError):
            sequence.infer({"data": X}, slo="50ms")
        held.join(PATIENCE_S)
        assert not held.is_alive()


@pytest.mark.parametrize("what", ["client", "async client", "sequence", "deadline"])
def test_pickling_says_what_to_pass(what: str) -> None:
    with Client("tcp://127.0.0.1:1") as client:
        thing = {
            "client": client,
            "async client": AsyncClient("tcp://127.0.0.1:1"),
            "sequence": client.sequence("m"),
            "deadline": client.deadline("1s"),
        }[what]
        remedy = "left_ms" if what == "deadline" else "pass its address"
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=remedy):
                copied(thing)


def test_values_for_each_process_are_made_once_by_threads_that_meet() -> None:
    meet = threading.Barrier(4)
    discarded: list[object] = []

    def make() -> object:
        meet.wait(PATIENCE_S)
        return object()

    values: PerProcess[object] = PerProcess(make, discarded.append)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(values.get())) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    assert len(set(map(id, found))) == 1
    assert len(discarded) == 3
    assert values.made() is found[0]
