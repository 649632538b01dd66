"""Machine code for a GPU's kernels: what the compiler stored, or what is compiled here and kept.

An executable has its kernels as machine code for one architecture, as PTX, which the driver compiles for
newer ones, and as source. What had to be compiled from source is kept beside it, for the next worker and the
next start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from mainspring import extras
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.nvrtc import NvrtcFailed, NvrtcMissing, compile_cuda
from mainspring.compiler.artifact.plan import (
    CUBIN,
    PTX,
    SOURCE,
    Plans,
    arch_number,
    kernels_path,
    ptx_arch,
)
from mainspring.compiler.artifact.store import Store
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.driver import Driver

LOG = logging.getLogger(__name__)
_DIGEST_BYTES = 32
"""Size of the SHA-256 digest that a kept file begins with."""


def image_for(driver: Driver, store: Store, manifest: Manifest, plans: Plans) -> bytes:
    """Return what the driver loads for an executable's kernels on this device.

    Machine code runs on devices of its architecture's major number with the same or a higher minor number,
    PTX on all newer ones. Raises `EngineError`, and `StoreError` for files that are missing or altered.
    """
    if plans.target != "cuda":
        raise EngineError(f"the executable is for {plans.target}; compile the model for a GPU: --device cuda")
    arch = driver.arch()
    code = kernels_path(store, manifest, plans, CUBIN)
    if code is not None and runs_code(plans.arch, arch):
        return code.read_bytes()
    ptx = kernels_path(store, manifest, plans, PTX)
    if ptx is not None and arch_number(ptx_arch(plans.arch)) <= arch_number(arch):
        return ptx.read_bytes()
    source = kernels_path(store, manifest, plans, SOURCE)
    if source is None:
        raise EngineError(f"the executable has no kernels for {arch} and no source of them")
    return _compiled(driver, source, arch)


def compile_with_nvrtc(source: str, arch: str) -> bytes:
    """Return machine code for ``arch``, such as ``sm_90``; raise `EngineError` with the compiler's words."""
    try:
        return compile_cuda(source.encode(), arch)
    except NvrtcMissing as error:
        raise EngineError(
            f"there are no kernels for {arch}, and their source can't be compiled: {error}; "
            f"{extras.command('nvrtc')}, or compile the model with --arch {arch}"
        ) from error
    except NvrtcFailed as error:
        raise EngineError(str(error)) from error


def _compiled(driver: Driver, source: Path, arch: str) -> bytes:
    """Return the source compiled for an architecture, from the last time if that is there."""
    kept = source.with_name(f"kernels.{arch}.kept")
    try:
        digest, code = (content := kept.read_bytes())[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if digest == hashlib.sha256(code).digest():
            return code
        LOG.warning("%s is damaged; its kernels are compiled again", kept)
    except FileNotFoundError:
        pass
    except OSError as error:
        LOG.warning("%s can't be read (%s); its kernels are compiled again", kept, error.strerror)
    code = driver.compile(source.read_text(encoding="utf-8"), arch)
    _keep(kept, hashlib.sha256(code).digest() + code)
    return code


def _keep(path: Path, content: bytes) -> None:
    """Write a file aside and rename it into place; a store that can't be written is left as it is."""
    try:
        file, aside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
        os.replace(aside, path)
    except OSError as error:
        LOG.info("compiled kernels can't be kept in %s: %s", path, error.strerror)


def runs_code(code: str, device: str) -> bool:
    """Return whether machine code of an architecture runs on a device; code such as ``sm_90a`` on that one
    alone."""
    made, there = arch_number(code), arch_number(device)
    if code.endswith("a"):
        return made == there
    return made // 10 == there // 10 and made <= there
