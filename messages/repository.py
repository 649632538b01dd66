"""The messages between a gateway and the model repository's process: one question, one answer.

A connection, framed by `transport/` as all others, carries one of each. Only a `LoadModel` has parts behind
it: the files that a client sends.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from mainspring.messages.codes import Reason

MAX_MESSAGE_BYTES = 64 << 20
"""Bytes of the longest answer, which is the index of a large repository."""
MAX_QUESTION_BYTES = 1 << 16
"""Bytes of the longest question, its parts apart."""
MAX_FILES = 64
"""Files that come with one load."""
MAX_LOAD_BYTES = 1 << 30
"""Bytes of one load's parts: its files, over HTTP in base64."""


class ModelState(StrEnum):
    """The state of a model's version in the index, in the Open Inference Protocol's words."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class GetIndex(msgspec.Struct, frozen=True, tag="get_index"):
    """Ask for the index of the repository's models."""


class LoadModel(msgspec.Struct, frozen=True, tag="load_model"):
    """Load the model, or load it again; answered once the model is served, or can't be."""

    name: str
    parameters: dict[str, Any] = {}
    """Parameters that the client gives beside the files: ``config``, as JSON the configuration to load the
    model with in the place of its folder's, until it is loaded again or unloaded."""
    files: tuple[str, ...] = ()
    """Parameters such as ``file:1/model.onnx`` whose values are a file's content: a part follows for each, in
    this order. With files nothing of the model's folder counts."""
    encoded: bool = False
    """True if the only part is the JSON of a client's request over HTTP, whose ``parameters`` are those above
    with files in base64: the gateway serves others while the repository reads it."""


class UnloadModel(msgspec.Struct, frozen=True, tag="unload_model"):
    """Stop serving the model; answered once no gateway takes requests for it."""

    name: str


class IndexEntry(msgspec.Struct, frozen=True):
    """One version of a model, or a model without any."""

    name: str
    version: str
    """A number, or empty for a model that has no version to be served."""
    state: ModelState
    reason: str = ""
    """Reason why it is not ready, or what is wrong with what would take its place."""


class Index(msgspec.Struct, frozen=True, tag="index"):
    """Every model of the repository, by name and version."""

    models: tuple[IndexEntry, ...]


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """The change is made: the model's versions that gateways serve from now on."""

    versions: dict[int, str]


class NotChanged(msgspec.Struct, frozen=True, tag="not_changed"):
    """The change could not be made."""

    reason: Reason
    detail: str


Question = GetIndex | LoadModel | UnloadModel
Reply = Index | Changed | NotChanged
