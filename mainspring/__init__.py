"""Mainspring: deep-learning inference that answers on time, or says that it can't as soon as it knows.

The public API: `Client` and `AsyncClient`, what they return, and the errors that they raise. Each is
imported when it is first asked for: a worker or ``mainspring --help`` need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mainspring.native import install

if TYPE_CHECKING:
    from mainspring.client.asynchronous import AsyncClient
    from mainspring.client.client import Client
    from mainspring.client.deadlines import Deadline
    from mainspring.client.errors import (
        Cancelled,
        ControllerUnreachable,
        DeadlineError,
        DeadlinePassed,
        DeadlineUnreachable,
        DuplicateKey,
        Forbidden,
        GatewayUnreachable,
        InvalidInput,
        InvalidMessage,
        InvalidOutput,
        InvalidRequest,
        InvalidSlo,
        InvalidValues,
        MainspringError,
        ModelExists,
        ModelNotReady,
        ModelRemoved,
        NoWorker,
        Overloaded,
        OverShare,
        RateLimited,
        ShuttingDown,
        TimedOut,
        TooManyRows,
        Unauthenticated,
        Unavailable,
        UnknownModel,
        UnknownSequence,
        WorkerFailed,
    )
    from mainspring.client.result import InferResult, Timing
    from mainspring.messages.model import ModelSpec

    __version__: str

__all__ = [
    "AsyncClient",
    "Cancelled",
    "Client",
    "ControllerUnreachable",
    "Deadline",
    "DeadlineError",
    "DeadlinePassed",
    "DeadlineUnreachable",
    "DuplicateKey",
    "Forbidden",
    "GatewayUnreachable",
    "InferResult",
    "InvalidInput",
    "InvalidMessage",
    "InvalidOutput",
    "InvalidRequest",
    "InvalidSlo",
    "InvalidValues",
    "MainspringError",
    "ModelExists",
    "ModelNotReady",
    "ModelRemoved",
    "ModelSpec",
    "NoWorker",
    "Overloaded",
    "OverShare",
    "RateLimited",
    "ShuttingDown",
    "TimedOut",
    "Timing",
    "TooManyRows",
    "Unauthenticated",
    "Unavailable",
    "UnknownModel",
    "UnknownSequence",
    "WorkerFailed",
    "__version__",
]

install()

_HOMES = {
    "AsyncClient": "mainspring.client.asynchronous",
    "Client": "mainspring.client.client",
    "Deadline": "mainspring.client.deadlines",
    "InferResult": "mainspring.client.result",
    "ModelSpec": "mainspring.messages.model",
    "Timing": "mainspring.client.result",
}
_ERRORS = "mainspring.client.errors"


def __getattr__(name: str) -> object:
    """Import a public name from the module that it lives in."""
    if name not in __all__:
        raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
    value: object = (
        _installed_version()
        if name == "__version__"
        else getattr(import_module(_HOMES.get(name, _ERRORS)), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mainspring")
    except PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "0+unknown"
