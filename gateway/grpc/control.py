"""The calls that are not inference: health, metadata, configuration, statistics, the model repository."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict

from mainspring.gateway.calls import Calls
from mainspring.gateway.grpc.messages import INFERENCE, Message, methods
from mainspring.gateway.grpc.requests import version_of
from mainspring.gateway.grpc.settings import BEHAVIOURS
from mainspring.gateway.oip.metadata import ServerMetadata, model_config, model_metadata
from mainspring.gateway.validation import BadRequest, Signature
from mainspring.messages.model import ModelSpec

NAME = "mainspring"
Behaviour = Callable[[Message], Awaitable[Message]]
_METHODS = methods(INFERENCE)


class Control:
    """Answers them, for one server."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._metadata = ServerMetadata(NAME, _installed_version())
        self.behaviours: Mapping[str, Behaviour] = {
            name: _answering(name, answer)
            for name, answer in {
                "ServerLive": lambda _: {"live": True},
                "ServerReady": lambda _: {"ready": self.ready()},
                "ServerMetadata": lambda _: msgspec.to_builtins(self._metadata),
                "ModelReady": self._model_ready,
                "ModelMetadata": self._model_metadata,
                "ModelConfig": self._model_config,
                "ModelStatistics": self._model_statistics,
                **BEHAVIOURS,
            }.items()
        }
        """For each call its answer; raises `BadRequest` or `Ended`."""

    def ready(self) -> bool:
        """Say whether requests can be served."""
        plane = self._calls.plane
        return plane.ready and plane.alone is None

    def _model_ready(self, request: Message) -> dict[str, Any]:
        wanted = version_of(request.version)
        try:
            self._calls.plane.catalog.resolve(request.name, wanted)
        except BadRequest:
            return {"ready": False}
        return {"ready": self.ready()}

    def _model_metadata(self, request: Message) -> Any:
        catalog = self._calls.plane.catalog
        spec = self._signature(request).spec
        return msgspec.to_builtins(model_metadata(request.name, spec, catalog.versions(request.name)))

    def _model_config(self, request: Message) -> Any:
        spec = self._signature(request).spec
        told = self._calls.plane.catalog.options(request.name).config
        return {"config": model_config(request.name, spec, told)}

    async def _model_statistics(self, request: Message) -> Message:
        response = _METHODS["ModelStatistics"].response()
        for spec in self._specs(request):
            found = msgspec.to_builtins(self._calls.statistics.of(spec))
            ParseDict(found, response.model_stats.add())
            # Of thousands of models this takes long, and others are to be served meanwhile.
            await asyncio.sleep(0)
        return response

    def _specs(self, request: Message) -> list[ModelSpec]:
        """Return every version that a request is about: all models if it names none."""
        catalog = self._calls.plane.catalog
        if request.name and (request.version or not catalog.versions(request.name)):
            return [self._signature(request).spec]
        names = [request.name] if request.name else catalog.names()
        return [catalog.resolve(name, number).spec for name in names for number in catalog.versions(name)]

    def _signature(self, request: Message) -> Signature:
        return self._calls.plane.catalog.resolve(request.name, version_of(request.version))


def _installed_version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "unknown"


def _answering(name: str, answer: Callable[[Message], Any]) -> Behaviour:
    """Return a call's behaviour of what answers it with a message, or with what one holds."""
    response = _METHODS[name].response

    async def behaviour(request: Message) -> Message:
        said = answer(request)
        if isinstance(said, Awaitable):
            return await said
        return ParseDict(said, response(), ignore_unknown_fields=True) if isinstance(said, dict) else said

    return behaviour
