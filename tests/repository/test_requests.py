"""What gateways are answered when a model can't be loaded, or there is nobody to serve it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

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
from mainspring.repository.sent_files import Given, SentFiles
from tests.repository.world import BROKEN, PATIENCE, World

LIMIT_BYTES = 100


class FakeScanner:
    """Finds what the world's folder holds."""

    def __init__(self, world: World, state_dir: str = "") -> None:
        self._world = world
        self._folder = dict(world.folder)
        self.overrides: dict[str, Given] = {}
        self.sent = SentFiles(state_dir, LIMIT_BYTES)

    def override(self, name: str, given: Given | None) -> Given | None:
        former = self.overrides.pop(name, None)
        if given is not None:
            self.overrides[name] = given
        return former

    def given(self, name: str) -> Given | None:
        return self.overrides.get(name)

    def holds(self, name: str) -> bool:
        return name in self._folder

    async def look(self, name: str, patience_s: float = 0.0) -> FoundModel | None:
        given = self.overrides.get(name)
        if given is not None and given.folder:
            self._world.put(name, {1: (Path(given.folder) / "1" / "model.onnx").read_text()})
        elif name in self._folder:
            self._world.folder[name] = self._folder[name]
        else:
            self._world.folder.pop(name, None)
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
    parts: Sequence[bytes] = (),
    *,
    helps: bool = True,
    scanner: FakeScanner | None = None,
) -> object:
    """Ask, while the world does what is to be done; without ``helps`` no worker ever prepares anything."""

    async def run() -> object:
        used = cast(Scanner, scanner or FakeScanner(world))
        asked = Requests(RepositoryConfig(mode=mode), world.reconciler, used, lambda: None)
        answering = asyncio.create_task(asked.answer(question, parts))
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


def configured(name: str, config: str) -> LoadModel:
    """Return the question to load a model with a configuration."""
    return LoadModel(name, {"config": config})


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
    four, two = (Given(ModelConfig(max_batch_size=size)) for size in (4, 2))
    assert isinstance(ask(world, configured("net", '{"max_batch_size": 4}'), scanner=scanner), Changed)
    assert scanner.overrides == {"net": four}
    reason, detail = refusal(ask(world, configured("net", '{"max_batch_size": "a"}'), scanner=scanner))
    assert reason is Reason.BAD_INPUT
    assert "the parameter config: line 1: max_batch_size must be a whole number" in detail
    assert scanner.overrides == {"net": four}
    assert isinstance(ask(world, configured("net", '{"max_batch_size": 2}'), scanner=scanner), Changed)
    assert scanner.overrides == {"net": two}
    assert isinstance(ask(world, LoadModel("net"), scanner=scanner), Changed)
    assert scanner.overrides == {}
    assert refusal(ask(world, configured("bad", "{}"), scanner=scanner))[0] is Reason.BAD_INPUT
    assert scanner.overrides == {}
    ask(world, configured("net", '{"max_batch_size": 2}'), scanner=scanner)
    ask(world, UnloadModel("net"), scanner=scanner)
    assert scanner.overrides == {}


FILE = "file:1/model.onnx"


def body(**parameters: Any) -> bytes:
    """Return what Triton's client sends over HTTP, the contents of files in base64."""
    encoded = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in parameters.items()
    }
    return json.dumps({"parameters": encoded}).encode()


def test_files_count_until_the_next_load_and_not_if_they_can_not_be_served(
    world: World, tmp_path: Path
) -> None:
    scanner = FakeScanner(world, str(tmp_path))

    def load(name: str, *parts: bytes, files: tuple[str, ...] = (), config: str = "") -> object:
        question = LoadModel(name, {"config": config} if config else {}, files, encoded=not files)
        return ask(world, question, parts=parts, scanner=scanner)

    def kept(name: str) -> list[str]:
        return [file.read_text() for file in sorted((tmp_path / "sent-files").glob(f"{name}/*/1/*"))]

    assert isinstance(load("new", b"one", files=(FILE,)), Changed)
    assert isinstance(load("net", body(**{FILE: b"two"}, config='{"max_batch_size": 4}')), Changed)
    assert (world.served("new"), world.served("net")) == ({1: "one"}, {1: "two"})
    assert scanner.overrides["net"].config == ModelConfig(max_batch_size=4)
    for name, before in (("new", "one"), ("net", "two")):
        reason, detail = refusal(load(name, BROKEN.encode(), files=(FILE,)))
        assert reason is Reason.BAD_INPUT
        assert detail.startswith(f"model {name!r} can't be loaded: version 1: ")
        assert detail.endswith(f"of which now: {BROKEN}")
        assert world.served(name) == {1: before}
        assert kept(name) == [before]
    reason, detail = refusal(load("new", b"{}"))
    assert reason is Reason.UNKNOWN_MODEL
    assert "it was loaded with files that a client sent: send them again" in detail
    assert isinstance(load("net", b"{}"), Changed)
    assert (world.served("new"), world.served("net")) == ({1: "one"}, {1: "a"})
    assert (kept("new"), kept("net")) == (["one"], [])
    ask(world, UnloadModel("new"), scanner=scanner)
    assert kept("new") == []
    assert scanner.overrides == {}


@pytest.mark.parametrize(
    ("question", "part", "says"),
    [
        (LoadModel("net", encoded=True), b'{"parameters": ', "the request's JSON can't be read"),
        (LoadModel("net", encoded=True), body(config=1), "config is a text"),
        (LoadModel("net", encoded=True), body(config="x" * 70_000), "at most 65,536 make sense"),
        (
            LoadModel("net", encoded=True),
            body(what="x"),
            "no parameter 'what' of loading but config",
        ),
        (LoadModel("net", encoded=True), body(**{FILE: "no base64!"}), "is not a file's content in base64"),
        (LoadModel("net", encoded=True), body(**{FILE: 7}), "is not a file's content in base64"),
        (LoadModel("net", files=(FILE,)), b"x" * 101, "101 bytes; 0 of the 100 are taken"),
        (LoadModel("../net", files=(FILE,)), b"x", "use at most 96 letters"),
        *[
            (LoadModel("net", files=(f"file:1/{name}",)), b"x", "whose code no client may send")
            for name in ("model.py", "model.toml")
        ],
        *[
            (LoadModel("net", files=(f"file:{path}",)), b"x", "names no file: it is a path")
            for path in ("", "..", "../net/1/model.onnx", "/etc/passwd", "1//model.onnx", "1/.x", "1/a\0b")
        ],
    ],
)
def test_a_load_that_makes_no_sense_is_refused_before_anything_is_kept(
    world: World, tmp_path: Path, question: LoadModel, part: bytes, says: str
) -> None:
    scanner = FakeScanner(world, str(tmp_path))
    reason, detail = refusal(ask(world, question, parts=(part,), scanner=scanner))
    assert reason is Reason.BAD_INPUT
    assert says in detail
    assert not list(tmp_path.rglob("*"))


def test_files_that_are_folders_of_others_and_too_many_are_refused(world: World, tmp_path: Path) -> None:
    scanner = FakeScanner(world, str(tmp_path))
    for files, says in (
        (("file:1", "file:1/model.onnx"), "is a file and a folder of others"),
        (tuple(f"file:1/{index}" for index in range(65)), "a load has at most 64"),
    ):
        question = LoadModel("net", files=files)
        reason, detail = refusal(ask(world, question, parts=[b"x"] * len(files), scanner=scanner))
        assert reason is Reason.BAD_INPUT
        assert says in detail


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
        assert ("put into the repository's folder, as NAME/1/model.onnx" in detail) == (mode == "poll")
        assert isinstance(ask(world, GetIndex(), mode), Index)
