"""Files with the names of an output's classes, as ``label_filename`` names them: one on each line, by index.

A file that can't be used costs only its labels: the model is served, and a warning says what is wrong. Files
are read again when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mainspring.repository.digests import Stamp, stamp_of_file
from mainspring.repository.model_config import TensorConfig

MAX_FILE_BYTES = 1 << 20
MAX_LABEL_CHARACTERS = 256

Settles = Callable[[str, Stamp, int], bool]
"""A function that says whether a file of this path and stamp may still be written: it changed recently."""


class Labels(NamedTuple):
    """The names of classes of one model."""

    by_output: dict[str, tuple[str, ...]]
    warnings: tuple[str, ...]


class _File(NamedTuple):
    stamp: Stamp
    labels: tuple[str, ...]
    fault: str


class LabelFiles:
    """Reads the files of a repository's models, each once for every state that it has."""

    def __init__(self, settles: Settles) -> None:
        self._settles = settles
        self._files: dict[str, _File] = {}

    def of(self, folder: str, outputs: Iterable[TensorConfig], now_ns: int) -> Labels | None:
        """Return the labels of a model's outputs, None while a file of theirs is being written.

        ``folder`` is the model's.
        """
        found: dict[str, tuple[str, ...]] = {}
        warnings = []
        for output in outputs:
            if not output.label_file:
                continue
            file = self._file(f"{folder}/{output.label_file}", now_ns)
            if file is None:
                return None
            if file.fault:
                warnings.append(
                    f"label_filename of output {output.name!r}: {output.label_file} {file.fault}; "
                    "classification answers without labels"
                )
            elif file.labels:
                found[output.name] = file.labels
        return Labels(found, tuple(warnings))

    def forget(self, folder: str) -> None:
        """Forget the files of a model that is gone."""
        for path in [path for path in self._files if path.startswith(f"{folder}/")]:
            del self._files[path]

    def _file(self, path: str, now_ns: int) -> _File | None:
        try:
            stamp = stamp_of_file(path)
        except OSError as error:
            return _File((), (), f"can't be read: {error.strerror}")
        if not stamp:
            return _File((), (), "is not in the model's folder")
        if not Path(path).resolve().is_relative_to(Path(path).parent.resolve()):
            # Clients are told what is in it.
            return _File((), (), "is a link to a file outside the model's folder")
        known = self._files.get(path)
        if known is None or known.stamp != stamp:
            if self._settles(path, stamp, now_ns):
                return None
            known = self._files[path] = _read(path, stamp)
        return known


def _read(path: str, stamp: Stamp) -> _File:
    ((_, size, *_),) = stamp
    if size > MAX_FILE_BYTES:
        return _File(stamp, (), f"has {size:,} bytes; it may have {MAX_FILE_BYTES:,}")
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        return _File(stamp, (), f"can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _File(stamp, (), f"is not UTF-8 ({error.reason} at byte {error.start})")
    labels = [line.strip() for line in lines]
    while labels and not labels[-1]:
        labels.pop()
    long = next((at for at, label in enumerate(labels, 1) if len(label) > MAX_LABEL_CHARACTERS), None)
    if long is not None:
        return _File(stamp, (), f"has more than {MAX_LABEL_CHARACTERS} characters in line {long}")
    return _File(stamp, tuple(labels), "")
