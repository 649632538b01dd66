"""The models that are served, and the types of their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from time import monotonic_ns
from typing import overload

from mainspring.client.errors import UnknownModel
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec

_FRESH_NS = 30_000_000_000


class Models(tuple[ModelSpec, ...]):
    """Models in the order of their names; ``models["name"]`` is one of them."""

    __slots__ = ()

    @overload  # type: ignore[override]
    def __getitem__(self, key: str | int) -> ModelSpec: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[ModelSpec, ...]: ...

    def __getitem__(self, key: str | int | slice) -> ModelSpec | tuple[ModelSpec, ...]:
        """Return a model by its name or place; raise `UnknownModel`, which is a KeyError too."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        found = [spec for spec in self if spec.name == key]
        if not found:
            raise _NoSuchModel(_not_served(key, self.names), Reason.UNKNOWN_MODEL)
        return max(found, key=lambda spec: spec.version)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [spec.name for spec in self]

    def __repr__(self) -> str:
        return f"Models({', '.join(self.names)})"


class _NoSuchModel(UnknownModel, KeyError):
    """An `UnknownModel` for code that looks a name up as in a dict."""

    __str__ = Exception.__str__


def _not_served(name: str, names: list[str]) -> str:
    near = " or ".join([repr(each) for each in get_close_matches(name, names, n=3)])
    return f"model {name!r} is not served" + (f"; did you mean {near}?" if near else "")


class InputTypes:
    """The types of models' inputs, as the gateway last listed them to this client."""

    def __init__(self) -> None:
        self.types: dict[str, dict[str, str]] = {}
        """The dtypes of inputs by name, by model."""
        self._at_ns: int | None = None

    def known(self, model: str) -> Mapping[str, str] | None:
        """Return the dtypes of a model's inputs by name; None if the models must be requested first."""
        if self._at_ns is None or monotonic_ns() - self._at_ns > _FRESH_NS:
            return None
        return self.types.get(model)

    def learn(self, models: Models) -> None:
        """Take in the models that are served now."""
        self.types = {spec.name: {each.name: each.dtype for each in spec.inputs} for spec in models}
        self._at_ns = monotonic_ns()
