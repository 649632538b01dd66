"""Logging of every process: to stderr, warnings and above unless more is asked for.

Each line names its time, its process and its module, as text for a person or as one JSON object.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

from mainspring.cli.output import Output
from mainspring.messages.choices import did_you_mean

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")


def check_logging(level: str, format_: str) -> None:
    """Raise ValueError that says what would be right, unless both are known."""
    if level not in LEVELS:
        raise ValueError(
            f"log_level is {level!r}; it must be DEBUG, INFO, WARNING or ERROR{did_you_mean(level, LEVELS)}"
        )
    if format_ not in FORMATS:
        raise ValueError(
            f"log_format is {format_!r}; it must be text or json{did_you_mean(format_, FORMATS)}"
        )


def set_up_logging(process: str, level: str, format_: str) -> None:
    """Have this process log under a name; raise ValueError on an unknown level or format."""
    check_logging(level, format_)
    formatter = JsonFormatter(process) if format_ == "json" else TextFormatter(process)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    output = getattr(sys.stderr, "buffer", None)
    if isinstance(output, Output):
        output.told = lambda lost: formatter.format(_lost(lost))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _lost(lines: int) -> logging.LogRecord:
    """Return what a log says once it can be written again."""
    text = "%d lines before this one could not be written here, and are lost"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lines,), None)


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.123 worker-0 WARNING mainspring.worker.server: text``."""

    def __init__(self, process: str) -> None:
        escaped = process.replace("%", "%%")
        super().__init__(
            f"%(asctime)s.%(msecs)03d {escaped} %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
        )


class JsonFormatter(logging.Formatter):
    """One object on each line: time (UTC), process, level, logger, message, and a traceback if any."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "process": self._process,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields)
