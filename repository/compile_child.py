"""The compiler's process: ``python -m mainspring.repository.compile_child STORE MEMORY_BYTES [LIBRARY ...]``.

One job on each line of its input, one outcome on each line of its output, both JSON. It lowers its own
priority and bounds its own memory before it reads the first one, and dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainspring.messages.model import ModelSpec
from mainspring.repository.layout import model_file
from mainspring.repository.named_files import digest_of, stamp_of
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import Recipe

if TYPE_CHECKING:
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.pipeline import Compiled
    from mainspring.compiler.program.compiled import Target

CHANGED = "its files were changed while it was compiled"
IN_CONFIG = {
    "--shape": " (in a model repository: say it as dims of the input in config.pbtxt)",
    "--pad": " (in a model repository: it is the parameter pad.INPUT in config.pbtxt)",
    "dimensions, but": " (in a model repository: dims without max_batch_size, or with 0, are the whole "
    "shape; with max_batch_size: 8 they are those of one row)",
    "--text-bytes": " (in a model repository: it is the parameter text_bytes in config.pbtxt)",
}
"""Explanation of the compiler's options in a repository's terms, by the option in its message."""
_NO_MEMORY = "bad_alloc"
"""Text by which ONNX Runtime reports a lack of memory."""
LOWEST = 19
"""Niceness: any other program goes first."""
_PR_SET_PDEATHSIG = 1


class Job(msgspec.Struct, frozen=True):
    """Have this file's artifact in the store."""

    name: str
    """Name of the artifact; it stands for the files' content and the recipe."""
    folder: str
    """Folder of the version."""
    file_name: str
    digest: str
    """Digest of the files in the folder."""
    recipe: Recipe


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a job: a specification or a fault."""

    spec: ModelSpec | None = None
    fault: str = ""
    changed: bool = False
    """True if the reason is that the files changed."""


def stored(store: Store, name: str) -> ModelSpec | None:
    """Return the specification of an artifact that is in the store and that this version can run here."""
    from mainspring.compiler.artifact.errors import CompileError, ExecutableError, StoreError
    from mainspring.compiler.artifact.manifest import TVM
    from mainspring.compiler.artifact.op_libraries import check_known
    from mainspring.compiler.artifact.plan import read_plans
    from mainspring.compiler.artifact.target import check_target
    from mainspring.compiler.rows.proving import settled

    try:
        manifest = settled(store, store.manifest(name))
        if manifest is None:
            return None
        store.weights_path(manifest)
        info = store.executable_info(manifest)
        check_target(info, "")
        check_known(info.libraries)
        if manifest.engine == TVM:
            read_plans(store, manifest)
    except (StoreError, CompileError, ExecutableError):
        return None
    return manifest.spec()


def target_of(store: Store, name: str) -> Target:
    """Return what the artifact in the store was compiled for: one of an old format is made again for that.

    The usual target if there is none, or if it can't be read.
    """
    from mainspring.compiler.artifact.errors import StoreError
    from mainspring.compiler.artifact.manifest import CUDA, TVM
    from mainspring.compiler.artifact.plan import Plans
    from mainspring.compiler.program.compiled import Target

    try:
        manifest = store.manifest(name)
        made = Target(
            manifest.engine, store.executable_info(manifest).device, precision=manifest.source.precision
        )
        if (made.engine, made.device) == (TVM, CUDA):
            plans = msgspec.json.decode(store.executable_path(manifest).read_bytes(), type=Plans)
            made = msgspec.structs.replace(made, arch=plans.arch)
    except (StoreError, OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Target()
    return made


def run(store: Store, job: Job) -> Outcome:
    """Compile one job's file, unless that was done before."""
    from mainspring.compiler.artifact.errors import CompileError, StoreError

    folder = Path(job.folder)
    try:
        known = stored(store, job.name)
        if known is not None:
            return Outcome(known)
        if fault := _too_large(folder):
            return Outcome(fault=fault)
        if not _is_still(folder, job.digest):
            return Outcome(fault=CHANGED, changed=True)
        compiled = _compiled(store, job, folder)
        if not _is_still(folder, job.digest):
            # Its name stands for another content.
            store.remove(job.name)
            return Outcome(fault=CHANGED, changed=True)
    except (CompileError, StoreError, ConfigFault) as error:
        if _NO_MEMORY in str(error):
            return Outcome(fault=_no_memory(folder))
        where = [each for option, each in IN_CONFIG.items() if option in str(error)]
        return Outcome(fault=f"{error}{''.join(where)}")
    except MemoryError:
        return Outcome(fault=_no_memory(folder))
    except Exception as error:  # no model may end the process
        return Outcome(fault=f"the compiler failed on it: {type(error).__name__}: {error}")
    return Outcome(compiled.manifest.spec())


def _compiled(store: Store, job: Job, folder: Path) -> Compiled:
    from mainspring.compiler.artifact.python_folder import is_python
    from mainspring.compiler.pipeline import compile_file
    from mainspring.compiler.python_models.compiling import compile_folder
    from mainspring.repository.one_folder import described_by

    if is_python(folder):
        return compile_folder(folder, job.name, store)
    return compile_file(
        Path(model_file(job.folder, job.file_name) or folder / job.file_name),
        job.name,
        store,
        job.recipe.batch_sizes,
        job.recipe.shapes,
        target_of(store, job.name),
        whole=job.recipe.whole,
        most=job.recipe.most,
        pad=job.recipe.pad,
        text_bytes=job.recipe.text_bytes,
        described=described_by(job.recipe, folder),
        or_fewer=True,
    )


def _too_large(folder: Path) -> str:
    """Say what compiling the files of a model needs, if that is more than it may have; else nothing."""
    from mainspring.compiler.reading.contents import TIMES_THE_FILE

    allowed, size = _allowed(), _size_of(folder)
    if TIMES_THE_FILE * size <= allowed:
        return ""
    needs = TIMES_THE_FILE * size
    return (
        f"its files have {size:,} bytes, to compile them may take {TIMES_THE_FILE} times that, {needs:,}, "
        f"which is {_advice()}"
    )


def _allowed() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _no_memory(folder: Path) -> str:
    """Return what the compilation of these files was allowed; ``folder`` is the version's."""
    return f"its files have {_size_of(folder):,} bytes, and to compile them takes {_advice()}"


def _advice() -> str:
    """Return what helps where compiling needs more memory than it may have, as the end of a sentence."""
    return (
        f"more memory than compile_memory_bytes = {_allowed():,} allows: set it higher, or compile the model "
        "with `mainspring compile` where there is more"
    )


def _is_still(folder: Path, digest: str) -> bool:
    try:
        return digest_of(folder, stamp_of(folder)) == digest
    except OSError:
        return False


def bound_memory(size: int) -> None:
    """Have this process take no more data than ``size`` bytes, or than it may already."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def main(store: str, memory_bytes: str, *libraries: str) -> None:
    """Do jobs until the input ends; ``libraries`` of operators may be loaded."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    bound_memory(int(memory_bytes))
    # What libraries print must not stand among the outcomes.
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from mainspring.compiler.artifact.op_libraries import allow
    from mainspring.compiler.artifact.store import Store

    allow(libraries)
    for line in sys.stdin.buffer:
        outcome = run(Store(store), msgspec.json.decode(line, type=Job))
        outcomes.write(msgspec.json.encode(outcome) + b"\n")
        outcomes.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
