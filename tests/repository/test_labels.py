"""Names of classes out of the files that ``label_filename`` names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainspring.repository.layout import FoundModel, Layout
from mainspring.repository.named_files import MAX_FILE_BYTES
from tests.repository.nets import configure, put
from tests.repository.test_layout import LATER_NS, S, look

CONFIG = 'output [ { name: "y" label_filename: "labels.txt" }, { name: "z" } ]'


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    root = tmp_path / "repository"
    put(root, "net", 1, b"a")
    configure(root, "net", CONFIG)
    return Layout(root, settle_ns=S)


def write(layout: Layout, content: bytes) -> Path:
    """Write the labels in one step, so that they have another stamp; return the file."""
    path = layout.root / "net" / "labels.txt"
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)
    return path


def test_each_line_is_a_label_by_index(layout: Layout) -> None:
    write(layout, "TENCH\r\n\nStraße  \n\n\n".encode())
    found = look(layout, "net")
    assert found.labels == {"y": ("TENCH", "", "Straße")}
    assert not found.warnings
    assert look(layout, "net") is found, "nothing changed"


def test_a_change_is_seen_and_compiles_nothing_again(layout: Layout) -> None:
    write(layout, b"a\n")
    before = look(layout, "net")
    write(layout, b"b\nc\n")
    after = look(layout, "net")
    assert after.labels == {"y": ("b", "c")}
    assert (after.digests, after.config) == (before.digests, before.config)
    os.unlink(layout.root / "net" / "labels.txt")
    assert look(layout, "net").labels == {}


def test_a_link_shows_nothing_from_outside_the_folder(layout: Layout) -> None:
    folder, outside = layout.root / "net", layout.root.parent / "secret"
    outside.write_text("of another\n")
    (folder / "labels.txt").symlink_to(outside)
    found = look(layout, "net")
    assert found.labels == {}
    assert "link to a file outside the model's folder" in found.warnings[0]
    (folder / "labels.txt").unlink()
    (folder / "names").write_text("its own\n")
    (folder / "labels.txt").symlink_to("names")
    assert look(layout, "net").labels == {"y": ("its own",)}


def test_a_file_that_is_being_written_is_left_alone(layout: Layout) -> None:
    path = write(layout, b"a\n")
    for each in (path, layout.root / "net" / "config.pbtxt", layout.root / "net" / "1" / "model.onnx"):
        os.utime(each, ns=(0, 0))
    assert look(layout, "net", now_ns=2 * S).labels == {"y": ("a",)}
    os.utime(path, ns=(3 * S, 3 * S))
    assert look(layout, "net", now_ns=3 * S).settling


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "labels.txt is not in the model's folder"),
        (b"\xff", "is not UTF-8"),
        (b"x" * (MAX_FILE_BYTES + 1), "it may have 1,048,576"),
        (b"a\n" + b"x" * 300, "has more than 256 characters in line 2"),
    ],
)
def test_what_can_not_be_used_costs_the_labels_alone(
    layout: Layout, content: bytes | None, says: str
) -> None:
    if content is not None:
        write(layout, content)
    found: FoundModel = look(layout, "net", now_ns=LATER_NS)
    assert found.chosen == (1,)
    assert not found.fault
    assert found.labels == {}
    (warning,) = found.warnings
    assert says in warning
    assert "label_filename of output 'y'" in warning
