"""Files that clients send with a load, in the place of the model's folder of the repository.

They are kept in a folder of their own in the cluster's state, laid out as a model's folder is, and looked at
and compiled as one: for as long as the model is not loaded again or unloaded, over restarts of the process.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mainspring.compiler.artifact.python_folder import CODE, DESCRIPTION
from mainspring.messages.repository import MAX_FILES, MAX_QUESTION_BYTES, LoadModel
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reading import ConfigFault

FILES_FOLDER = "sent-files"
"""Name of a folder in the cluster's folder."""
_CONFIG, _FILE = "config", "file:"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_MOST_PARTS = 8
_WHERE = "a path within the model's folder, such as file:1/model.onnx"

Content = bytes | memoryview


class Given(msgspec.Struct, frozen=True):
    """The configuration and files of a client's load, which count in the place of the repository's."""

    config: ModelConfig | None = None
    """Configuration in the place of the folder's ``config.pbtxt``; None for that."""
    folder: str = ""
    """Folder in the place of the model's folder; empty for that."""


class Sent(NamedTuple):
    """A load's parameters."""

    config: str
    """Configuration as JSON; empty for none."""
    files: dict[str, Content]
    """Files by their paths within the model's folder."""


class _Body(msgspec.Struct):
    parameters: dict[str, Any] | None = None


def sent_with(question: LoadModel, parts: Sequence[Content]) -> Sent:
    """Return what a load's parameters say; raise `ConfigFault` for what they can't be.

    ``parts`` are what follows the question: the files, or the encoded body of the request over HTTP.
    """
    if question.encoded:
        try:
            parameters = msgspec.json.decode(parts[0] if parts else b"{}", type=_Body).parameters or {}
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ConfigFault(f"the request's JSON can't be read: {str(error)[:300]}") from None
    else:
        parameters = {**question.parameters, **dict(zip(question.files, parts, strict=True))}
    config = parameters.pop(_CONFIG, None)
    if config is not None and (not isinstance(config, str) or not config):
        raise ConfigFault("the parameter config is a text: a model's configuration as JSON")
    if config is not None and len(config) > MAX_QUESTION_BYTES:
        raise ConfigFault(
            f"the parameter config has {len(config):,} characters; at most {MAX_QUESTION_BYTES:,} make sense"
        )
    return Sent(config or "", _files(parameters))


def _files(parameters: Mapping[str, Any]) -> dict[str, Content]:
    if len(parameters) > MAX_FILES:
        raise ConfigFault(f"there are {len(parameters)} files; a load has at most {MAX_FILES}")
    files: dict[str, Content] = {}
    for name, value in parameters.items():
        if value is None:
            continue
        shown = repr(name[:200])
        if not name.startswith(_FILE):
            raise ConfigFault(f"there is no parameter {shown} of loading but config and file:PATH")
        path = name.removeprefix(_FILE)
        steps = path.split("/")
        if len(steps) > _MOST_PARTS or not all(map(_PART.fullmatch, steps)):
            raise ConfigFault(f"the parameter {shown} names no file: it is {_WHERE}")
        if steps[-1] in (CODE, DESCRIPTION):
            raise ConfigFault(
                f"the parameter {shown} is a part of a Python model, whose code no client may send: put its "
                "folder into the repository"
            )
        files[path] = _content(shown, value)
    for path in files:
        if any(other.startswith(f"{path}/") for other in files):
            raise ConfigFault(f"the parameter 'file:{path}' is a file and a folder of others")
    return files


def _content(shown: str, value: Any) -> Content:
    if isinstance(value, bytes | memoryview):
        return value
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except (TypeError, ValueError) as error:
        raise ConfigFault(f"the parameter {shown} is not a file's content in base64: {error}") from None


class SentFiles:
    """The folders with clients' files, one for each load; used by one thread at a time for each model."""

    def __init__(self, state_dir: str, limit_bytes: int) -> None:
        """``limit_bytes``: what all files together may take."""
        self._root = Path(state_dir).resolve() / FILES_FOLDER if state_dir else None
        self._limit_bytes = limit_bytes

    def keep(self, model: str, files: Mapping[str, Content]) -> str:
        """Write a model's files; return their folder. Raises `ConfigFault` for too many bytes, OSError."""
        if self._root is None:
            raise ConfigFault("this repository has no folder for files that clients send")
        size, held = sum(map(len, files.values())), _size_of(self._root)
        if size + held > self._limit_bytes:
            raise ConfigFault(
                f"its files have {size:,} bytes; {held:,} of the {self._limit_bytes:,} are taken that "
                "max_sent_files_bytes of the table [repository] allows for all that clients have sent"
            )
        digest = hashlib.sha256()
        for path, content in sorted(files.items()):
            digest.update(f"{path}\0{len(content)}\0".encode())
            digest.update(content)
        folder = self._root / model / digest.hexdigest()[:16]
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        for path, content in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            # It is whole: nobody has to wait and see whether it still grows.
            os.utime(file, ns=(0, 0))
        return str(folder)

    def drop_but(self, folders: Iterable[str], model: str | None = None) -> None:
        """Delete the folders of a model, of all if it is None, but these."""
        if self._root is None:
            return
        keep = set(folders)
        models = [self._root / model] if model is not None else _within(self._root)
        for each in models:
            for folder in _within(each):
                if str(folder) not in keep:
                    shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                # Only one that is empty.
                each.rmdir()


def _within(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if each.is_dir()]
    except OSError:
        return []


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
