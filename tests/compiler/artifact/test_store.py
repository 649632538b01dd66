from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mainspring.cli.launcher.models import ModelSource
from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.manifest import Manifest, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model

Compile = Callable[..., Manifest]


@pytest.fixture
def compiled(store: Store, make_mlp: Callable[..., object]) -> Compile:
    def run(name: str = "m", seed: int = 0) -> Manifest:
        source = Source("onnx", "/models/m.onnx")
        return compile_model(make_mlp(seed), name, store, (1, 2), source).manifest  # type: ignore[arg-type]

    return run


def test_a_stored_manifest_reads_back_equal(store: Store, compiled: Compile) -> None:
    manifest = compiled()
    assert store.names() == ["m"]
    assert store.manifest("m") == manifest
    assert store.specs() == [manifest.spec()]
    store.verify("m")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\0b", "/etc", "x" * 200, "a b", "m@128"])
def test_no_name_leads_out_of_the_store(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match="can't be the name of a model"):
        store.manifest(name)


def test_a_hash_that_is_a_path_is_refused(store: Store, compiled: Compile) -> None:
    manifest = compiled()
    evil = msgspec.structs.replace(manifest, weights_hash="../../etc/passwd")
    with pytest.raises(StoreError, match="not a SHA-256"):
        store.weights_path(evil)
    (store.root / "models" / "m" / "manifest.json").write_bytes(msgspec.json.encode(evil))
    with pytest.raises(StoreError, match="not a SHA-256"):
        store.manifest("m")


def test_an_unknown_model_and_a_missing_store_name_the_remedy(store: Store, compiled: Compile) -> None:
    with pytest.raises(StoreError, match=r"is not a model store; `mainspring zoo"):
        store.names()
    compiled()
    with pytest.raises(StoreError, match=r"no model 'other'.*`mainspring compile"):
        store.manifest("other")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"name": 3}', b"[" * 100_000])
def test_a_damaged_manifest_is_an_error_with_its_path(
    store: Store, compiled: Compile, content: bytes
) -> None:
    compiled()
    path = store.root / "models" / "m" / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"manifest\.json is damaged.*mainspring compile"):
        store.manifest("m")


@pytest.mark.parametrize("content", [b"", b"{", b'{"name": "a"}'])
def test_a_damaged_manifest_is_left_out_with_the_remedy_and_the_others_are_served(
    store: Store, compiled: Compile, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    for name in ("a", "b", "c"):
        compiled(name)
    path = store.root / "models" / "b" / "manifest.json"
    path.write_bytes(content)
    assert [spec.name for spec in store.specs()] == ["a", "c"]
    assert f"{path} is damaged" in caplog.text
    assert "`mainspring compile MODEL.onnx --name b" in caplog.text
    source = ModelSource(store=str(store.root))
    source.check_files()
    with pytest.raises(StoreError, match="damaged"):
        source.check_files(whole=True)
    for name in ("a", "c"):
        store.remove(name)
    with pytest.raises(StoreError, match="damaged"):
        store.specs()


def test_files_are_on_the_disk_before_they_have_their_names(
    store: Store, compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, os.fstat(file).st_size))
    )
    compiled()
    files = {path for path in store.root.rglob("*") if path.is_file()}
    assert {(path.stat().st_ino, path.stat().st_size) for path in files} <= set(synced)
    assert {path.parent.stat().st_ino for path in files} <= {inode for inode, _ in synced}


def test_what_a_killed_compilation_left_is_collected(store: Store, compiled: Compile) -> None:
    compiled()
    left = store.root / ".writing-abc"
    left.mkdir()
    (left / "weights.bin").write_bytes(bytes(1_000))
    assert store.collect() == 1_000
    assert not left.exists()
    store.verify("m")


def test_a_scratch_store_is_none_of_the_models_and_goes_or_is_collected(
    store: Store, compiled: Compile
) -> None:
    manifest = compiled()
    with store.scratch() as scratch:
        weights = store.weights_path(manifest).read_bytes()
        assert scratch.put_weights([weights]) == (manifest.weights_hash, len(weights))
        scratch.put_manifest(manifest)
        assert (scratch.names(), store.names()) == (["m"], ["m"])
        left = store.root / ".writing-killed"
        shutil.copytree(scratch.root, left)
    assert not scratch.root.exists()
    assert store.collect() > len(weights)
    assert not left.exists()
    store.verify("m")


def test_a_manifest_that_contradicts_itself_is_refused(store: Store, compiled: Compile) -> None:
    manifest = compiled()
    far = msgspec.structs.replace(manifest.tensors[0], offset=1 << 40)
    store.put_manifest(msgspec.structs.replace(manifest, tensors=(far, *manifest.tensors[1:])))
    with pytest.raises(StoreError, match=f"tensor {far.name} is not inside extent 0"):
        store.manifest("m")
    store.put_manifest(msgspec.structs.replace(manifest, format=99))
    with pytest.raises(StoreError, match="has format 99"):
        store.manifest("m")


def test_altered_weights_are_found_by_their_length_or_their_hash(store: Store, compiled: Compile) -> None:
    manifest = compiled()
    path = store.weights_path(manifest)
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    store.weights_path(manifest)
    with pytest.raises(StoreError, match=r"was altered.*mainspring compile /models/m.onnx --name m"):
        store.verify("m")
    path.write_bytes(content[:-1])
    with pytest.raises(StoreError, match=r"has \d+ bytes, not \d+"):
        store.weights_path(manifest)
    path.unlink()
    with pytest.raises(StoreError, match="No such file"):
        store.weights_path(manifest)


def test_an_altered_executable_is_found(store: Store, compiled: Compile) -> None:
    manifest = compiled()
    store.executable_path(manifest).write_bytes(b"something else")
    with pytest.raises(StoreError, match=r"graph\.onnx was altered"):
        store.verify("m")


def test_an_executable_of_another_machine_or_library_is_refused(store: Store, compiled: Compile) -> None:
    manifest = compiled()
    info = store.executable_info(manifest)
    path = store.executable_path(manifest).with_name("info.json")
    for change in ({"instruction_set": "x86_64-other"}, {"onnxruntime": "0.0.1"}):
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(info, **change)))
        with pytest.raises(StoreError, match=r"was compiled for .*`mainspring compile /models/m.onnx"):
            open_executable(store, manifest)


def test_nothing_but_whole_files_is_left_behind(store: Store, compiled: Compile) -> None:
    compiled()
    files = sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())
    assert [Path(file).parts[0] for file in files] == ["executables", "executables", "models", "weights"]
    assert not list(store.root.glob(".*"))


def test_an_interrupted_write_leaves_the_old_weights(store: Store) -> None:
    def chunks() -> object:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put_weights(chunks())  # type: ignore[arg-type]
    assert list(store.root.iterdir()) == []


def test_removing_and_collecting_frees_only_what_nobody_uses(store: Store, compiled: Compile) -> None:
    first, second = compiled("first", 1), compiled("second", 2)
    assert first.executable == second.executable
    store.remove("first")
    assert store.names() == ["second"]
    assert store.collect() == first.weights_bytes
    store.verify("second")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_can_not_be_written_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=r"can't write .*Permission denied"):
        Store(tmp_path / "store").put_weights([b"x"])


def test_a_store_whose_path_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreError, match="can't write"):
        Store(tmp_path / "store").put_weights([b"x"])
