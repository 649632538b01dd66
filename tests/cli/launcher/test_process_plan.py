from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from onnx import TensorProto, helper

from mainspring.cli.configuration.config import ClusterConfig, Config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.jobs import ControllerJob, GatewayJob, Job, WorkerJob
from mainspring.cli.launcher.process_plan import make_plan, model_source
from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.messages.tables import ConfigError
from mainspring.repository.config import RepositoryConfig
from mainspring.scheduler.config import SchedulerConfig
from mainspring.worker.realtime import NETWORK_PRIORITY


def test_a_plan_has_every_process_and_survives_its_file(emulated: Callable[..., Config]) -> None:
    config = emulated(workers=2)
    plan = make_plan(config)
    assert [job.name for job in plan.jobs] == ["controller", "gateway", "worker-0", "worker-1"]
    assert plan.models == 4
    assert plan.stop_order == (("gateway",), ("controller",)), (
        "workers, of which there may be others by then, follow"
    )
    controller, gateway, *workers = plan.jobs
    assert isinstance(controller, ControllerJob)
    assert isinstance(gateway, GatewayJob)
    assert gateway.gateway.controller_address == f"unix://{config.cluster.run_dir}/controller.sock"
    assert gateway.gateway.application_store == f"sqlite:{config.cluster.run_dir}/applications.sqlite"
    for worker in workers:
        assert isinstance(worker, WorkerJob)
        assert worker.worker.controller == gateway.gateway.controller_address
        assert worker.worker.engine == "emulated"
        assert worker.worker.pages == 16
    for job in plan.jobs:
        assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job


@pytest.mark.parametrize("realtime", [True, False])
def test_control_is_behind_the_workers_threads_and_before_all_else(
    emulated: Callable[..., Config], realtime: bool
) -> None:
    config = emulated()
    worker = msgspec.structs.replace(config.worker, realtime=realtime)
    controller, gateway, first = make_plan(msgspec.structs.replace(config, worker=worker)).jobs
    assert controller.priority == gateway.priority
    assert (0 < gateway.priority < NETWORK_PRIORITY) == realtime
    assert (gateway.priority == 0) != realtime
    assert first.priority == 0  # It takes its priorities itself, thread by thread.


def test_emulated_devices_take_no_core_from_the_rest(emulated: Callable[..., Config]) -> None:
    assert set(make_plan(emulated()).jobs[0].cores) == os.sched_getaffinity(0)


def test_a_model_that_no_worker_could_hold_is_named(emulated: Callable[..., Config]) -> None:
    config = emulated()
    config = msgspec.structs.replace(config, worker=msgspec.structs.replace(config.worker, pages=2))
    with pytest.raises(ConfigError, match="slow-1 needs 3 pages and a worker has 2"):
        make_plan(config)


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do(emulated: Callable[..., Config]) -> None:
    config = msgspec.structs.replace(emulated(), scheduler=SchedulerConfig(policy="clockwise"))
    with pytest.raises(ConfigError, match=r"there is no policy 'clockwise'; choose one of .*clockwork"):
        make_plan(config)


def test_a_store_of_another_machine_is_refused_before_anything_starts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])],
    )
    path = tmp_path / "tiny.onnx"
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    manifest = compile_file(path, "tiny", store, (1,)).manifest
    config = Config(cluster=ClusterConfig(store=str(tmp_path), run_dir=str(tmp_path / "run")))
    make_plan(config)
    info = store.executable_info(manifest)
    store.put_executable(
        store.executable_path(manifest).read_bytes(),
        msgspec.structs.replace(info, instruction_set="riscv64-vector"),
    )
    with pytest.raises(StoreError, match=r"was compiled for riscv64-vector.*mainspring compile"):
        make_plan(config)


@pytest.mark.parametrize(
    ("cluster", "complaint"),
    [
        (ClusterConfig(), "neither was given"),
        (ClusterConfig(store="s", profiles="p", engine="emulated"), "both were given"),
        (ClusterConfig(profiles="p"), "profiles are for the emulated engine"),
    ],
)
def test_models_come_from_exactly_one_place(cluster: ClusterConfig, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        model_source(cluster, RepositoryConfig())


@pytest.mark.parametrize(
    ("table", "field", "address", "complaint"),
    [
        ("controller", "address", "{gateway}", r"\[gateway\] address and \[controller\] address different"),
        (
            "gateway",
            "http_address",
            "http{gateway}",
            r"\[gateway\] address and \[gateway\] http_address different",
        ),
        ("worker", "data_address", "{gateway}", r"\[gateway\] address and \[worker\] data_address different"),
        ("worker", "data_address", "{free}", r"each of 2 workers.*end it with :\*"),
    ],
)
def test_an_address_that_two_processes_would_listen_on_is_refused(
    emulated: Callable[..., Config], table: str, field: str, address: str, complaint: str
) -> None:
    config = emulated(workers=2 if "free" in address else 1)
    gateway = config.gateway.address
    if address.startswith("http"):
        gateway = gateway.removeprefix("tcp")
    text = address.format(gateway=gateway, free=f"tcp://127.0.0.1:{free_ports(1)[0]}")
    part = msgspec.structs.replace(getattr(config, table), **{field: text})
    with pytest.raises(ConfigError, match=complaint):
        make_plan(msgspec.structs.replace(config, **{table: part}))


def of_gateways(config: Config, count: int) -> Config:
    cluster = msgspec.structs.replace(config.cluster, gateways=count)
    return msgspec.structs.replace(config, cluster=cluster)


def test_each_gateway_has_a_name_and_ports_of_its_own(emulated: Callable[..., Config]) -> None:
    config = emulated()
    served = {
        "address": "tcp://127.0.0.1:7400",
        "http_address": "http://127.0.0.1:8000",
        "metrics_address": "",
    }
    gateway = msgspec.structs.replace(config.gateway, **served)
    plan = make_plan(of_gateways(msgspec.structs.replace(config, gateway=gateway), 3))
    assert [job.name for job in plan.gateways] == ["gateway", "gateway-1", "gateway-2"]
    assert plan.gateway_addresses == ("tcp://127.0.0.1:7400", "tcp://127.0.0.1:7410", "tcp://127.0.0.1:7420")
    assert [job.gateway.http_address.rpartition(":")[2] for job in plan.gateways] == ["8000", "8010", "8020"]
    assert {job.gateway.metrics_address for job in plan.gateways} == {""}
    assert plan.stop_order[0] == ("gateway", "gateway-1", "gateway-2")
    assert len({job.gateway.application_store for job in plan.gateways}) == 1, "they learn together"


def test_gateways_need_room_for_their_ports(emulated: Callable[..., Config]) -> None:
    config = emulated()
    for address, complaint in (
        ("tcp://127.0.0.1:65530", "leaves room"),
        ("tcp://127.0.0.1:*", "leaves room"),
    ):
        gateway = msgspec.structs.replace(config.gateway, address=address)
        with pytest.raises(ConfigError, match=complaint):
            make_plan(of_gateways(msgspec.structs.replace(config, gateway=gateway), 2))


def test_free_ports_leave_room_for_gateways_behind_them() -> None:
    ports = free_ports(4, gateways=3)
    assert len({port + number * 10 for port in ports for number in range(3)}) == 12
