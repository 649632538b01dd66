"""A repository of many models of few architectures: each is served as itself, and what is equal is shared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.artifact.store import Store
from mainspring.experiments.bench.repository import COLUMNS, Site, fill, name_of, net, put

MODELS, ARCHITECTURES = 24, 2


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path, MODELS, poll_ms=100.0, settle_ms=50.0)
    fill(site.path, MODELS, ARCHITECTURES)
    return site


def test_many_models_of_two_architectures_are_compiled_to_two_executables(site: Site) -> None:
    x = np.linspace(0.0, 1.0, COLUMNS, dtype=np.float32)[None]
    with site.cluster() as (_, client, _seconds):
        for number in range(MODELS):
            answer = client.infer(name_of(number), {"x": x}, slo_ms=60_000)
            np.testing.assert_allclose(answer["y"], x * (number + 1), rtol=1e-5, err_msg=name_of(number))
        store = Store(site.run_dir / "store")
        before = {name: store.manifest(name) for name in store.names()}
        assert len(before) == MODELS
        assert len({manifest.executable for manifest in before.values()}) == ARCHITECTURES
        assert site.change(client, 7, 0.25) > 0
        answer = client.infer(name_of(8), {"x": x}, slo_ms=60_000)
        np.testing.assert_allclose(answer["y"], x * 9, rtol=1e-5)
    changed = {name for name in store.names() if name not in before}
    assert [name.partition("@")[0] for name in changed] == [name_of(7)]
    times = {name: os.stat(store.root / "models" / name / "manifest.json").st_mtime_ns for name in before}
    put(site.path, name_of(7), net(8.0, 7 % ARCHITECTURES))
    with site.cluster() as (_, client, _seconds):
        answer = client.infer(name_of(7), {"x": x}, slo_ms=60_000)
        np.testing.assert_allclose(answer["y"], x * 8, rtol=1e-5)
    again = {name: os.stat(store.root / "models" / name / "manifest.json").st_mtime_ns for name in before}
    assert again == times, "what was compiled is not compiled again"
