from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mainspring.cli.output import check_logging

PROGRAM = """
import logging, sys
from mainspring.cli.output import set_up_logging
set_up_logging("worker-7", *sys.argv[1:])
logger = logging.getLogger("mainspring.test")
logger.info("quiet")
logger.warning("two\\nlines %d", 5)
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("failed")
"""


def log(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_text_names_time_process_and_module_and_is_quiet() -> None:
    lines = log("WARNING", "text")
    assert lines[0].endswith("worker-7 WARNING mainspring.test: two")
    assert lines[0][:2] == "20"
    assert "quiet" not in "".join(lines)
    assert "quiet" in "".join(log("INFO", "text"))


def test_json_is_one_object_on_each_line() -> None:
    first, second = map(json.loads, log("WARNING", "json"))
    assert (first["process"], first["level"], first["message"]) == ("worker-7", "WARNING", "two\nlines 5")
    assert first["time"].endswith("+00:00")
    assert "ZeroDivisionError" in second["traceback"]


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="DEBUG, INFO, WARNING or ERROR"):
        check_logging("LOUD", "text")
    with pytest.raises(ValueError, match="text or json"):
        check_logging("INFO", "xml")
