"""Artifacts are deleted once their files are gone or are others, and never while they may be needed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.peers import ModelDown, ModelUp
from mainspring.repository.builds import Build
from mainspring.repository.compiling import sweep
from tests.repository.world import World, spec


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    list(compile_zoo(["digits"], store, 1, 0, (1,)))
    return store


def keep(store: Store, build: Build) -> None:
    """Have the store hold an artifact for a build."""
    store.put_manifest(msgspec.structs.replace(store.manifest("digits"), name=build.name))


def test_what_is_gone_is_deleted_and_the_rest_kept(store: Store) -> None:
    world = World()
    world.put("net", {1: "a", 2: "b"})
    world.settle()
    (build,) = world.reconciler.records["net"].wanted.values()
    keep(store, build)
    names = {"digits", build.name}
    for other in ("net@1-000000000000", "net@2-000000000000", "net@3-000000000000", "gone@1-000000000000"):
        store.put_manifest(msgspec.structs.replace(store.manifest("digits"), name=other))
    world.reconciler.cluster.heard(
        ModelUp(msgspec.structs.replace(spec("net@3-000000000000"), served_as="net"))
    )
    world.reconciler.cluster.heard(ModelDown("net@3-000000000000", drain=True))
    asyncio.run(sweep(str(store.root), world.reconciler, always=False))
    # Version 1 is there and not chosen, so nobody knows what it would be compiled to; 3 is being drained.
    assert set(store.names()) == {*names, "net@1-000000000000", "net@3-000000000000"}
    world.reconciler.cluster.heard(ModelDown("net@3-000000000000"))
    asyncio.run(sweep(str(store.root), world.reconciler, always=False))
    assert set(store.names()) == {*names, "net@1-000000000000"}


def test_weights_that_no_artifact_uses_go_with_the_last_one(store: Store) -> None:
    left = store.root / "weights" / ("0" * 64 + ".bin")
    left.write_bytes(b"left")
    world = World()
    world.settle()
    asyncio.run(sweep(str(store.root), world.reconciler, always=False))
    assert left.exists()
    asyncio.run(sweep(str(store.root), world.reconciler, always=True))
    assert not left.exists()
    assert store.names() == ["digits"]


def test_nothing_is_deleted_while_files_are_changed_or_were_never_looked_at(store: Store) -> None:
    world = World()
    store.put_manifest(msgspec.structs.replace(store.manifest("digits"), name="net@1-000000000000"))
    asyncio.run(sweep(str(store.root), world.reconciler, always=False))
    assert "net@1-000000000000" in store.names()


def test_a_store_that_can_not_be_read_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(sweep(str(tmp_path / "nowhere"), World().reconciler, always=True))
    assert "could not delete" in caplog.text
