"""Groups of calls that need a header: which rules there are, and what a call lacks."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.gateway.config import PROTOCOLS, GatewayConfig, Group, Restrictions
from mainspring.gateway.server import STARTERS

RULES = ("model-repository, logging:Admin-Key=a secret=1", "health:probe=yes")


def test_a_group_needs_its_header_with_its_value_and_others_need_none() -> None:
    restrictions = Restrictions("key", RULES, "prefix-")
    said: dict[str, str] = {"prefix-admin-key": "a secret=1", "prefix-probe": "no"}
    assert restrictions.missing("model-repository", said.get) is None
    assert restrictions.missing("logging", said.get) is None
    assert restrictions.missing("health", said.get) == "prefix-probe"
    assert restrictions.missing("logging", lambda _: None) == "prefix-admin-key"
    assert restrictions.missing("logging", lambda _: "ä secret=1") == "prefix-admin-key"
    assert not [
        each
        for each in {*Group} - {"health", "logging", "model-repository"}
        if restrictions.missing(each, lambda _: None)
    ]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("models:a=b", "the group 'models'; groups are health, metadata"),
        ("health", "'health'; a rule is GROUPS:HEADER=VALUE"),
        ("health:key", "a rule is GROUPS"),
        ("health:key=", "a rule is GROUPS"),
        ("health:a key=x", "a rule is GROUPS"),
        ("health,trace,health:key=x", "'health' twice"),
        ("health:key=x\r\ny", "a rule is GROUPS"),
    ],
)
@pytest.mark.parametrize("key", ["http_restricted_api", "grpc_restricted_protocol"])
def test_a_rule_that_makes_no_sense_is_refused_when_it_is_read(key: str, rule: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"the gateway's {key} has .*{said}"):
        msgspec.structs.replace(GatewayConfig(), **{key: (rule,)})


def test_a_refusal_does_not_tell_the_value() -> None:
    with pytest.raises(ValueError, match="a rule is GROUPS") as caught:
        GatewayConfig(http_restricted_api=("health key=hunter2",))
    assert "hunter2" not in str(caught.value)


def test_each_protocol_of_the_list_has_its_keys_and_is_started() -> None:
    config = GatewayConfig(http_address="http://127.0.0.1:0")
    for name in PROTOCOLS:
        assert name in STARTERS
        assert isinstance(getattr(config, f"{name}_address"), str)
        assert getattr(config, f"{name}_max_connections") > 0
    assert config.protocols == {"http": "http://127.0.0.1:0"}


def test_a_store_that_is_none_is_refused_without_its_password() -> None:
    for where in ("", "memory", "sqlite:learnt", "redis://:secret@host:6379/1"):
        assert GatewayConfig(application_store=where).application_store == where
    with pytest.raises(ValueError, match="application_store begins with 'rediz'; it must be memory") as error:
        GatewayConfig(application_store="rediz://:secret@host")
    assert "secret" not in str(error.value)
