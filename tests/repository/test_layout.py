"""What is found in a repository's folder, by itself and while it is being written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.repository import layout as layout_module
from mainspring.repository.layout import FoundModel, Layout, RepositoryFault, model_file
from mainspring.repository.model_config import ModelConfig
from tests.repository.nets import configure, put

S = 1_000_000_000
LATER_NS = 4_000_000_000 * S
"""Long after every file of the test."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "repository").mkdir()
    return Layout(tmp_path / "repository", settle_ns=S)


def look(
    layout: Layout, name: str, now_ns: int = LATER_NS, broken: frozenset[str] = frozenset()
) -> FoundModel:
    found = layout.look(name, now_ns, lambda _config, _number, digest: digest in broken)
    assert found is not None
    return found


def test_models_are_the_folders(layout: Layout) -> None:
    put(layout.root, "net", 1, b"a")
    put(layout.root, "other", 1, b"a")
    (layout.root / "README").write_text("no model")
    (layout.root / ".git").mkdir()
    os.symlink(layout.root / "net", layout.root / "link")
    assert layout.names() == ["link", "net", "other"]
    assert look(layout, "link").chosen == (1,)
    assert layout.look("gone", LATER_NS, lambda *_: False) is None


def test_a_repository_that_can_not_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(RepositoryFault, match="No such file"):
        Layout(tmp_path / "nowhere", 0).names()


@pytest.mark.parametrize("name", ["model.pt", "model.plan"])
def test_a_file_that_is_no_onnx_model_is_named(layout: Layout, name: str) -> None:
    folder = layout.root / "net" / "1"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"a")
    fault = look(layout, "net").fault
    assert f"net/1 holds {name} and no model.onnx; only ONNX models are served" in fault


def test_a_python_model_is_known_by_its_description(layout: Layout) -> None:
    folder = layout.root / "net" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("class TritonPythonModel: pass")
    assert "net/1 holds model.py and no model.toml, which says what" in look(layout, "net").fault
    (folder / "model.toml").write_text("")
    found = look(layout, "net")
    assert (found.fault, found.chosen) == ("", (1,))
    before = found.digests
    (folder / "model.py").write_text("class Predictor: pass")
    assert look(layout, "net").digests != before, "its code is a part of it"


def test_versions_are_numbers_whose_folders_hold_the_file(layout: Layout) -> None:
    for version in (1, 2, 10):
        put(layout.root, "net", version, b"a")
    for folder in ("0", "01", "v3", "11"):
        (layout.root / "net" / folder).mkdir()
    assert look(layout, "net").numbers == (1, 2, 10)
    assert look(layout, "net").chosen == (10,)
    configure(layout.root, "net", 'default_model_filename: "other.onnx"')
    (layout.root / "net" / "11" / "other.onnx").write_bytes(b"b")
    assert look(layout, "net").chosen == (11,)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("max_batch_size: [", "config.pbtxt, line 1"),
        (
            "version_policy { specific { versions: 7 } }",
            "none of its versions (1) is one that version_policy names",
        ),
        ('default_model_filename: "other.onnx"', "put its file at net/1/other.onnx"),
        ("# " + "x" * (1 << 20), "bytes; more than"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_what_keeps_a_model_from_being_served(layout: Layout, config: str, says: str) -> None:
    put(layout.root, "net", 1, b"a")
    (layout.root / "net" / "config.pbtxt").write_bytes(config.encode(errors="surrogateescape"))
    assert says in look(layout, "net").fault


def test_a_name_that_can_not_be_one(layout: Layout) -> None:
    for name in ("net@1", "n" * 97, "-net", "n t"):
        put(layout.root, name, 1, b"a")
        assert "can't be the name of a model" in look(layout, name).fault


def test_a_digest_is_of_every_file_and_of_its_name(layout: Layout) -> None:
    put(layout.root, "net", 1, b"a")
    (folder,) = (layout.root / "net").iterdir()
    digests = [look(layout, "net").digests[1]]
    for name, content in (("weights.bin", b"x"), ("weights.bin", b"y"), ("more/weights.bin", b"y")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        digests.append(look(layout, "net").digests[1])
    (folder / "weights.bin").rename(folder / "other.bin")
    digests.append(look(layout, "net").digests[1])
    assert len(set(digests)) == 5
    again = Layout(layout.root, S)
    assert look(again, "net").digests[1] == digests[-1]


def test_files_are_read_once_for_each_state(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    put(layout.root, "net", 1, b"a")
    first = look(layout, "net").digests[1]
    monkeypatch.setattr(layout_module, "digest_of", lambda *_: "read again")
    assert look(layout, "net").digests[1] == first
    reread = Layout(layout.root, S, dict(layout.memory))
    assert look(reread, "net").digests[1] == first


def _in_place(path: Path) -> None:
    path.write_bytes(b"b")


def _in_place_with_its_time(path: Path) -> None:
    times = path.stat()
    path.write_bytes(b"b")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _at_an_earlier_time(path: Path) -> None:
    path.write_bytes(b"b")
    os.utime(path, ns=(1, 1))


def _by_rename_with_its_time(path: Path) -> None:
    times, aside = path.stat(), path.with_name(".aside")
    aside.write_bytes(b"b")
    os.utime(aside, ns=(times.st_atime_ns, times.st_mtime_ns))
    aside.rename(path)


def _by_a_link(path: Path) -> None:
    other = path.parent.parent.parent.parent / "other.onnx"
    other.write_bytes(b"b")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.unlink()
    path.symlink_to(other)


def _by_the_link_of_its_folder(path: Path) -> None:
    folder = path.parent
    other = folder.parent.parent.parent / "other"
    other.mkdir()
    (other / path.name).write_bytes(b"b")
    shutil.rmtree(folder)
    folder.symlink_to(other)


def _by_external_data_behind_a_link(path: Path) -> None:
    other = path.parent.parent.parent.parent / "data"
    other.mkdir()
    (other / "weights.bin").write_bytes(b"w")
    (path.parent / "weights").symlink_to(other)


def _external_data_in_place(path: Path) -> None:
    data = path.parent / "deep" / "weights.bin"
    times = data.stat()
    data.write_bytes(b"v")
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))


def _volume(path: Path, content: bytes) -> None:
    """Have the file in a folder as Kubernetes writes volumes: links through one that is replaced at once."""
    folder, stamp = path.parent, f"..2026_11_29_{content.hex()}"
    (folder / stamp).mkdir()
    (folder / stamp / path.name).write_bytes(content)
    os.utime(folder / stamp / path.name, ns=(1, 1))
    if not path.is_symlink():
        path.unlink()
        path.symlink_to(f"..data/{path.name}")
    (folder / "..tmp").symlink_to(stamp)
    (folder / "..tmp").rename(folder / "..data")


def _by_a_volume(path: Path) -> None:
    _volume(path, b"a")
    _volume(path, b"b")


CHANGES = [
    _external_data_in_place,
    _by_a_volume,
    _in_place,
    _in_place_with_its_time,
    _at_an_earlier_time,
    _by_rename_with_its_time,
    _by_a_link,
    _by_the_link_of_its_folder,
    _by_external_data_behind_a_link,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_noticed_however_it_was_changed(
    layout: Layout, change: Callable[[Path], None]
) -> None:
    path = put(layout.root, "net", 1, b"a")
    (path.parent / "deep").mkdir()
    (path.parent / "deep" / "weights.bin").write_bytes(b"w")
    first = look(layout, "net").digests[1]
    after_a_restart = Layout(layout.root, S, dict(layout.memory))
    change(path)
    assert look(layout, "net").digests[1] != first
    assert look(after_a_restart, "net").digests[1] == look(layout, "net").digests[1]


def test_a_volume_that_is_written_again_with_the_same_files_is_no_news(layout: Layout) -> None:
    path = put(layout.root, "net", 1, b"a")
    first = look(layout, "net").digests[1]
    _volume(path, b"a")
    assert look(layout, "net").digests[1] == first
    folder = layout.root / "net"
    configure(layout.root, "net", "max_batch_size: 4")
    _volume(folder / "config.pbtxt", b"max_batch_size: 2")
    assert look(layout, "net").config.max_batch_size == 2
    _volume(folder / "config.pbtxt", b"max_batch_size: 3")
    found = look(layout, "net")
    assert (found.config.max_batch_size, found.digests[1]) == (3, first)


def test_a_new_version_and_a_folder_that_a_link_swaps_are_noticed(layout: Layout) -> None:
    """As an ML platform publishes: the model's folder is a link to a release."""
    for release, content in (("a", b"1"), ("b", b"2")):
        put(layout.root.parent / "releases" / release, "net", 1, content)
    link = layout.root / "net"
    link.symlink_to(layout.root.parent / "releases" / "a" / "net")
    first = look(layout, "net").digests
    aside = layout.root / ".aside"
    aside.symlink_to(layout.root.parent / "releases" / "b" / "net")
    aside.rename(link)
    second = look(layout, "net").digests
    assert second.keys() == first.keys()
    assert second != first
    put(layout.root.parent / "releases" / "b", "net", 2, b"3")
    assert look(layout, "net").chosen == (2,)


def test_a_link_to_a_folder_above_is_not_followed_for_ever(layout: Layout) -> None:
    path = put(layout.root, "net", 1, b"a")
    (path.parent / "again").symlink_to(path.parent)
    (path.parent / "above").symlink_to(path.parent.parent)
    assert look(layout, "net").chosen == (1,)


def test_the_file_may_be_in_a_folder_of_its_name(layout: Layout) -> None:
    folder = layout.root / "net" / "1" / "model.onnx"
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"w")
    assert "no model.onnx" in look(layout, "net").fault
    (folder / "model.onnx").write_bytes(b"a")
    first = look(layout, "net")
    assert (first.chosen, model_file(str(folder.parent), "model.onnx")) == ((1,), f"{folder}/model.onnx")
    (folder / "weights.bin").write_bytes(b"v")
    assert look(layout, "net").digests != first.digests


def test_files_that_were_just_written_are_left_alone_until_they_settle(layout: Layout) -> None:
    now_ns = put(layout.root, "net", 1, b"a").stat().st_mtime_ns
    assert look(layout, "net", now_ns + 1).settling == (1,)
    assert look(layout, "net", now_ns + S - 1).settling == (1,)
    settled = look(layout, "net", now_ns + S + 1)
    assert (settled.settling, settled.chosen) == ((), (1,))


def test_files_of_the_future_settle_once_they_were_seen_for_long_enough(layout: Layout) -> None:
    path = put(layout.root, "net", 1, b"a")
    future_ns = path.stat().st_mtime_ns + 1000 * S
    os.utime(path, ns=(future_ns, future_ns))
    assert look(layout, "net", future_ns - 900 * S).settling == (1,)
    assert look(layout, "net", future_ns - 898 * S).chosen == (1,)


def test_a_configuration_that_was_just_written_settles_too(layout: Layout) -> None:
    put(layout.root, "net", 1, b"a")
    configure(layout.root, "net", "max_batch_size: 4")
    now_ns = (layout.root / "net" / "config.pbtxt").stat().st_mtime_ns
    assert look(layout, "net", now_ns + 1).settling == (0,)
    assert look(layout, "net", now_ns + S + 1).config == ModelConfig(max_batch_size=4)


def test_broken_versions_give_way_and_are_still_listed(layout: Layout) -> None:
    for version in (1, 2, 3, 4):
        put(layout.root, "net", version, bytes([version]))
    configure(layout.root, "net", "version_policy { latest { num_versions: 2 } }")
    digests = look(layout, "net").digests
    assert set(digests) == {3, 4}
    found = look(layout, "net", broken=frozenset({digests[4]}))
    assert (found.chosen, set(found.digests)) == ((2, 3), {2, 3, 4})
    configure(layout.root, "net", "version_policy { specific { versions: [4] } }")
    found = look(layout, "net", broken=frozenset({digests[4]}))
    assert (found.chosen, found.fault) == ((), "")


def test_a_look_at_what_did_not_change_returns_what_the_last_one_did(layout: Layout) -> None:
    put(layout.root, "net", 1, b"a")
    configure(layout.root, "net", "max_batch_size: 4")
    first = look(layout, "net")
    assert look(layout, "net") is first
    configure(layout.root, "net", "max_batch_size: 8")
    second = look(layout, "net")
    assert second.config.max_batch_size == 8
    assert look(layout, "net", broken=frozenset(second.digests.values())).chosen == ()
    assert look(layout, "net").chosen == (1,)


def test_a_configuration_is_read_once_for_each_state(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    put(layout.root, "net", 1, b"a")
    configure(layout.root, "net", "max_batch_size: many")
    reads: list[str] = []

    def read(text: str, _model: str) -> ModelConfig:
        reads.append(text)
        return ModelConfig()

    monkeypatch.setattr(layout_module, "read_config", read)
    for _ in range(3):
        look(layout, "net")
    assert len(reads) == 1
    configure(layout.root, "net", "max_batch_size: 4")
    look(layout, "net")
    assert len(reads) == 2


def test_what_is_gone_is_forgotten(layout: Layout) -> None:
    for model in ("net", "other"):
        put(layout.root, model, 1, b"a")
        put(layout.root, model, 2, b"b")
        configure(layout.root, model, "version_policy { all {} }")
        look(layout, model)
    assert len(layout.memory) == 4
    changes = layout.changes
    shutil.rmtree(layout.root / "net" / "1")
    look(layout, "net")
    assert len(layout.memory) == 3
    shutil.rmtree(layout.root / "other")
    assert layout.names() == ["net"]
    assert list(layout.memory) == [str(layout.root / "net" / "2")]
    assert layout.changes == changes + 3, "so that whoever keeps the memory writes it again"
