"""Make `descriptors` from ``proto/``, with ``python -m mainspring.gateway.grpc.compile_protos``.

It needs grpcio-tools, which serving does not.
"""

from __future__ import annotations

import base64
import tempfile
import zlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROTOS = FOLDER / "proto"
_COLUMNS = 100
_HEAD = '''"""Descriptors that protobuf makes of ``proto/``; written by `compile_protos`, never by hand."""

import base64
import zlib

DESCRIPTORS = zlib.decompress(
    base64.b85decode(
'''


def described() -> bytes:
    """Return the files of ``proto/`` as a serialized FileDescriptorSet, each after those that it imports.

    Raises ImportError without grpcio-tools and ValueError if a file has a mistake (which is printed).
    """
    from grpc_tools import protoc

    names = sorted(path.name for path in PROTOS.glob("*.proto"))
    with tempfile.NamedTemporaryFile() as file:
        options = [f"-I{PROTOS}", "--include_imports", f"--descriptor_set_out={file.name}"]
        if protoc.main(["protoc", *options, *names]) != 0:
            raise ValueError(f"protobuf's compiler does not take the files of {PROTOS}")
        return file.read()


def module(described: bytes) -> str:
    """Return the source of `descriptors`."""
    text = base64.b85encode(zlib.compress(described, 9)).decode()
    lines = [text[at : at + _COLUMNS] for at in range(0, len(text), _COLUMNS)]
    return _HEAD + "".join(f'        "{line}"\n' for line in lines) + "    )\n)\n"


if __name__ == "__main__":
    (FOLDER / "descriptors.py").write_text(module(described()), encoding="utf-8")
