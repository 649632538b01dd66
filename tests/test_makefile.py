"""The Makefile does what it says, whatever files lie about."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path

from tests.tiers import TIERS

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
RULES = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_no_rule_is_taken_for_a_file() -> None:
    phony = {
        name for names in re.findall(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE) for name in names.split()
    }
    assert phony == RULES, "a rule named like a folder (docs/) would be up to date for ever"


def recipe(target: str) -> str:
    """Return what make would run for a target where nothing is installed yet."""
    with tempfile.TemporaryDirectory() as venv:
        command = ["make", "--dry-run", target, f"VENV={venv}/venv"]
        return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout


def test_each_target_installs_what_it_needs() -> None:
    demo, docs, test = recipe("demo"), recipe("docs"), recipe("test")
    serve, develop, write = (f"requirements/{name}.lock" for name in ("serve", "dev", "docs"))
    assert serve in demo
    assert develop not in demo
    assert write not in demo
    assert write in docs
    assert develop not in docs
    assert develop in test
    assert test.index(develop) < test.index("tests.run quick")
    assert "setup.py native" not in test, "compiling takes longer than all that it runs"
    assert "requirements/nvrtc.lock" not in test
    for rest in map(recipe, ("test-rest", "test-codegen")):
        assert "setup.py native" in rest
        assert rest.index("requirements/nvrtc.lock") < rest.index("tests.run ")


def test_every_tier_has_its_target() -> None:
    assert {f"test-{tier}" for tier in TIERS} < RULES
    assert "make test\nmake test-rest\n" in (ROOT / ".ci" / "run").read_text()


def test_the_modules_that_it_runs_exist() -> None:
    modules = re.findall(r"python -m (mainspring\.[\w.]+)", MAKEFILE)
    assert modules
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    assert not missing
