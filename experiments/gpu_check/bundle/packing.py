"""``gpu_check.pyz``: a zip archive that Python runs, with all files in one stream of xz.

Equal files are stored once, and similar ones lie near each other. ``index.json`` says which bytes of the
stream are which file; `runner` becomes ``__main__.py``.
"""

from __future__ import annotations

import hashlib
import lzma
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from mainspring.experiments.gpu_check.bundle import runner
from mainspring.experiments.gpu_check.bundle.contents import BundleError

MOST_BYTES = 40 << 20
_DICTIONARY_BYTES = 128 << 20
"""As far back as equal bytes are found; the other side takes as much memory."""
_DATE = (1980, 1, 1, 0, 0, 0)


def pack(
    files: Mapping[str, bytes], facts: Mapping[str, Any], output: Path, most_bytes: int = MOST_BYTES
) -> int:
    """Write the archive; return its length. Raises `BundleError`, which says what takes the room, if more."""
    content = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
    paths: dict[str, list[str]] = {}
    for path in sorted(files, key=_kind):
        paths.setdefault(hashlib.sha256(files[path]).hexdigest(), []).append(path)
    stream = b"".join(content[digest] for digest in paths)
    packed = lzma.compress(stream, lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=_filters())
    blobs = [{"sha256": digest, "bytes": len(content[digest]), "paths": paths[digest]} for digest in paths]
    index = {
        **facts,
        "sha256": hashlib.sha256(packed).hexdigest(),
        "packed_bytes": len(packed),
        "blobs": blobs,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.with_name(f".{output.name}")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        parts = {
            "__main__.py": Path(runner.__file__).read_bytes(),
            runner.INDEX: msgspec.json.encode(index),
        }
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(runner.STREAM, _DATE), packed, zipfile.ZIP_STORED)
    length = aside.stat().st_size
    if length > most_bytes:
        aside.unlink()
        raise BundleError(
            f"the archive would take {length / 2**20:.1f} MiB, more than {most_bytes / 2**20:.0f}: "
            f"{what_takes_room(files)}"
        )
    aside.replace(output)
    return length


def what_takes_room(files: Mapping[str, bytes]) -> str:
    """Return the largest kinds of files, each compressed by itself, in one line."""
    groups: dict[str, dict[str, bytes]] = {}
    for path, data in files.items():
        groups.setdefault(_group(path), {})[hashlib.sha256(data).hexdigest()] = data
    sizes = Counter(
        {
            group: len(lzma.compress(b"".join(each.values()), filters=_filters(preset=1)))
            for group, each in groups.items()
        }
    )
    return ", ".join(f"{group} about {size / 2**20:.1f} MiB" for group, size in sizes.most_common(8))


def _group(path: str) -> str:
    """Return what a file counts as: a package, or a kind of file of the bundle's."""
    parts = PurePosixPath(path).parts
    if parts[0] == "bundle":
        return PurePosixPath(path).name if parts[1] == "stores" else parts[1]
    package = parts[2] if parts[0] in (runner.SITE, runner.NUMPY) else parts[1]
    return package.removesuffix(".libs")


def _kind(path: str) -> tuple[str, str, str]:
    """Return what files are ordered by: alike ones of several models or Pythons follow each other."""
    name = PurePosixPath(path)
    return name.suffix, name.name.partition(".")[0], path


def _filters(preset: int = 6) -> list[dict[str, int]]:
    return [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": _DICTIONARY_BYTES},
    ]
