import msgspec
import pytest

from mainspring.client.address import DEFAULT_ADDRESS
from mainspring.console.config import ConsoleConfig
from mainspring.controller.config import ControllerConfig
from mainspring.gateway.config import GatewayConfig
from mainspring.launch.options import DEFAULT_CONTROLLER, DEFAULT_GATEWAY
from mainspring.repository.config import RepositoryConfig
from mainspring.traces.replayer import ReplayConfig
from mainspring.worker.config import WorkerConfig


@pytest.mark.parametrize(
    ("config", "field", "address"),
    [
        (GatewayConfig, "address", DEFAULT_GATEWAY),
        (ReplayConfig, "address", DEFAULT_GATEWAY),
        (ControllerConfig, "address", DEFAULT_CONTROLLER),
        (GatewayConfig, "controller_address", DEFAULT_CONTROLLER),
        (ConsoleConfig, "controller_address", DEFAULT_CONTROLLER),
        (RepositoryConfig, "controller_address", DEFAULT_CONTROLLER),
        (WorkerConfig, "controller", DEFAULT_CONTROLLER),
    ],
)
def test_verbs_look_where_processes_listen_by_default(
    config: type[msgspec.Struct], field: str, address: str
) -> None:
    defaults = {each.name: each.default for each in msgspec.structs.fields(config)}
    assert defaults[field] == address


def test_the_client_looks_where_verbs_do() -> None:
    assert DEFAULT_ADDRESS == DEFAULT_GATEWAY
