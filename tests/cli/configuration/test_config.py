from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.cli.configuration.config import Config, merged, read_config, read_tables
from mainspring.cli.launcher.up import Ports, cluster_config
from mainspring.messages.tables import ConfigError


def read(folder: Path, text: str) -> Config:
    path = folder / "mainspring.toml"
    path.write_text(text)
    return read_config(read_tables(path), str(path))


def test_every_table_reaches_its_process(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        [cluster]
        workers = 3
        store = "models"
        [scheduler]
        lookahead_ms = 2
        [controller]
        address = "tcp://127.0.0.1:9001"
        [gateway]
        max_in_flight = 7
        [worker]
        pages = 12
        """,
    )
    assert config.cluster.workers == 3
    assert config.cluster.store == str(tmp_path / "models")
    assert config.scheduler.lookahead_ms == 2.0
    assert config.controller.address == "tcp://127.0.0.1:9001"
    assert config.gateway.max_in_flight == 7
    assert config.worker.pages == 12


def test_libraries_of_operators_are_packages_or_paths_beside_the_file_and_have_to_be_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.so").touch()
    libraries = read(tmp_path, '[cluster]\nop_libraries = ["msgspec", "mine.so", "./"]').cluster.op_libraries
    assert [*libraries] == ["msgspec", str(tmp_path / "mine.so"), str(tmp_path)]
    for entry, why in (("no-such-package", "pip install no-such-package"), ("none.so", "does not exist")):
        with pytest.raises(ConfigError, match=why):
            read(tmp_path, f'[cluster]\nop_libraries = ["{entry}"]')
    with pytest.raises(ConfigError, match=r"set \[cluster\] op_libraries"):
        read(tmp_path, '[worker]\nop_libraries = ["msgspec"]')


@pytest.mark.parametrize(
    ("table", "key", "said", "means"),
    [
        ("gateway", "token_file", "tokens.toml", "{}/tokens.toml"),
        ("gateway", "access_log", "/var/log/access", "/var/log/access"),
        ("console", "token_file", "../tokens.toml", "{}/../tokens.toml"),
        ("worker", "store_token_file", "secret", "{}/secret"),
        ("worker", "store_from", "models", "{}/models"),
        ("worker", "store_from", "https://10.0.0.1:7500", "https://10.0.0.1:7500"),
        ("gateway", "application_store", "sqlite:learnt.db", "sqlite:{}/learnt.db"),
        ("gateway", "application_store", "memory", "memory"),
        (
            "gateway",
            "application_store",
            "redis://:secret@10.0.0.1:6379/0",
            "redis://:secret@10.0.0.1:6379/0",
        ),
        ("controller", "lease", "file:lease", "file:{}/lease"),
        ("controller", "lease", "etcd://10.0.0.1:2379", "etcd://10.0.0.1:2379"),
    ],
)
def test_paths_are_relative_to_the_file(tmp_path: Path, table: str, key: str, said: str, means: str) -> None:
    (tmp_path / "tokens.toml").touch()
    config = read(tmp_path, f'[{table}]\n{key} = "{said}"')
    assert getattr(getattr(config, table), key) == means.format(tmp_path)


def test_tenants_have_weights(tmp_path: Path) -> None:
    assert read(tmp_path, '[tenants]\nsearch = 3\n"team b" = 0.5').scheduler.tenant_weights == {
        "search": 3.0,
        "team b": 0.5,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tenants = 3", r"tenants is a table: write \[tenants\]"),
        ("scheduler = 3\n[tenants]\na = 1", r"scheduler is a table: write \[scheduler\]"),
        ("[tenants]\na = -1", r"\[tenants\]: a is -1; a tenant's weight is a number from 0.001 to 1,000"),
        ("[tenants]\na = true", r"\[tenants\]: a is True; a tenant's weight"),
        ("[tenants.a]\nweight = 2", r"\[tenants\]: a is {'weight': 2}; a tenant's weight"),
        ("[scheduler]\ntenant_weights = {a = 1}", r"write NAME = WEIGHT in \[tenants\]"),
    ],
)
def test_what_is_no_weight_of_a_tenant_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, text)


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Config()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "[cluster]\nworker = 2",
            r"mainspring\.toml, \[cluster\] has no key 'worker'; did you mean 'workers'\?",
        ),
        ("[scheduler]\nlookahead_us = 5000", "it is given in milliseconds, as 'lookahead_ms'"),
        ("[scheduler]\nlookahead = 5", "it is given in milliseconds, as 'lookahead_ms'"),
        ('[scheduler]\nlookahead_ms = "5ms"', "a plain number of milliseconds, not the text '5ms'"),
        ('[scheduler]\nlookahead_ms = "0.01s"', r"not the text '0\.01s': write lookahead_ms = 10$"),
        ('[gateway]\nmax_slo_ms = "10s"', r"milliseconds, not the text '10s': write max_slo_ms = 10000$"),
        ('[worker]\nio_bytes = "64 MiB"', r"bytes, not the text '64 MiB': write io_bytes = 67108864$"),
        ('[worker]\nio_bytes = "10 s"', r"a plain number of bytes, not the text '10 s'$"),
        ("[scheduler]\naction_window_us = 100", "it is given in milliseconds, as 'action_window_ms'"),
        ("[gateway]\nslo_s = 1", r"has no key 'slo_s'; did you mean 'max_slo_ms', in milliseconds\?"),
        (
            "[scheduler]\nmax_slo_s = 1",
            r"it belongs to \[gateway\] and is given in milliseconds, as 'max_slo_ms'",
        ),
        ("[scheduler]\nlookahead_ms = true", "lookahead_ms expects a number of milliseconds, not true"),
        ("[scheduler]\nlookahead_ms = nan", "lookahead_ms is nan; it must be a number that is finite"),
        ("[gateway]\nmax_slo_ms = inf", "max_slo_ms is inf; it must be a number that is finite"),
        ("[scheduler]\nlookahead_ms = -1", "lookahead_ms is -1.0; it must be at least 0"),
        ("[scheduler]\naction_timeout_ms = 0", "action_timeout_ms is 0.0; it must be greater than 0"),
        ("[scheduler]\nmax_attempts = 3", r"max_attempts is no longer a key: it is always 5; leave it out"),
        ("[gateway]\nhttp_body_idle_ms = 5", r"it is always 10000\.0; leave it out"),
        ("[scheduler]\nrefuse = 'last'", "refuse is no longer a key: set refuse_wrongly: 0 is what"),
        ("[scheduler.max_queue_sizes]\nm = 3", r"set max_queue_size in \[models\.NAME\]"),
        ("[worker]\nmax_attempts = 3", "has no key 'max_attempts'"),
        ("[gateway]\ngrace_ms = [1]", r"expects a number of milliseconds, not \[1\]"),
        (
            "[worker]\nmax_message_bytes = 1_048_576",
            r"\[gateway\] max_message_bytes is 268435456 and that of \[worker\] 1048576.* at least as much",
        ),
        ("[cluster]\npolicy = 'clockwork'", r"it belongs to \[scheduler\]"),
        ("[cluster]\npolcy = 'clockwork'", r"did you mean 'policy' in \[scheduler\]\?"),
        ("[cluster]\nworkers = 1.5", "workers expects a whole number, not 1.5"),
        ("[cluster]\nworkers = '2'", "workers expects a whole number, not '2'"),
        ("[cluster]\nevent_log = 1", "event_log expects true or false, not 1"),
        ("[cluster]\nstore = 3", "store expects a text in quotes, not 3"),
        ("[cluster]\nworkers = 1000000000000", "it must be greater than 0 and at most 10,000"),
        (
            "[cluster]\ncopies = 1000000000000",
            "copies is 1000000000000; it must be greater than 0 and at most",
        ),
        (
            "[cluster]\nready_timeout_s = 1e300",
            "ready_timeout_s is 1e.300; it must be greater than 0 and at most",
        ),
        ("[models.m]\nworkers = 1000000000000", "it must be at least 1 and at most 10,000"),
        ("[cluster]\nworkers = 0", "workers is 0; it must be greater than 0"),
        ("[cluster]\nengine = 'onnx'", r"engine 'onnx' is not one of .*did you mean 'onnxruntime'\?"),
        ("[cluster]\nlog_level = 'loud'", "it must be DEBUG, INFO, WARNING or ERROR"),
        ("[cluster]\nzzz = 1", "it knows console, controllers, copies, device"),
        ("[gatewayz]\nmax_in_flight = 1", r"has no table \[gatewayz\]; did you mean \[gateway\]\?"),
        ("pages = 3", r"has no table \[pages\]: pages is a key of \[worker\]"),
        ("cluster = 3", r"cluster is a table: write \[cluster\]"),
        ("[gateway]\ncontroller_address = 'tcp://h:1'", r"is not set here: it is \[controller\] address"),
        ("[worker]\nengine = 'emulated'", r"set \[cluster\] engine"),
        ("[cluster]\nsecret_file = 'x'", r"secret_file is no longer a key: .* need \[cluster\] keys"),
        ("[gateway]\nsecret_file = 'x'", r"secret_file is no longer a key: .* need \[cluster\] keys"),
        ("[gateway]\nmax_in_flight = -1", "max_in_flight is -1; it must be greater than 0"),
        ("[cluster", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml does not exist"):
        read_tables(tmp_path / "nothing.toml")


def test_flags_go_over_the_file() -> None:
    tables = merged(
        {"cluster": {"workers": 2, "copies": 4}}, {"cluster": {"workers": 3}, "worker": {"pages": 5}}
    )
    assert tables == {"cluster": {"workers": 3, "copies": 4}, "worker": {"pages": 5}}


def test_a_flag_replaces_the_files_source_of_models(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("[cluster]\nstore = 'models'\nengine = 'emulated'")
    config = cluster_config(path, {"cluster": {"profiles": "p.csv"}}, Ports(8100))
    assert (config.cluster.store, config.cluster.profiles) == (None, "p.csv")
    assert config.gateway.address == "tcp://127.0.0.1:8100"
    assert config.controller.address == "", "a socket in the run folder"


def served(config: Config) -> tuple[str, str, str]:
    gateway = config.gateway
    return gateway.http_address, gateway.grpc_address, gateway.metrics_address


def test_standard_protocols_are_served_on_their_usual_ports(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("[cluster]\nstore = 'models'")
    assert served(cluster_config(path, {}, Ports())) == (
        "http://127.0.0.1:8000",
        "grpc://127.0.0.1:8001",
        "http://127.0.0.1:8002",
    )


def test_flags_go_over_the_file_and_the_file_over_the_usual_ports(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("[gateway]\nhttp_address = 'http://0.0.0.0:80'\ngrpc_address = 'grpc://0.0.0.0:81'")
    config = cluster_config(path, {}, Ports(http="8123", metrics="off"))
    assert served(config) == ("http://127.0.0.1:8123", "grpc://0.0.0.0:81", "")


def test_any_port_means_any_for_all_protocols(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("")
    config = cluster_config(path, {}, Ports(gateway=0, grpc="off"))
    http, grpc, metrics = served(config)
    assert grpc == ""
    taken = {config.gateway.address, config.controller.address, http, metrics}
    assert len({address.rpartition(":")[2] for address in taken}) == 4


def test_a_port_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match="--http-port is 'eighty'; give a port, 0 for any free one, or off"):
        cluster_config(path, {}, Ports(http="eighty"))
