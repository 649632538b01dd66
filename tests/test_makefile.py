"""The Makefile does what it says, whatever files lie about."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

MAKEFILE = (Path(__file__).resolve().parent.parent / "Makefile").read_text(encoding="utf-8")
RULES = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_no_rule_is_taken_for_a_file() -> None:
    phony = {
        name for names in re.findall(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE) for name in names.split()
    }
    assert phony == RULES, "a rule named like a folder (docs/) would be up to date for ever"


def test_the_modules_that_it_runs_exist() -> None:
    modules = re.findall(r"python -m (mainspring\.[\w.]+)", MAKEFILE)
    assert modules
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    assert not missing
