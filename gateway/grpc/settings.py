"""TraceSetting and LogSettings."""

from __future__ import annotations

from typing import Any

from mainspring.gateway.grpc.messages import Message, message
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
