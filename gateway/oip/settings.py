"""What a server says of its tracing and logging in Triton's words. Neither can be set by clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping

TRACE_SETTINGS: Mapping[str, str | list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
"""Those of a Triton that does not trace. Mainspring traces by OpenTelemetry, as its configuration says."""


def log_settings() -> dict[str, bool | int | str]:
    """Return what is logged here."""
    log = logging.getLogger("mainspring")
    return {
        "log_file": "",
        "log_info": log.isEnabledFor(logging.INFO),
        "log_warning": log.isEnabledFor(logging.WARNING),
        "log_error": log.isEnabledFor(logging.ERROR),
        "log_verbose_level": int(log.isEnabledFor(logging.DEBUG)),
        "log_format": "default",
    }
