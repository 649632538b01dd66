"""The model repository's calls, against a repository that does as the tests say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.controller_catalogs import Told
from mainspring.gateway.core.readiness import Readiness
from mainspring.gateway.grpc.access import Caller
from mainspring.gateway.grpc.control import Control
from mainspring.gateway.grpc.messages import INFERENCE, methods
from mainspring.gateway.grpc.shared_memory import SharedMemory
from mainspring.gateway.grpc.status import NotServed
from mainspring.gateway.repository import RepositoryError
from mainspring.messages.codes import Reason
from mainspring.messages.repository import IndexEntry, ModelState
from mainspring.transport.tokens import Gate
from tests.gateway.fakes import make_spec


class Repository:
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: RepositoryError | None = None

    async def index(self) -> list[IndexEntry]:
        return [
            IndexEntry("one", "1", ModelState.UNAVAILABLE, "unloaded"),
            IndexEntry("one", "2", ModelState.READY),
        ]

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        self.asked.append(("load", name, dict(parameters)))
        if self.error is not None:
            raise self.error

    async def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        self.asked.append(("unload", name, dict(parameters)))


class Context:
    """A call without a deadline, a token or anything else said."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> None:
        return None


def control(repository: Repository | None) -> Control:
    catalog = Catalog()
    catalog.model_up(make_spec("beside"))
    readiness = Readiness(Told(catalog, [""]), lambda _: "")
    catalog.complete = True
    driver = SimpleNamespace(catalog=catalog, gate=Gate(), readiness=readiness, alone=None)
    calls: Any = SimpleNamespace(driver=driver, repository=repository, regions=None)
    return Control(calls, SharedMemory(calls))


def call(server: Control, name: str, message: Any) -> Any:
    """Return the answer to a message of Triton's client's, as that reads it."""
    method = methods(INFERENCE)[name]
    request = method.request.FromString(message.SerializeToString())

    async def answered() -> Any:
        return await server.behaviours[name](request, Caller(Context()))

    answer = asyncio.run(answered())
    return getattr(service_pb2, method.response.DESCRIPTOR.name).FromString(answer.SerializeToString())


def test_the_index_tells_states_and_reasons() -> None:
    server = control(Repository())
    found = call(server, "RepositoryIndex", service_pb2.RepositoryIndexRequest()).models
    assert [(each.name, each.version, each.state, each.reason) for each in found] == [
        ("beside", "1", "READY", ""),
        ("one", "1", "UNAVAILABLE", "unloaded"),
        ("one", "2", "READY", ""),
    ]
    ready = call(server, "RepositoryIndex", service_pb2.RepositoryIndexRequest(ready=True)).models
    assert [(each.name, each.version) for each in ready] == [("beside", "1"), ("one", "2")]


def test_without_a_repository_the_index_tells_what_is_served() -> None:
    found = call(control(None), "RepositoryIndex", service_pb2.RepositoryIndexRequest()).models
    assert [(each.name, each.version, each.state) for each in found] == [("beside", "1", "READY")]


def test_loading_and_unloading_pass_on_what_the_client_says() -> None:
    repository = Repository()
    server = control(repository)
    load = service_pb2.RepositoryModelLoadRequest(model_name="one")
    load.parameters["config"].string_param = "{}"
    load.parameters["file:1/model.onnx"].bytes_param = b"\x00\x01"
    call(server, "RepositoryModelLoad", load)
    unload = service_pb2.RepositoryModelUnloadRequest(model_name="one")
    unload.parameters["unload_dependents"].bool_param = True
    call(server, "RepositoryModelUnload", unload)
    assert repository.asked == [
        ("load", "one", {"config": "{}", "file:1/model.onnx": b"\x00\x01"}),
        ("unload", "one", {"unload_dependents": True}),
    ]


def test_what_the_repository_refuses_is_refused() -> None:
    repository = Repository()
    repository.error = RepositoryError(Reason.UNKNOWN_MODEL, "there is no folder for it")
    with pytest.raises(RepositoryError, match="no folder"):
        call(
            control(repository), "RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="x")
        )


@pytest.mark.parametrize("what", ["Load", "Unload"])
def test_without_a_repository_nothing_is_loaded(what: str) -> None:
    message = getattr(service_pb2, f"RepositoryModel{what}Request")(model_name="one")
    with pytest.raises(NotServed, match=r"model 'one' was to be (un)?loaded"):
        call(control(None), f"RepositoryModel{what}", message)
