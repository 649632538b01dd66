"""Models that a worker failed on are looked at until their files change."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from mainspring.messages.model import ModelSpec
from mainspring.worker.engines.artifacts import INTERVAL_NS, LOOKED_AT, StoreWatch


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    compile_model(build("digits", 1), "m", store, (1,), Source("zoo", "digits", seed=1), quick=True)
    return store


def model(store: Store) -> ModelSpec:
    return store.manifest("m").spec()


def alter(path: Path) -> bytes:
    """Write something else into a file aside and move it there; return what was there."""
    before = path.read_bytes()
    aside = path.with_name("aside")
    aside.write_bytes(before[:-1])
    aside.replace(path)
    return before


@pytest.mark.parametrize(
    "pattern",
    ["models/m/manifest.json", "weights/*.bin", "executables/*/graph.onnx", "executables/*/info.json"],
)
def test_each_file_of_a_model_counts(store: Store, pattern: str) -> None:
    (path,) = store.root.glob(pattern)
    spec = model(store)
    right = alter(path)
    watch = StoreWatch(store)
    watch.failed(spec)
    watch.look()
    assert watch.changed() is None
    path.write_bytes(right)
    watch.look()
    assert watch.changed() == spec
    watch.look()
    assert watch.changed() is None, "it is reported once"


def test_a_change_while_the_model_is_tried_again_is_not_missed(store: Store) -> None:
    (weights,) = store.root.glob("weights/*.bin")
    watch = StoreWatch(store)
    spec = model(store)
    watch.failed(spec)
    right = alter(weights)
    watch.look()
    assert watch.changed() == spec
    weights.write_bytes(right)
    watch.failed(spec)
    watch.look()
    assert watch.changed() == spec


def test_what_works_is_no_longer_looked_at(store: Store) -> None:
    (weights,) = store.root.glob("weights/*.bin")
    watch = StoreWatch(store)
    watch.failed(model(store))
    assert watch.due(0)
    assert not watch.due(INTERVAL_NS - 1)
    assert watch.due(INTERVAL_NS)
    watch.worked("m")
    assert not watch.due(3 * INTERVAL_NS)
    alter(weights)
    watch.look()
    assert watch.changed() is None


def test_a_manifest_that_cannot_be_read_is_waited_for(store: Store) -> None:
    (manifest,) = store.root.glob("models/m/manifest.json")
    watch = StoreWatch(store)
    spec = model(store)
    watch.failed(spec)
    right = alter(manifest)
    watch.look()
    assert watch.changed() is None
    manifest.write_bytes(right)
    watch.look()
    assert watch.changed() == spec


def test_a_look_is_bounded_and_all_have_their_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def note(_: Store, spec: ModelSpec) -> tuple[()]:
        looked.append(spec.name)
        return ()

    monkeypatch.setattr(Store, "fingerprint", note)
    watch = StoreWatch(store)
    names = [f"m{number}" for number in range(LOOKED_AT + 50)]
    for name in names:
        watch.failed(ModelSpec(name, "", "", (1,), 0, (), (), (), {}))
    looked.clear()
    watch.look()
    assert len(looked) == LOOKED_AT
    watch.look()
    assert set(looked) == set(names)
