"""What gateways are answered when a model can't be loaded, or there is nobody to serve it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mainspring.messages.codes import Reason
from mainspring.messages.repository import (
    Changed,
    GetIndex,
    Index,
    LoadModel,
    NotChanged,
    Question,
    UnloadModel,
)
from mainspring.repository import requests
from mainspring.repository.config import RepositoryConfig
from mainspring.repository.layout import FoundModel
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reconciler import Reconciler
from mainspring.repository.requests import Requests
from mainspring.repository.scanner import Scanner
from tests.repository.world import BROKEN, PATIENCE, World


class FakeScanner:
    """Finds what the world's folder holds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.overrides: dict[str, ModelConfig] = {}

    def override(self, name: str, config: ModelConfig | None) -> ModelConfig | None:
        former = self.overrides.pop(name, None)
        if config is not None:
            self.overrides[name] = config
        return former

    async def look(self, name: str, patience_s: float = 0.0) -> FoundModel | None:
        self._world.look()
        return self._world.folder.get(name)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(requests, "CLUSTER_WAIT_S", 0.2)
    world = World(Reconciler(explicit=True, patience=PATIENCE))
    world.put("net", {1: "a"})
    world.put("bad", {1: BROKEN})
    world.reconciler.missing(world.folder)
    return world


def ask(
    world: World,
    question: Question,
    mode: str = "explicit",
    *,
    helps: bool = True,
    scanner: FakeScanner | None = None,
) -> object:
    """Ask, while the world does what is to be done; without ``helps`` no worker ever prepares anything."""

    async def run() -> object:
        used = cast(Scanner, scanner or FakeScanner(world))
        asked = Requests(RepositoryConfig(mode=mode), world.reconciler, used, lambda: None)
        answering = asyncio.create_task(asked.answer(question))
        while not answering.done():
            if world.reconciler.cluster.known:
                world.look()
                world.step()
                if helps:
                    world.status()
                world.drained()
            await asyncio.sleep(0.001)
        return answering.result()

    return asyncio.run(run())


def refusal(answer: object) -> tuple[Reason, str]:
    assert isinstance(answer, NotChanged)
    return answer.reason, answer.detail


def test_models_are_loaded_and_unloaded(world: World) -> None:
    loaded = ask(world, LoadModel("net"))
    assert isinstance(loaded, Changed)
    assert loaded.versions == world.reconciler.cluster.versions_of("net") != {}
    assert ask(world, LoadModel("net")) == loaded
    assert ask(world, UnloadModel("net")) == Changed({})
    assert world.served("net") == {}
    assert refusal(ask(world, UnloadModel("net"))) == (Reason.UNKNOWN_MODEL, "model 'net' is not loaded")


def test_a_model_that_can_not_be_loaded_says_why(world: World) -> None:
    reason, detail = refusal(ask(world, LoadModel("bad")))
    assert reason is Reason.BAD_INPUT
    assert detail == f"model 'bad' can't be loaded: version 1: {BROKEN}"
    assert refusal(ask(world, LoadModel("none")))[0] is Reason.UNKNOWN_MODEL


def test_a_configuration_counts_until_the_next_load_and_not_if_it_can_not_be_served(world: World) -> None:
    scanner = FakeScanner(world)
    four, two = (ModelConfig(max_batch_size=size) for size in (4, 2))
    assert isinstance(ask(world, LoadModel("net", '{"max_batch_size": 4}'), scanner=scanner), Changed)
    assert scanner.overrides == {"net": four}
    reason, detail = refusal(ask(world, LoadModel("net", '{"max_batch_size": "a"}'), scanner=scanner))
    assert reason is Reason.BAD_INPUT
    assert "the parameter config: line 1: max_batch_size must be a whole number" in detail
    assert scanner.overrides == {"net": four}
    assert isinstance(ask(world, LoadModel("net", '{"max_batch_size": 2}'), scanner=scanner), Changed)
    assert scanner.overrides == {"net": two}
    assert isinstance(ask(world, LoadModel("net"), scanner=scanner), Changed)
    assert scanner.overrides == {}
    assert refusal(ask(world, LoadModel("bad", "{}"), scanner=scanner))[0] is Reason.BAD_INPUT
    assert scanner.overrides == {}
    ask(world, LoadModel("net", '{"max_batch_size": 2}'), scanner=scanner)
    ask(world, UnloadModel("net"), scanner=scanner)
    assert scanner.overrides == {}


def test_files_that_never_settle_are_not_loaded(world: World) -> None:
    world.folder["net"] = FoundModel(name="net", settling=(1,), numbers=(1,))
    assert refusal(ask(world, LoadModel("net")))[0] is Reason.MODEL_NOT_READY
    assert not world.reconciler.records["net"].loaded


def test_without_workers_or_a_controller_nobody_waits_for_ever(world: World) -> None:
    assert refusal(ask(world, LoadModel("net"), helps=False))[0] is Reason.NO_WORKER
    world.reconciler.cluster.lost()
    assert refusal(ask(world, LoadModel("net")))[0] is Reason.CONTROLLER_UNREACHABLE


def test_loading_is_off_but_for_mode_explicit_and_the_index_never_is(world: World) -> None:
    for mode in ("poll", "none"):
        reason, detail = refusal(ask(world, LoadModel("net"), mode))
        assert reason is Reason.FORBIDDEN
        assert "is off" in detail
        assert isinstance(ask(world, GetIndex(), mode), Index)
