"""Artifacts of one model for unlike hosts in one store."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from mainspring.compiler.artifact.manifest import Manifest, Source
from mainspring.compiler.artifact.profiles import beside, put
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model


@pytest.fixture
def both(store: Store, make_mlp: Callable[..., object]) -> tuple[Manifest, Manifest]:
    """Return what a store has of a model: the artifact of this host, and one for another."""
    source = Source("onnx", "/models/m.onnx")
    own = compile_model(make_mlp(0), "m", store, (1, 2), source).manifest  # type: ignore[arg-type]
    other = put(store, msgspec.structs.replace(own, target="tvm-sm_90"), adds=True)
    assert store.names() == ["m", "m@tvm-sm_90"]
    return own, other


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("damaged", ["m", "m@tvm-sm_90"])
def test_a_damaged_one_is_replaced_or_left_and_hinders_no_other(
    store: Store,
    both: tuple[Manifest, Manifest],
    caplog: pytest.LogCaptureFixture,
    damaged: str,
    adds: bool,
) -> None:
    (store.root / "models" / damaged / "manifest.json").write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        assert [each.name for each in beside(store, "m")] == [
            name for name in store.names() if name != damaged
        ]
    assert "mainspring compile" in caplog.text
    assert put(store, both[0], adds=adds) == both[0]
    assert store.manifest("m") == both[0]


def test_one_that_replaces_all_leaves_no_other(store: Store, both: tuple[Manifest, Manifest]) -> None:
    put(store, both[0], adds=False)
    assert store.names() == ["m"]
