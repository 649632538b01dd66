"""A served store: what workers fetch from it, whom it answers, and what it does not put up with."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.cli.authority import Authority
from mainspring.compiler.artifact.manifest import Source as Origin
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from mainspring.messages.actions import Prepare, Result
from mainspring.messages.codes import Status
from mainspring.repository.serving import ServingConfig, run
from mainspring.transport.keys import client_context
from mainspring.transport.tokens import token_sha256
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.engine import EngineError
from mainspring.worker.fetching import Fetcher
from mainspring.worker.sources import SourceError, source_of
from tests.patience import PATIENCE_S
from tests.worker.peers import Cluster

Serve = Callable[..., str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("served") / "store")
    for name in ("a", "b"):
        compile_model(build("digits", 1), name, store, (1, 2), Origin("zoo", "digits", seed=1), quick=True)
    return store


@pytest.fixture
def serve(store: Store) -> Iterator[Serve]:
    """Return what serves the store with fields of `ServingConfig`, and says where."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(**fields: object) -> str:
        address: list[str] = []
        ready = threading.Event()

        def told(where: str) -> None:
            address.append(where)
            ready.set()

        given = {"store": str(store.root), "address": "http://127.0.0.1:0", **fields}
        config = ServingConfig(**given)  # type: ignore[arg-type]
        threads.append(threading.Thread(target=run, args=(config, stop, told)))
        threads[-1].start()
        assert ready.wait(PATIENCE_S)
        return address[0]

    yield begin
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def get(address: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def tokens(folder: Path) -> str:
    entries = [("all", "*"), ("only-b", "b")]
    text = "".join(
        f'[[token]]\nname = "{name}"\nsha256 = "{token_sha256(name)}"\nmodels = ["{models}"]\n'
        for name, models in entries
    )
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_what_is_fetched_is_what_is_stored(serve: Serve, store: Store, tmp_path: Path) -> None:
    local = Store(tmp_path / "local")
    source = source_of(serve())
    Fetcher(local, source, threading.Event()).fetch(store.manifest("a").spec())
    local.verify("a")
    weights = f"weights/{store.manifest('a').weights_hash}.bin"
    whole = (store.root / weights).read_bytes()
    for offset in (0, 1, len(whole) - 1, len(whole)):
        assert b"".join(source.read(weights, offset)) == whole[offset:]


def test_a_worker_with_an_empty_store_prepares_and_one_without_a_source_says_what_it_lacks(
    serve: Serve, store: Store, tmp_path: Path
) -> None:
    address = serve()
    for where, status in ((address, Status.OK), ("http://127.0.0.1:1", Status.ENGINE_ERROR)):
        folder = tmp_path / str(status)
        cluster = Cluster(
            WorkerConfig(name="w", pages=8, io_bytes=MIB, realtime=False, store=str(folder), store_from=where)
        )
        try:
            result = cluster.do(Prepare(cluster.next_id(), "w", store.manifest("a").spec()))
            assert isinstance(result, Result)
            assert result.status is status, result.detail
            if status is Status.ENGINE_ERROR:
                assert "http://127.0.0.1:1 can't be read" in result.detail
        finally:
            cluster.close()


def test_a_token_opens_its_models_alone(serve: Serve, store: Store, tmp_path: Path) -> None:
    address = serve(token_file=tokens(tmp_path))
    local = Store(tmp_path / "local")
    for token, name, says in (
        ("", "a", "401 for models/a/manifest.json: a token is needed here"),
        ("unknown", "a", "401 for models/a/manifest.json: the token is not one that is known here"),
        ("only-b", "a", "403 for models/a/manifest.json: token 'only-b' may not use model 'a'"),
    ):
        with pytest.raises(EngineError, match=says):
            Fetcher(local, source_of(address, token), threading.Event()).fetch(store.manifest(name).spec())
    assert get(address, f"/weights/{store.manifest('a').weights_hash}.bin")[0] == 401
    for token, name in (("only-b", "b"), ("all", "a")):
        Fetcher(local, source_of(address, token), threading.Event()).fetch(store.manifest(name).spec())
        local.verify(name)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/models/none/manifest.json", 404),
        ("/models/..%2F..%2Fetc/manifest.json", 404),
        ("/models/.hidden/manifest.json", 400),
        (f"/weights/{'0' * 64}.bin", 404),
        ("/weights/..%2Fmodels%2Fa%2Fmanifest.json.bin", 404),
        ("/weights/nothing.bin", 400),
        (f"/executables/{'0' * 64}/", 404),
        ("/executables/.../", 400),
        (f"/executables/{'0' * 64}/.hidden", 400),
        (f"/executables/{'0' * 64}/graph.onnx", 404),
    ],
)
def test_nothing_else_can_be_had(serve: Serve, path: str, status: int) -> None:
    assert get(serve(), path)[0] == status


def test_an_executable_is_listed(serve: Serve, store: Store) -> None:
    executable = store.manifest("a").executable
    status, content = get(serve(), f"/executables/{executable}/")
    assert (status, json.loads(content)) == (200, ["graph.onnx", "info.json"])


def test_connections_are_bounded_in_number_and_patience(serve: Serve) -> None:
    address = serve(max_connections=2, header_timeout_ms=300.0)
    host, _, port = address.removeprefix("http://").rpartition(":")
    idle = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(2)]
    one_more = socket.create_connection((host, int(port)), PATIENCE_S)
    assert ended(one_more), "there are two already"
    idle[0].sendall(b"GET / HTTP/1.1\r\nHost: ")
    assert all(ended(each) for each in idle), "a head has to come in time"
    assert get(address, "/")[0] == 404


def ended(connection: socket.socket) -> bool:
    """Wait until the other end has closed or reset a connection."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_client_that_reads_nothing_is_cut_off(serve: Serve, store: Store) -> None:
    large = store.root / "weights" / f"{'f' * 64}.bin"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    try:
        address = serve(write_timeout_ms=300.0, max_connections=1)
        host, _, port = address.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as reader:
            reader.sendall(f"GET /weights/{'f' * 64}.bin HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert reader.recv(1)
            assert not has_room(address)
            pause = threading.Event()
            while not has_room(address):
                pause.wait(0.05)
    finally:
        large.unlink()


def has_room(address: str) -> bool:
    """Return whether a server takes one more connection."""
    try:
        return get(address, "/")[0] == 404
    except (OSError, http.client.HTTPException):
        return False


def test_over_tls_a_worker_trusts_the_cluster_s_authority_and_no_other(
    serve: Serve, store: Store, tmp_path: Path
) -> None:
    folders = {}
    for cluster in ("right", "other"):
        Authority.create(tmp_path / cluster, cluster)
        authority = Authority(tmp_path / cluster)
        folders[cluster] = authority.issue("worker", "w", (), 1)
        if cluster == "right":
            served = authority.issue("repository", "store", ("127.0.0.1",), 1)
    address = serve(address="https://127.0.0.1:0", tls=str(served), client_certificates=True)
    model = store.manifest("a").spec()
    local = Store(tmp_path / "local")
    for tls in (None, client_context(str(folders["other"]))):
        with pytest.raises(EngineError, match="can't be read"):
            Fetcher(local, source_of(address, "", tls), threading.Event()).fetch(model)
    tls = client_context(str(folders["right"]))
    Fetcher(local, source_of(address, "", tls), threading.Event()).fetch(model)
    local.verify("a")


def test_a_server_that_is_no_store_is_told_as_such(serve: Serve) -> None:
    source = source_of(f"{serve()}/models")
    with pytest.raises(SourceError, match="answers 404"):
        source.listing(f"executables/{'0' * 64}")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("address", "tcp://127.0.0.1:1", "write it like http://127.0.0.1:7600"),
        ("address", "http://127.0.0.1:70000", "write it like"),
        ("max_connections", 0, "greater than 0"),
        ("address", "https://127.0.0.1:1", "needs --tls"),
        ("client_certificates", True, "need an address of https://"),
    ],
)
def test_wrong_values_are_refused(field: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ServingConfig(store="s", **{field: value})  # type: ignore[arg-type]
