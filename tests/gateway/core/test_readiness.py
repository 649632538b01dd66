"""One notion of readiness: of the server and of each model, strict and while anything is served."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.controller_catalogs import Told
from mainspring.gateway.core.readiness import Readiness
from mainspring.gateway.core.validation import BadRequest
from mainspring.messages.peers import ModelDown
from mainspring.messages.served import Awaited, ServedModel, Standing
from tests.gateway.fakes import make_spec

AWAY = "no worker: none is connected"
BROKEN = "can't be loaded: it is no model"


class Gateway:
    """What a gateway is told, and its readiness."""

    def __init__(self, policy: str = "strict", shards: int = 1) -> None:
        self.told = Told(Catalog(), [f"tcp://{number}" for number in range(shards)])
        self.absent = [""] * shards
        self.readiness = Readiness(self.told, self.absent.__getitem__, policy)
        for shard in range(shards):
            self.told.told_all(0, shard)

    def up(self, name: str, reason: str = "", *, version_of: str = "", shard: int = 0) -> None:
        """A controller tells of a model as it does: whether it could be served before that it is there."""
        spec = msgspec.structs.replace(make_spec(name), served_as=version_of)
        if reason:
            self.stands(name, reason, shard)
        self.told.model_up(shard, spec)
        self.readiness.note(spec.public_name)

    def down(self, name: str) -> None:
        self.told.model_down(0, ModelDown(name))
        self.readiness.note(name)

    def stands(self, name: str, reason: str, shard: int = 0) -> None:
        self.readiness.heard(shard, Standing({name: reason}))

    def awaits(self, **models: str) -> None:
        self.readiness.heard(0, Awaited(models))

    def serve(self, name: str, *versions: str) -> None:
        self.told.serve(0, ServedModel(name, dict(enumerate(versions, 1))))
        self.readiness.note(name)


@pytest.mark.parametrize("policy", ["strict", "serving"])
def test_nothing_that_is_served_is_not_ready(policy: str) -> None:
    gateway = Gateway(policy)
    assert gateway.readiness.server() == "no model is served"
    gateway.awaits(net=BROKEN)
    assert gateway.readiness.server() == "can't be loaded: model 'net': it is no model"
    assert gateway.readiness.model("net") == BROKEN
    gateway.awaits(net="")
    with pytest.raises(BadRequest):
        gateway.readiness.model("net")
    gateway.up("net")
    assert (gateway.readiness.server(), gateway.readiness.model("net")) == ("", "")
    gateway.stands("net", AWAY)
    assert gateway.readiness.server() == "no worker: model 'net': none is connected"
    assert gateway.readiness.model("net") == AWAY
    gateway.stands("net", "")
    gateway.down("net")
    assert gateway.readiness.server() == "no model is served"


def test_strict_waits_for_all_at_first_and_serving_for_one() -> None:
    strict, serving = Gateway(), Gateway("serving")
    for gateway in (strict, serving):
        gateway.awaits(net="being compiled: version 1: it waits to be compiled")
        gateway.up("other")
    assert strict.readiness.server().startswith("being compiled: model 'net'")
    assert serving.readiness.server() == ""
    strict.up("net@1-aa", version_of="net")
    strict.serve("net", "net@1-aa")
    assert strict.readiness.server() == "", "what is awaited and served is served"


def test_adding_or_replacing_one_of_many_never_takes_readiness_away() -> None:
    gateway = Gateway()
    gateway.up("other")
    assert gateway.readiness.server() == ""
    # One is added: compiled, prepared, served, and replaced in the same way.
    gateway.awaits(net="being compiled")
    for name in ("net@1-aa", "net@1-bb"):
        gateway.up(name, "starting: the workers prepare it", version_of="net")
        assert gateway.readiness.server() == ""
        gateway.stands(name, "")
        gateway.serve("net", name)
        gateway.awaits(net="")
        assert (gateway.readiness.server(), gateway.readiness.model("net")) == ("", "")
    gateway.awaits(broken=BROKEN)
    assert gateway.readiness.server() == "", "it never was ready"
    assert gateway.readiness.model("broken") == BROKEN
    # From when it was ready it counts, until nobody asks for it any more.
    gateway.stands("net@1-bb", AWAY)
    assert gateway.readiness.server() == "no worker: model 'net': none is connected"
    gateway.serve("net")
    assert gateway.readiness.server() == ""


def test_one_of_many_that_fails_counts_in_strict_alone() -> None:
    for policy, expected in (("strict", "can't be loaded: model 'b': it is no model"), ("serving", "")):
        gateway = Gateway(policy)
        gateway.up("a")
        gateway.up("b")
        gateway.stands("b", BROKEN)
        assert gateway.readiness.server() == expected
        assert (gateway.readiness.model("a"), gateway.readiness.model("b")) == ("", BROKEN)
        assert gateway.readiness.unready() == {"b": BROKEN}


def test_reasons_call_a_model_what_clients_call_it() -> None:
    gateway = Gateway()
    gateway.up("m@1-ab", "can't be loaded: m@1-ab needs 9 pages", version_of="m")
    gateway.serve("m", "m@1-ab")
    assert gateway.readiness.model("m") == "can't be loaded: m needs 9 pages"


def test_what_may_pass_is_told_before_what_never_could_be_loaded() -> None:
    for policy in ("strict", "serving"):
        gateway = Gateway(policy)
        gateway.up("broken", BROKEN)
        gateway.awaits(awaited=BROKEN)
        gateway.up("good")
        gateway.stands("good", AWAY)
        assert gateway.readiness.server() == "no worker: model 'good': none is connected"
        assert gateway.readiness.model("broken") == BROKEN
        gateway.stands("good", BROKEN)
        assert gateway.readiness.server().startswith("can't be loaded: model ")


def test_a_controller_that_is_away_takes_its_models_with_it() -> None:
    for policy, expected in (("strict", "no controller"), ("serving", "")):
        gateway = Gateway(policy, shards=2)
        gateway.up("a", shard=0)
        gateway.up("b", shard=1)
        assert gateway.readiness.server() == ""
        gateway.absent[1] = "no controller"
        assert gateway.readiness.server() == expected
        assert (gateway.readiness.model("a"), gateway.readiness.model("b")) == ("", "no controller")
        gateway.absent[0] = "no controller"
        assert gateway.readiness.server() == "no controller"


def test_one_that_leaves_is_not_ready_whatever_it_could_serve() -> None:
    gateway = Gateway()
    gateway.up("net")
    gateway.readiness.leave()
    assert gateway.readiness.server().startswith("leaving")
    assert gateway.readiness.model("net").startswith("leaving")


def test_the_policy_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="readiness is 'lax'; it must be one of strict, serving"):
        GatewayConfig(readiness="lax")


def test_a_controller_that_says_again_that_it_has_told_all_is_no_news() -> None:
    """Each of its pings does, ten times a second."""
    gateway = Gateway()
    looked: list[int] = []

    def absent(shard: int) -> str:
        looked.append(shard)
        return ""

    readiness = Readiness(gateway.told, absent, "strict")
    readiness.begin_session(0)
    readiness.told_all(0, 0)
    assert looked
    looked.clear()
    readiness.told_all(1, 0)
    assert not looked
