"""TraceSetting and LogSettings, and what Triton's requests about shared memory get, which is not served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mainspring.gateway.grpc.messages import Message, message
from mainspring.gateway.grpc.status import Ended, NotServed
from mainspring.gateway.log_settings import change_log, shown_log
from mainspring.gateway.oip.settings import TraceSettings


def trace(settings: TraceSettings, request: Message) -> Message:
    """Answer TraceSetting about a model that is served, or about all."""
    model = request.model_name or None
    settings.change(model, {name: list(value.value) for name, value in request.settings.items()})
    response = message("inference.TraceSettingResponse")()
    for name, value in settings.shown(model).items():
        response.settings[name].value.extend(value if isinstance(value, list) else [value])
    return response


def log(request: Message) -> Message:
    """Answer LogSettings."""
    change_log({name: _value(setting) for name, setting in request.settings.items()})
    response = message("inference.LogSettingsResponse")()
    for name, setting in shown_log().items():
        _set(response.settings[name], setting)
    return response


def _value(setting: Message) -> Any:
    choice = setting.WhichOneof("parameter_choice")
    return None if choice is None else getattr(setting, choice)


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
    raise NotServed(
        f"region {request.name[:100]!r} was to be registered as shared memory",
        "send tensors in raw_input_contents",
    )


def _unregister(kind: str) -> Callable[[Message], Any]:
    response = message(f"inference.{kind}SharedMemoryUnregisterResponse")
    return lambda _: response()


BEHAVIOURS: Mapping[str, Callable[[Message], Any]] = {
    "LogSettings": log,
    **{f"{kind}SharedMemoryStatus": _status(kind) for kind in ("System", "Cuda")},
    **{f"{kind}SharedMemoryRegister": _register for kind in ("System", "Cuda")},
    **{f"{kind}SharedMemoryUnregister": _unregister(kind) for kind in ("System", "Cuda")},
}
"""For each of these calls what answers it."""
