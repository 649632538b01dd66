"""The ``__main__.py`` of ``gpu_check.pyz``: unpacks it, runs the check, and removes the files again.

It takes Python's own library alone, and syntax that Python 3.6 can read too, so that old ones can say that
they are too old.
"""

import hashlib
import json
import lzma
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from typing import Any, NoReturn

INDEX, STREAM = "index.json", "files.xz"
SITE, NUMPY, OWN, BUNDLE = "site", "numpy", "own", "bundle"
"""The first folder of files: packages and numpy for each Python, Mainspring, and what it checks."""
NOTHING_CHECKED = 2
"""Exit code, as the check's own without a GPU."""
OLDEST = (3, 11)
_RESULTS = "gpu-check"
_SPARE_BYTES = 256 << 20


class Refused(Exception):
    """The check can't be begun; the text says why, and what would help."""


def main(archive: str, arguments: "list[str]") -> int:
    """Run the check that an archive holds; return the exit code."""
    signal.signal(signal.SIGTERM, terminated)
    try:
        check_machine()
        with open_archive(archive) as opened:
            index = read_index(opened)
            if {"-h", "--help"} & set(arguments):
                print(index["carried"] + "\n")
            tag = own_tag(index)
            numpy = "" if has_numpy() else tag
            folder = make_folder(index, tag, numpy)
            try:
                unpack(opened, index, folder, tag, numpy)
                return run(folder, tag, numpy, arguments)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except Refused as error:
        print(f"gpu-check can't run: {error}", file=sys.stderr)
        return NOTHING_CHECKED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def terminated(_number: int, _frame: object) -> NoReturn:
    """End by an exception, so that the temporary folder is removed."""
    sys.exit(128 + signal.SIGTERM)


def check_machine() -> None:
    """Raise `Refused` for a Python or a machine that the files are not for."""
    found = platform.python_version()
    if sys.version_info[:2] < OLDEST or platform.python_implementation() != "CPython":
        raise Refused(
            f"this is {platform.python_implementation()} {found}, and CPython 3.11 or newer "
            "is needed; run the archive with another, such as `python3.12 gpu_check.pyz`"
        )
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise Refused(f"this machine is {machine}, and the archive's packages are for Linux x86_64")


def open_archive(path: str) -> zipfile.ZipFile:
    """Return the opened archive; raise `Refused` if it can't be read."""
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise damaged(error) from error


def damaged(why: object) -> Refused:
    """Return the error about an archive whose bytes are others than those that were written."""
    return Refused(f"the archive is damaged or incomplete ({why}): copy it again")


def read_index(archive: zipfile.ZipFile) -> "dict[str, Any]":
    """Return what the archive holds; raise `Refused` if it is not whole."""
    try:
        index = json.loads(archive.read(INDEX).decode("utf-8"))  # type: dict[str, Any]
        length = archive.getinfo(STREAM).file_size
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise damaged(error) from error
    if length != index["packed_bytes"]:
        raise damaged(f"{length} bytes of {index['packed_bytes']}")
    return index


def own_tag(index: "dict[str, Any]") -> str:
    """Return this Python's version, as in the archive; raise `Refused` if that has no packages for it."""
    tag = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if tag not in index["pythons"]:
        raise Refused(
            f"the archive has packages for Python {', '.join(index['pythons'])}, and this is {tag}; run it "
            f'with one of those, or make another with `make gpu-bundle ARGS="--python {tag}"`'
        )
    return tag


def has_numpy() -> bool:
    """Return True if this Python has a numpy that works and is new enough."""
    program = "import numpy; raise SystemExit(tuple(map(int, numpy.__version__.split('.')[:2])) < (1, 26))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    return done.returncode == 0


def environment() -> "dict[str, str]":
    """Return this process's variables, so that a folder's other files are not taken for modules."""
    return dict(os.environ, PYTHONSAFEPATH="1")


def wanted(path: str, tag: str, numpy: str) -> bool:
    """Return True if this Python needs a file."""
    kind, _, rest = path.partition("/")
    of = rest.partition("/")[0]
    return kind in (OWN, BUNDLE) or (kind == SITE and of == tag) or (kind == NUMPY and of == numpy)


def make_folder(index: "dict[str, Any]", tag: str, numpy: str) -> str:
    """Return a new folder with room for everything; raise `Refused` if there is none."""
    needed = int(index["weights_bytes"]) + _SPARE_BYTES
    for blob in index["blobs"]:
        needed += blob["bytes"] * sum(wanted(path, tag, numpy) for path in blob["paths"])
    try:
        folder = tempfile.mkdtemp(prefix="gpu-check-")
    except OSError as error:
        raise Refused(
            f"no temporary folder can be made: {error}; choose another with TMPDIR=FOLDER"
        ) from error
    free = shutil.disk_usage(folder).free
    if free < needed:
        os.rmdir(folder)
        raise Refused(
            f"{os.path.dirname(folder)} has {free / 1e9:.1f} GB free, and models and code take "
            f"{needed / 1e9:.1f} GB: choose another folder with TMPDIR=FOLDER"
        )
    return folder


def unpack(archive: zipfile.ZipFile, index: "dict[str, Any]", folder: str, tag: str, numpy: str) -> None:
    """Write the files that are needed; raise `Refused` for damaged bytes and a full disk."""
    try:
        with archive.open(STREAM) as packed, lzma.LZMAFile(packed) as stream:
            for blob in index["blobs"]:
                paths = [path for path in blob["paths"] if wanted(path, tag, numpy)]
                content = stream.read(blob["bytes"])
                if hashlib.sha256(content).hexdigest() != blob["sha256"]:
                    raise damaged(blob["paths"][0])
                for path in paths:
                    write(os.path.join(folder, path), content)
    except (lzma.LZMAError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise damaged(error) from error
    except OSError as error:
        why = f"{folder} can't be written: {error}; choose another folder with TMPDIR=FOLDER"
        raise Refused(why) from error


def write(path: str, content: bytes) -> None:
    """Write a file into a folder that may have to be made."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def run(folder: str, tag: str, numpy: str, arguments: "list[str]") -> int:
    """Run the check in a process of its own, with the packages that were brought along; return its code."""
    paths = [os.path.join(folder, OWN), os.path.join(folder, SITE, tag)]
    if numpy:
        paths.append(os.path.join(folder, NUMPY, tag))
    known = os.environ.get("PYTHONPATH")
    variables = dict(environment(), PYTHONPATH=os.pathsep.join(paths + ([known] if known else [])))
    command = [sys.executable, "-m", "mainspring.experiments.gpu_check", *arguments]
    command += ["--bundle", os.path.join(folder, BUNDLE)]
    if not any(each == "--output" or each.startswith("--output=") for each in arguments):
        results = os.path.abspath(_RESULTS)
        command += ["--output", results]
        print(f"Results go to {results}", flush=True)
    process = subprocess.Popen(command, env=variables)
    try:
        return process.wait()
    finally:
        # Its checks are ended by itself, before the files that they use are removed.
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(os.path.dirname(os.path.abspath(__file__)), sys.argv[1:]))
