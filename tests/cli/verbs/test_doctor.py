from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import build_app
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["doctor", *arguments], env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_the_table_fits_80_columns_and_ends_with_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run()
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    for subject in ("cores", "real-time priority", "locked memory", "devices", "open files"):
        assert subject in result.output
    assert "This machine can serve" in result.output


def test_a_store_that_can_not_be_read_fails(tmp_path: Path) -> None:
    result = run("--store", str(tmp_path / "nowhere"), "--json")
    shown = json.loads(result.output)
    assert result.exit_code == 1
    assert shown["serves"] is False
    bad = [finding for finding in shown["findings"] if finding["fatal"] and not finding["good"]]
    assert [finding["subject"] for finding in bad] == ["store"]
    assert "nowhere is not a folder" in bad[0]["found"]


def test_one_damaged_model_among_others_is_a_warning(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for seed in (1, 2):
        source = Source("zoo", "digits", seed=seed)
        compile_model(build("digits", seed), f"m{seed}", store, (1,), source, quick=True)
    (store.root / "weights" / f"{store.manifest('m2').weights_hash}.bin").unlink()
    result = run("--store", str(store.root), "--json")
    assert result.exit_code == 0
    (found,) = [each for each in json.loads(result.output)["findings"] if each["subject"] == "store"]
    assert not found["good"]
    assert not found["fatal"]
    assert "`mainspring zoo digits --seed 2 --store" in found["found"]
    (store.root / "models" / "m1" / "manifest.json").write_text("{")
    assert run("--store", str(store.root)).exit_code == 1, "none is left"


def test_more_models_need_more_files(tmp_path: Path) -> None:
    shown = json.loads(run("--models", "123456789", "--workers", "999", "--json").output)
    found = {finding["subject"]: finding for finding in shown["findings"]}
    assert "123,456,789 models need" in found["open files"]["found"]
    assert not found["cores"]["good"]
