"""The clients against a gateway with a fake cluster behind it, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import mainspring
from mainspring import AsyncClient, Client
from mainspring.client.connection import Connection
from mainspring.client.requests import Call
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, make_spec, wait_until
from tests.patience import PATIENCE_S

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[False, True], ids=["zeromq", "local"])
def address(cluster: FakeCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A gateway's address: over ZeroMQ, and where its clients find the way past it."""
    with gateway(cluster.address, local_clients=request.param) as address:
        with Connection(address) as connection:
            connection.open(PATIENCE_S)
            assert connection.is_local is request.param
        yield address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        wait_until(lambda: len(client.models()) >= 5)
        yield client


def test_outputs_by_name_with_the_timing_beside_them(client: Client) -> None:
    result = client.infer("double", {"data": X}, slo_ms=5_000)
    assert list(result) == ["twice", "sum"]
    np.testing.assert_array_equal(result["twice"], X * 2)
    np.testing.assert_array_equal(result["sum"], X.sum(axis=1))
    assert result.timing.worker == "fake"
    assert result.timing.batch_size == 2
    assert result.timing.cold_start is True
    assert result.timing.execute_ns == 1_000
    assert 0 < result.timing.queue_ns <= result.timing.total_ns
    assert result.timing.left_ns is not None
    assert 0 < result.timing.left_ns < 5_000_000_000


def test_wanted_outputs_come_in_the_order_asked_for(client: Client) -> None:
    result = client.infer("double", {"data": X}, outputs=["sum"])
    assert list(result) == ["sum"]
    assert result.timing.left_ns is None


def test_outputs_are_read_only_and_aligned(client: Client) -> None:
    result = client.infer("double", {"data": X})
    with pytest.raises(ValueError, match="read-only"):
        result["twice"][0, 0] = 1
    assert all(array.flags.aligned for array in result.values())
    result["twice"].copy()[0, 0] = 1


def test_large_tensors_arrive_whole(client: Client) -> None:
    x = np.random.default_rng(1).random((8, 1 << 20), dtype=np.float32)
    np.testing.assert_array_equal(client.infer("wide", {"data": x})["twice"], x * 2)


@pytest.mark.parametrize(
    "given",
    [
        X.astype(">f4"),
        np.asfortranarray(X),
        np.repeat(X, 2, axis=0)[::2],
        memoryview(X.tobytes()).cast("f", (2, 4)),
    ],
    ids=["big_endian", "fortran", "strided", "memoryview"],
)
def test_any_layout_is_sent_right(client: Client, given: object) -> None:
    np.testing.assert_array_equal(client.infer("double", {"data": given})["twice"], X * 2)  # type: ignore[dict-item]


def test_nan_is_a_number_like_any_other(client: Client) -> None:
    result = client.infer("double", {"data": np.full((1, 4), np.nan, np.float32)})
    assert np.isnan(result["twice"]).all()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("doubel", {"data": X}), mainspring.UnknownModel, "did you mean 'double'"),
        (
            ("double", {"data": X.astype(float)}),
            mainspring.InvalidInput,
            "float64; model 'double' takes float32",
        ),
        (("double", {"data": [[1, 2, 3]]}), mainspring.InvalidInput, r"takes \[rows, 4\]"),
        (("double", {"data": np.float32(1)}), mainspring.InvalidInput, r"takes \[rows, 4\]"),
        (("double", {"data": X[0]}), mainspring.InvalidInput, r"for one row \[1, 4\]"),
        (("double", {"date": X}), mainspring.InvalidInput, "takes 'data'"),
        (("double", {}), mainspring.InvalidInput, "'data' missing"),
        (
            ("double", {"data": np.zeros((4_097, 4), np.float32)}),
            mainspring.TooManyRows,
            r"^4097 rows .* at once \(4096\), by the gateway's max_rows_per_request: split the rows .*",
        ),
        (("double", {"data": X}, 0), mainspring.InvalidSlo, "not positive"),
        (("double", {"data": X}, -5), mainspring.InvalidSlo, "not positive"),
        (("double", {"data": X}, 1e8), mainspring.InvalidSlo, "absurdly long"),
        (("double", {"data": X}, float("inf")), mainspring.InvalidSlo, "makes no sense"),
        (("double", {"data": X}, 10**400), mainspring.InvalidSlo, "makes no sense"),
        (("dou\ud800ble", {"data": X}), mainspring.InvalidInput, "can't be sent to a gateway: .*surrogates"),
        (("double", {"d\udc00": X}), mainspring.InvalidInput, "can't be sent to a gateway: .*surrogates"),
        (("double", {"data": X}, float("nan")), mainspring.InvalidSlo, "makes no sense"),
        (("double", {"data": X}, 5, ["tvice"]), mainspring.InvalidOutput, "gives 'twice', 'sum'"),
        (("double", {"data": X}, 5, "twice"), TypeError, r"\['twice'\]"),
        (("double", {"data": X}, "50ms"), TypeError, "milliseconds"),
        (("double", {"data": ["a"]}), TypeError, "array of numbers"),
        (("double", {"data": object()}), TypeError, "array of numbers"),
        (("double", {"data": [[1], [2, 3]]}), TypeError, "numpy array"),
        (("double", X), TypeError, "a dict from input name to array"),
        (("double", {1: X}), TypeError, "pass a str"),
        ((3, {"data": X}), TypeError, "its name"),
        (("reject", {"data": X}, 5), mainspring.DeadlineUnreachable, "earliest possible finish: 70.0 ms"),
    ],
)
def test_errors_say_what_to_do(
    client: Client, arguments: tuple[object, ...], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        client.infer(*arguments)  # type: ignore[arg-type]
    client.infer("double", {"data": X})


@pytest.mark.parametrize("wrong", [{"priority": 1 << 64}, {"priority": -(10**30)}, {"version": 1 << 70}])
def test_a_number_that_no_message_holds_ends_its_own_request_alone(
    client: Client, wrong: dict[str, int]
) -> None:
    with pytest.raises(mainspring.InvalidInput, match="can't be sent to a gateway"):
        client.infer("double", {"data": X}, **wrong)  # type: ignore[arg-type]
    client.infer("double", {"data": X})


def test_an_unreachable_deadline_carries_the_earliest_finish(client: Client) -> None:
    with pytest.raises(mainspring.DeadlineError) as caught:
        client.infer("reject", {"data": X}, slo_ms=10)
    assert isinstance(caught.value, mainspring.DeadlineUnreachable)
    assert caught.value.earliest_finish_ms == 70
    assert caught.value.reason == "deadline_unreachable"


def test_a_request_that_nobody_answers_times_out_at_the_gateway(client: Client) -> None:
    with pytest.raises(mainspring.TimedOut, match="neither outputs nor a rejection"):
        client.infer("mute", {"data": X}, slo_ms=20)


def test_cancelling_a_future_cancels_the_request(client: Client, cluster: FakeCluster) -> None:
    before = len(cluster.arrivals)
    future = client.submit("hold", {"data": X})
    wait_until(lambda: len(cluster.arrivals) > before)
    request_id = cluster.arrivals[-1].request_id
    assert future.cancel()
    assert future.cancelled()
    wait_until(lambda: request_id in cluster.cancels)
    done = client.submit("double", {"data": X})
    done.result(PATIENCE_S)
    assert not done.cancel()


def test_a_thousand_requests_in_flight(client: Client, cluster: FakeCluster) -> None:
    inputs = [np.full((1, 4), number, np.float32) for number in range(1_000)]
    futures = [client.submit("double", {"data": x}, slo_ms=30_000) for x in inputs]
    for number, future in enumerate(futures):
        assert future.result(PATIENCE_S)["sum"][0] == 4 * number


def test_cancellations_race_with_outputs(client: Client) -> None:
    futures = [client.submit("double", {"data": X}) for _ in range(300)]
    cancelled = [future.cancel() for future in futures[::2]]
    for future in futures[1::2]:
        np.testing.assert_array_equal(future.result(PATIENCE_S)["twice"], X * 2)
    for future, was in zip(futures[::2], cancelled, strict=True):
        assert future.cancelled() == was
        if not was:
            np.testing.assert_array_equal(future.result(PATIENCE_S)["twice"], X * 2)


def test_one_client_serves_many_threads(client: Client) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        for step in range(20):
            x = np.full((1, 4), number * 100 + step, np.float32)
            got = client.infer("double", {"data": x}, slo_ms=30_000)["twice"]
            if not np.array_equal(got, x * 2):
                wrong.append((number, step, got))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_models_and_status_and_changes(client: Client) -> None:
    assert [spec.name for spec in client.models()] == ["double", "hold", "mute", "reject", "wide"]
    client.add_model(make_spec("extra"))
    client.infer("extra", {"data": X})
    with pytest.raises(mainspring.ModelExists, match="there is one"):
        client.add_model(make_spec("extra"))
    client.remove_model("extra")
    with pytest.raises(mainspring.UnknownModel):
        client.infer("extra", {"data": X})
    status = client.status()
    assert status.policy == "clockwork"
    assert status.dropped_messages["odd"] == 1
    assert status.dropped_messages["answered"] > 0


def test_a_thousand_awaited_at_once(address: str) -> None:
    async def ask() -> None:
        async with AsyncClient(address) as client:
            inputs = [np.full((1, 4), number, np.float32) for number in range(1_000)]
            results = await asyncio.gather(*(client.infer("double", {"data": x}, 30_000) for x in inputs))
            assert [result["sum"][0] for result in results] == [4 * number for number in range(1_000)]
            assert {spec.name for spec in await client.models()} >= {"double"}
            assert (await client.status()).policy == "clockwork"

    asyncio.run(ask())


def test_cancelling_a_task_cancels_the_request(address: str, cluster: FakeCluster) -> None:
    async def ask() -> None:
        async with AsyncClient(address) as client:
            before = len(cluster.arrivals)
            task = asyncio.create_task(client.infer("hold", {"data": X}))
            while len(cluster.arrivals) == before:
                await asyncio.sleep(0.005)
            request_id = cluster.arrivals[-1].request_id
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while request_id not in cluster.cancels:
                await asyncio.sleep(0.005)

    asyncio.run(ask())


def test_awaited_errors_are_the_same(address: str) -> None:
    async def ask() -> None:
        async with AsyncClient(address) as client:
            with pytest.raises(mainspring.UnknownModel):
                await client.infer("doubel", {"data": X})
            await client.add_model(make_spec("more"))
            await client.remove_model("more")

    asyncio.run(ask())


def test_closing_ends_what_is_in_flight(address: str) -> None:
    client = Client(address)
    future = client.submit("hold", {"data": X})
    assert isinstance(future, Call)
    wait_until(lambda: future.sent)
    client.close()
    client.close()
    with pytest.raises(mainspring.GatewayUnreachable, match="closed"):
        future.result(PATIENCE_S)
    with pytest.raises(mainspring.GatewayUnreachable, match="make a new one"):
        client.infer("double", {"data": X})


def test_python_numbers_become_the_models_type(client: Client) -> None:
    result = client.infer("double", {"data": [[1, 2.5, True, 4]]}, slo="5s")
    np.testing.assert_array_equal(result["twice"], [[2, 5, 2, 8]])
    assert result["twice"].dtype == np.float32
    assert client.submit("double", {"data": [[0, 0, 0, 1]]}).result(PATIENCE_S)["sum"] == [1]
    with pytest.raises(TypeError, match=r"holds 1e\+300, which float32"):
        client.infer("double", {"data": [[1, 2, 3, 1e300]]})


def test_awaited_python_numbers_become_the_models_type(address: str) -> None:
    async def ask() -> None:
        async with AsyncClient(address) as client:
            assert (await client.models())["double"].name == "double"
            assert (await client.infer("double", {"data": [[1, 2, 3, 4]]}, slo="5s"))["sum"] == [10]

    asyncio.run(ask())


def test_the_environment_says_which_gateway(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_ADDRESS", address)
    with Client() as client:
        assert client.models()["wide"].name == "wide"
        assert client.address == address
        assert repr(client) == f"Client({address!r}, connected)"


def test_a_client_says_where_its_gateway_is_and_that_it_is_not_there() -> None:
    with Client("tcp://127.0.0.1:1") as client:
        assert repr(client) == "Client('tcp://127.0.0.1:1', not connected)"
