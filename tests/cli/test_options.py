import msgspec
import pytest

from mainspring.cli.options import DEFAULT_GATEWAY
from mainspring.client.address import DEFAULT_ADDRESS
from mainspring.gateway.config import GatewayConfig
from mainspring.traces.replayer import ReplayConfig


@pytest.mark.parametrize(
    ("config", "field", "address"),
    [
        (GatewayConfig, "address", DEFAULT_GATEWAY),
        (ReplayConfig, "address", DEFAULT_GATEWAY),
    ],
)
def test_verbs_look_where_processes_listen_by_default(
    config: type[msgspec.Struct], field: str, address: str
) -> None:
    defaults = {each.name: each.default for each in msgspec.structs.fields(config)}
    assert defaults[field] == address


def test_the_client_looks_where_verbs_do() -> None:
    assert DEFAULT_ADDRESS == DEFAULT_GATEWAY
