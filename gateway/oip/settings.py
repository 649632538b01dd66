"""What a server says of its tracing and logging in Triton's words. Neither can be set by clients."""

from __future__ import annotations

from collections.abc import Mapping

_DEBUG, _INFO, _WARNING, _ERROR = 10, 20, 30, 40
"""The levels of `logging`."""
TRACE_SETTINGS: Mapping[str, str | list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
"""Those of a Triton that does not trace. Mainspring traces by OpenTelemetry, as its configuration says."""


def log_settings(level: int) -> dict[str, bool | int | str]:
    """Return what a process logs whose logger has this level, as `logging` numbers levels."""
    return {
        "log_file": "",
        "log_info": level <= _INFO,
        "log_warning": level <= _WARNING,
        "log_error": level <= _ERROR,
        "log_verbose_level": int(level <= _DEBUG),
        "log_format": "default",
    }
