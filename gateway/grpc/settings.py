"""What Triton's requests about shared memory, tracing and logging get where none of it can be set. Pure.

Clients ask for these to clean up before they start, or to show them: reading and clearing succeed, as with a
Triton that has them switched off; changing does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mainspring.gateway.grpc.messages import Message, message
from mainspring.gateway.grpc.status import Ended, NotServed
from mainspring.gateway.oip.settings import TRACE_SETTINGS, log_settings

_TRACE_SETTINGS: Mapping[str, list[str]] = {
    name: value if isinstance(value, list) else [value] for name, value in TRACE_SETTINGS.items()
}
"""As gRPC has them: each a list."""


def trace(request: Message) -> Message:
    """Answer TraceSetting; raise `NotServed` for a change."""
    for name, value in request.settings.items():
        if value.value and list(value.value) != _TRACE_SETTINGS.get(name):
            raise NotServed(f"the trace setting {name[:40]!r} was to be changed to {list(value.value)[:8]}")
    response = message("inference.TraceSettingResponse")()
    for name, values in _TRACE_SETTINGS.items():
        response.settings[name].value.extend(values)
    return response


def log(request: Message) -> Message:
    """Answer LogSettings; raise `NotServed` for a change."""
    present = log_settings(logging.getLogger("mainspring").getEffectiveLevel())
    for name, value in request.settings.items():
        choice = value.WhichOneof("parameter_choice")
        wanted = None if choice is None else getattr(value, choice)
        if wanted is not None and wanted != present.get(name):
            raise NotServed(f"the log setting {name[:40]!r} was to be changed to {str(wanted)[:40]!r}")
    response = message("inference.LogSettingsResponse")()
    for name, setting in present.items():
        _set(response.settings[name], setting)
    return response


def _set(value: Message, setting: bool | int | str) -> None:
    match setting:
        case bool():
            value.bool_param = setting
        case int():
            value.uint32_param = setting
        case str():
            value.string_param = setting


def _status(kind: str) -> Callable[[Message], Any]:
    response = message(f"inference.{kind}SharedMemoryStatusResponse")

    def status(request: Message) -> Any:
        if request.name:
            raise Ended("NOT_FOUND", f"there is no region {request.name[:100]!r}: memory is not shared here")
        return response()

    return status


def _register(request: Message) -> Any:
    raise NotServed(f"region {request.name[:100]!r} was to be registered as shared memory")


def _unregister(kind: str) -> Callable[[Message], Any]:
    response = message(f"inference.{kind}SharedMemoryUnregisterResponse")
    return lambda _: response()


BEHAVIOURS: Mapping[str, Callable[[Message], Any]] = {
    "TraceSetting": trace,
    "LogSettings": log,
    **{f"{kind}SharedMemoryStatus": _status(kind) for kind in ("System", "Cuda")},
    **{f"{kind}SharedMemoryRegister": _register for kind in ("System", "Cuda")},
    **{f"{kind}SharedMemoryUnregister": _unregister(kind) for kind in ("System", "Cuda")},
}
"""For each of these calls what answers it."""
