"""The calls that are not inference: health, metadata, configuration, statistics, the model repository."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict

from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.grpc.access import Caller, check, sees
from mainspring.gateway.grpc.messages import INFERENCE, Message, message, methods
from mainspring.gateway.grpc.requests import parameters
from mainspring.gateway.grpc.shared_memory import SharedMemory, behaviours
from mainspring.gateway.grpc.status import NotServed
from mainspring.gateway.oip.metadata import model_metadata, server_metadata
from mainspring.gateway.oip.model_config import model_config
from mainspring.gateway.oip.parameters import version_of
from mainspring.gateway.oip.settings import TraceSettings
from mainspring.gateway.repository import ModelRepository, index_of
from mainspring.gateway.services import Services, change_log, log_settings
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec

OPEN = frozenset(("ServerLive", "ServerReady", "ServerMetadata"))
"""Calls that need no token."""
ADMINISTERING = frozenset(("RepositoryModelLoad", "RepositoryModelUnload"))
"""Calls that change what is served."""
SETTINGS = frozenset(("TraceSetting", "LogSettings"))
"""Calls that do if they name a setting."""
Behaviour = Callable[[Message, Caller], Awaitable[Message]]
_METHODS = methods(INFERENCE)


class Control:
    """Answers them, for one server."""

    def __init__(self, services: Services, shared: SharedMemory) -> None:
        self._services = services
        self._driver = services.driver
        self._shared = shared
        found = {
            "ServerLive": _at_once(lambda _: {"live": True}),
            "ServerReady": _for_caller(lambda _, caller: self._ready(caller)),
            "ServerMetadata": _for_caller(self._server_metadata),
            "ModelReady": _for_caller(self._model_ready),
            "ModelMetadata": _at_once(self._model_metadata),
            "ModelConfig": _at_once(self._model_config),
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "TraceSetting": _at_once(self._trace),
            "LogSettings": _at_once(log),
            **{name: _for_caller(answer) for name, answer in behaviours(shared).items()},
        }
        self.behaviours: Mapping[str, Behaviour] = {
            name: self._guarded(name, answer) for name, answer in found.items()
        }
        """Function that answers each call; raises `BadRequest` or `Ended`."""

    def _ready(self, caller: Caller) -> dict[str, Any]:
        reason = self._driver.readiness.server()
        caller.told_why(reason)
        return {"ready": not reason}

    def _guarded(self, name: str, answer: Callable[[Message, Caller], Awaitable[Any]]) -> Behaviour:
        """Return a call's behaviour of what answers it with a message, or with what one holds."""
        response = _METHODS[name].response
        about = next((key for key in ("model_name", "name") if key in _fields(name)), "")

        async def behaviour(request: Message, caller: Caller) -> Message:
            if name not in OPEN:
                model = (getattr(request, about) or None) if about and "Memory" not in name else None
                changes = name in ADMINISTERING or (name in SETTINGS and bool(request.settings))
                check(self._driver.gate, caller, model, administers=changes)
            said = await answer(request, caller)
            return ParseDict(said, response(), ignore_unknown_fields=True) if isinstance(said, dict) else said

        return behaviour

    def _server_metadata(self, _request: Message, caller: Caller) -> Any:
        return msgspec.to_builtins(
            server_metadata(self._driver.config, shared=self._shared.served_to(caller))
        )

    # --- models ---

    def _model_ready(self, request: Message, caller: Caller) -> dict[str, Any]:
        try:
            reason = self._driver.readiness.model(request.name, version_of(request.version))
        except BadRequest as error:
            reason = error.detail
        caller.told_why(reason)
        return {"ready": not reason}

    def _model_metadata(self, request: Message) -> Any:
        spec = self._signature(request).spec
        return msgspec.to_builtins(
            model_metadata(request.name, spec, self._driver.catalog.versions(request.name))
        )

    def _model_config(self, request: Message) -> Any:
        spec = self._signature(request).spec
        return {"config": model_config(request.name, spec, self._driver.catalog.options(request.name).config)}

    async def _model_statistics(self, request: Message, caller: Caller) -> Message:
        response = _METHODS["ModelStatistics"].response()
        for spec in self._specs(request, caller):
            found = msgspec.to_builtins(self._services.statistics.of(spec))
            ParseDict(found, response.model_stats.add())
            # Of thousands of models this takes long, and others are to be served meanwhile.
            await asyncio.sleep(0)
        return response

    def _specs(self, request: Message, caller: Caller) -> list[ModelSpec]:
        """Return every version that a request is about: all models if it names none."""
        catalog = self._driver.catalog
        if request.name and (request.version or not catalog.versions(request.name)):
            return [self._signature(request).spec]
        names = [request.name] if request.name else catalog.names()
        return [
            catalog.resolve(name, number).spec
            for name in names
            if sees(self._driver.gate, caller, name)
            for number in catalog.versions(name)
        ]

    def _trace(self, request: Message) -> Message:
        if request.model_name:
            self._driver.catalog.resolve(request.model_name)
        return trace(self._services.trace_settings, request)

    def _signature(self, request: Message) -> Signature:
        if (alone := self._driver.alone) is not None:
            raise BadRequest(Reason.CONTROLLER_UNREACHABLE, alone)
        return self._driver.catalog.resolve(request.name, version_of(request.version))

    # --- the model repository ---

    async def _index(self, request: Message, caller: Caller) -> Message:
        response = _METHODS["RepositoryIndex"].response()
        repository, driver = self._services.repository, self._driver
        for entry in await index_of(repository, driver.catalog, driver.readiness, ready=request.ready):
            if sees(self._driver.gate, caller, entry.name):
                response.models.add(
                    name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
                )
        return response

    async def _load(self, request: Message, _caller: Caller) -> Message:
        repository = self._repository(request, "loaded")
        await repository.load(request.model_name, parameters(request.parameters))
        return _METHODS["RepositoryModelLoad"].response()

    async def _unload(self, request: Message, _caller: Caller) -> Message:
        repository = self._repository(request, "unloaded")
        await repository.unload(request.model_name, parameters(request.parameters))
        return _METHODS["RepositoryModelUnload"].response()

    def _repository(self, request: Message, what: str) -> ModelRepository:
        if self._services.repository is None:
            raise NotServed(
                f"model {request.model_name[:100]!r} was to be {what} in a model repository",
                "start the cluster with --model-repository DIR --model-control-mode explicit",
            )
        return self._services.repository


def _fields(name: str) -> set[str]:
    """Return the names of what a call's request holds."""
    return {field.name for field in _METHODS[name].request.DESCRIPTOR.fields}


def _for_caller(answer: Callable[[Message, Caller], Any]) -> Callable[[Message, Caller], Awaitable[Any]]:
    async def behaviour(request: Message, caller: Caller) -> Any:
        return answer(request, caller)

    return behaviour


def _at_once(answer: Callable[[Message], Any]) -> Callable[[Message, Caller], Awaitable[Any]]:
    async def behaviour(request: Message, _caller: Caller) -> Any:
        return answer(request)

    return behaviour


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
    for name, setting in log_settings().items():
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
