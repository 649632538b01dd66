"""What a GPU is given of an executable's kernels, and what is compiled on the worker and kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec
import pytest

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.nvrtc import NvrtcFailed, NvrtcMissing
from mainspring.compiler.artifact.plan import CUBIN, PTX, SOURCE, Plans, read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda import compiling
from mainspring.worker.engines.cuda.compiling import compile_with_nvrtc, image_for
from tests.worker.engines.cuda.tiny_store import tiny_store

FILES = {CUBIN: b"machine code", PTX: b"ptx\0", SOURCE: b"source"}


class Kernels:
    """A stored executable with some of its files, and a device."""

    def __init__(self, folder: Path, device: str, arch: str = "sm_90", without: tuple[str, ...] = ()) -> None:
        self.store = tiny_store(folder, "a")
        self.manifest: Manifest = self.store.manifest("a")
        files = {name: content for name, content in FILES.items() if name not in without}
        self.folder = self.store.executable_path(self.manifest).parent
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        self.plans: Plans = msgspec.structs.replace(
            read_plans(self.store, self.manifest),
            arch=arch,
            files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        )
        self.driver = FakeDriver()
        self.driver.attach()
        self.driver.arch = lambda: device  # type: ignore[method-assign]
        self.compiled: list[str] = []
        self.driver.compile = self._compile  # type: ignore[method-assign]

    def _compile(self, source: str, arch: str) -> bytes:
        self.compiled.append(arch)
        return f"{arch} of {source}".encode()

    def image(self) -> bytes:
        return image_for(self.driver, self.store, self.manifest, self.plans)


@pytest.mark.parametrize(
    ("arch", "device", "name"),
    [
        ("sm_90", "sm_90", CUBIN),
        ("sm_86", "sm_89", CUBIN),
        ("sm_90a", "sm_90", CUBIN),
        ("sm_90", "sm_100", PTX),
        ("sm_90", "sm_86", PTX),
        ("sm_86", "sm_80", PTX),
        ("sm_75", "sm_80", PTX),
    ],
)
def test_stored_kernels_are_used_where_they_run(arch: str, device: str, name: str, tmp_path: Path) -> None:
    kernels = Kernels(tmp_path, device, arch)
    assert kernels.image() == FILES[name]
    assert kernels.compiled == []


def test_older_devices_than_the_ptx_is_for_get_kernels_from_source(tmp_path: Path) -> None:
    assert Kernels(tmp_path, "sm_75").image() == b"sm_75 of source"


def test_what_had_to_be_compiled_is_kept_for_the_next_worker(tmp_path: Path) -> None:
    first = Kernels(tmp_path, "sm_90", without=(CUBIN, PTX))
    assert first.image() == b"sm_90 of source"
    assert first.compiled == ["sm_90"]
    again = Kernels(tmp_path, "sm_90", without=(CUBIN, PTX))
    assert again.image() == b"sm_90 of source"
    assert again.compiled == []
    other = Kernels(tmp_path, "sm_80", without=(CUBIN, PTX))
    assert other.image() == b"sm_80 of source"
    assert other.compiled == ["sm_80"]
    kept = first.folder / "kernels.sm_90.kept"
    kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    assert again.image() == b"sm_90 of source", "damaged machine code would run"
    assert again.compiled == ["sm_90"]
    first.store.verify("a")
    assert not [path for path in first.folder.iterdir() if path.name.startswith(".")]


def test_a_store_that_can_not_be_written_is_served_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(13, os.strerror(13))

    kernels = Kernels(tmp_path, "sm_90", without=(CUBIN, PTX))
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert [kernels.image(), kernels.image()] == [b"sm_90 of source"] * 2
    assert kernels.compiled == ["sm_90", "sm_90"]


def test_altered_files_and_plans_for_the_cpu_are_refused(tmp_path: Path) -> None:
    kernels = Kernels(tmp_path, "sm_100")
    (kernels.folder / PTX).write_bytes(b"other")
    with pytest.raises(StoreError, match=r"kernels\.ptx was altered"):
        kernels.image()
    kernels.plans = msgspec.structs.replace(kernels.plans, target="cpu")
    with pytest.raises(EngineError, match=r"the executable is for cpu; .* --device cuda"):
        kernels.image()
    kernels.plans = msgspec.structs.replace(kernels.plans, target="cuda", files={})
    with pytest.raises(EngineError, match="no kernels for sm_100 and no source"):
        kernels.image()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NvrtcMissing("NVRTC is not installed"), r"NVRTC is not installed; .*pip install .* --arch sm_90"),
        (NvrtcFailed("NVRTC can't compile the kernels for sm_90: no"), "can't compile the kernels"),
    ],
)
def test_what_keeps_kernels_from_being_compiled_is_said(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_source: bytes, _arch: str) -> bytes:
        raise error

    monkeypatch.setattr(compiling, "compile_cuda", fail)
    with pytest.raises(EngineError, match=says):
        compile_with_nvrtc("source", "sm_90")


def test_kept_kernels_are_collected_with_their_executable(tmp_path: Path) -> None:
    kernels = Kernels(tmp_path, "sm_90", without=(CUBIN, PTX))
    kernels.image()
    for name in kernels.store.names():
        kernels.store.remove(name)
    Store(kernels.store.root).collect()
    assert not kernels.folder.exists() or not list(kernels.folder.iterdir())
