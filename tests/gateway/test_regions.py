"""Regions of shared memory: whose they are, what can be read and written there, and how many there may be."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.memory import Memory
from mainspring.gateway.oip.compression import TooLarge
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.spans import RegionError, SharedInput, Span
from mainspring.gateway.oip.steps import whole
from mainspring.gateway.regions import Owner, Regions
from mainspring.messages.model import TensorSpec
from mainspring.transport.slab import LEAST_SHARED_BYTES
from mainspring.transport.tokens import Gate, Token

ME = Owner(os.getuid(), b"")
OTHER_TOKEN = Owner(os.getuid(), b"other")
OTHER_USER = Owner(os.getuid() + 1, b"")
SIZE = 1 << 20


def made(folder: Path, **options: Any) -> Regions:
    (folder / "file").write_bytes(bytes(range(256)) * (SIZE // 256))
    return Regions(GatewayConfig(**options), Gate(), folder=folder)


@pytest.fixture
def regions(tmp_path: Path) -> Regions:
    return made(tmp_path)


def open_below(folder: Path) -> int:
    """Return how many files of a folder this process has open."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # Closed meanwhile.
            found += os.readlink(f"/proc/self/fd/{each}").startswith(f"{folder}/")
    return found


def refused(status: int, match: str, action: Callable[[], object]) -> None:
    with pytest.raises(RegionError, match=match) as caught:
        action()
    assert caught.value.status == status


def read(regions: Regions, span: Span, owner: Owner = ME, limit_bytes: int = SIZE) -> bytes:
    spec = TensorSpec("x", "uint8", (span.size,))
    parts = regions.parts(owner, [span])
    (found,) = whole(regions.filled([SharedInput(span, spec, span.size)], parts, limit_bytes))
    return bytes(found)


def test_a_region_is_read_and_written_where_it_was_registered(regions: Regions, tmp_path: Path) -> None:
    regions.register(ME, "r", "/file", 256, 700_000)
    content = (tmp_path / "file").read_bytes()
    assert read(regions, Span("r", 5, 9)) == content[261:270]
    assert read(regions, Span("r", 0, 700_000)) == content[256:700_256]
    parts = regions.parts(ME, [span := Span("r", 10, 690_000)])
    whole(parts[span].write("y", [b"abc", memoryview(b"d" * 600_000)]))
    after = (tmp_path / "file").read_bytes()
    assert after == content[:266] + b"abc" + b"d" * 600_000 + content[600_269:]


def test_large_ones_are_read_to_where_workers_find_them(tmp_path: Path) -> None:
    made(tmp_path)
    memory = Memory(16 << 20)
    regions = Regions(GatewayConfig(), Gate(), memory, tmp_path)
    regions.register(ME, "r", "/file", 0, SIZE)
    for size, there in ((LEAST_SHARED_BYTES, True), (LEAST_SHARED_BYTES - 1, False)):
        span = Span("r", 1, size)
        frames = [SharedInput(span, TensorSpec("x", "uint8", (size,)), size)]
        (found,) = whole(regions.filled(frames, regions.parts(ME, [span]), SIZE))
        assert bytes(found) == (tmp_path / "file").read_bytes()[1 : 1 + size]
        assert (memory.find(memoryview(found)) is not None) is there
    memory.close()


def test_large_ones_are_worked_off_in_slices(regions: Regions) -> None:
    regions.register(ME, "r", "file", 0, SIZE)
    span = Span("r", 0, SIZE)
    parts = regions.parts(ME, [span])
    steps = regions.filled([SharedInput(span, TensorSpec("x", "uint8", (SIZE,)), SIZE)], parts, SIZE)
    assert sum(1 for _ in steps) == 1
    assert sum(1 for _ in parts[span].write("y", [bytes(SIZE // 4)] * 4)) == 1


def test_statuses_are_those_of_what_was_registered(regions: Regions) -> None:
    regions.register(ME, "a", "/file", 0, 8)
    regions.register(ME, "b", "/file", 8, 8)
    assert [(each.name, each.key, each.offset, each.byte_size) for each in regions.status(ME)] == [
        ("a", "/file", 0, 8),
        ("b", "/file", 8, 8),
    ]
    assert [each.name for each in regions.status(ME, "b")] == ["b"]
    regions.unregister(ME, "a")
    regions.unregister(ME, "a")
    refused(404, "no shared memory region 'a'", lambda: regions.status(ME, "a"))
    regions.unregister(ME)
    assert regions.status(ME) == []


@pytest.mark.parametrize("owner", [OTHER_TOKEN, OTHER_USER])
def test_nobody_else_has_it(regions: Regions, owner: Owner) -> None:
    regions.register(ME, "r", "/file", 0, 8)
    assert regions.status(owner) == []
    refused(404, "no shared memory region 'r'", lambda: regions.status(owner, "r"))
    refused(404, "no shared memory region 'r'", lambda: regions.parts(owner, [Span("r", 0, 8)]))
    regions.unregister(owner, "r")
    regions.unregister(owner)
    assert len(regions.status(ME)) == 1


def test_two_tokens_may_use_one_name(regions: Regions) -> None:
    regions.register(ME, "r", "/file", 0, 8)
    regions.register(OTHER_TOKEN, "r", "/file", 8, 4)
    refused(409, "already", lambda: regions.register(ME, "r", "/file", 0, 8))
    assert read(regions, Span("r", 0, 4), OTHER_TOKEN) == bytes(range(8, 12))


def test_of_another_user_s_file_as_little_is_said_as_of_none(regions: Regions) -> None:
    """Somebody who asks must not learn which files there are, or how long they are."""
    said = set()
    for key in ("/file", "/none"):
        with pytest.raises(RegionError) as caught:
            regions.register(OTHER_USER, "r", key, 0, SIZE * 9)
        said.add((caught.value.status, caught.value.detail.replace(key, "KEY")))
    assert len(said) == 1


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "//file",
        "/../file",
        "..",
        ".",
        "/sub/file",
        "/link",
        "/folder",
        "/pipe",
        "/file\0",
        "a" * 300,
    ],
)
def test_only_files_of_the_folder_itself_can_be_shared(regions: Regions, tmp_path: Path, key: str) -> None:
    for name in ("sub", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "sub" / "file").write_bytes(bytes(8))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    before = open_below(tmp_path)
    refused(400, "can't be opened: a key is", lambda: regions.register(ME, "r", key, 0, 8))
    assert open_below(tmp_path) == before


@pytest.mark.parametrize(
    ("offset", "size"), [(0, SIZE + 1), (SIZE, 1), (1, SIZE), (0, 0), (-1, 8), (0, -8), (1 << 62, 1 << 62)]
)
def test_a_region_is_within_its_file(regions: Regions, offset: int, size: int) -> None:
    refused(400, "region 'r'", lambda: regions.register(ME, "r", "/file", offset, size))
    assert regions.status(ME) == []


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_tensor_is_within_its_region(
    tmp_path_factory: pytest.TempPathFactory, offset: int, size: int
) -> None:
    regions = made(tmp_path_factory.mktemp("shm"))
    regions.register(ME, "r", "/file", 50, 100)
    span = Span("r", offset, size)
    if offset < 100 and offset + size <= 100:
        (part,) = regions.parts(ME, [span]).values()
        assert part.at == 50 + offset
    else:
        refused(400, "ends behind them", lambda: regions.parts(ME, [span]))


def test_a_file_that_is_cut_short_kills_nobody(regions: Regions, tmp_path: Path) -> None:
    regions.register(ME, "r", "/file", 0, SIZE)
    spans = Span("r", 0, 1_000), Span("r", 0, SIZE)
    parts = regions.parts(ME, spans)
    os.truncate(tmp_path / "file", 999)
    for span in spans:
        with pytest.raises(Unfit, match="has become shorter than"):
            read(regions, span)
        with pytest.raises(Unfit, match="has become shorter than"):
            whole(parts[span].write("y", [bytes(1_000)]))
    assert (tmp_path / "file").stat().st_size == 999, "it must not be made longer"
    whole(parts[spans[1]].write("y", [b"z" * 999]))
    assert (tmp_path / "file").read_bytes() == b"z" * 999


def test_an_output_that_does_not_fit_is_not_written(regions: Regions, tmp_path: Path) -> None:
    before = (tmp_path / "file").read_bytes()
    regions.register(ME, "r", "/file", 0, SIZE)
    (part,) = regions.parts(ME, [Span("r", 8, 4)]).values()
    with pytest.raises(Unfit, match=r"output 'y' \(4 bytes\) should be at least 5 bytes to hold the results"):
        whole(part.write("y", [b"abc", b"de"]))
    assert (tmp_path / "file").read_bytes() == before


def test_a_device_that_is_full_is_said_to_be(regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    regions.register(ME, "r", "/file", 0, 8)
    (part,) = regions.parts(ME, [Span("r", 0, 8)]).values()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Unfit, match=r"output 'y' can't be written to .* 'r': No space left"):
        whole(part.write("y", [b"abc"]))


def test_what_is_unregistered_or_removed_stays_for_requests_under_way(
    regions: Regions, tmp_path: Path
) -> None:
    regions.register(ME, "r", "/file", 0, 8)
    (part,) = regions.parts(ME, [Span("r", 0, 8)]).values()
    (tmp_path / "kept").hardlink_to(tmp_path / "file")
    (tmp_path / "file").unlink()
    assert read(regions, Span("r", 0, 2)) == b"\0\1"
    regions.unregister(ME)
    refused(404, "no shared memory region", lambda: regions.parts(ME, [Span("r", 0, 8)]))
    whole(part.write("y", [b"abc"]))
    assert (tmp_path / "kept").read_bytes()[:4] == b"abc\3"
    assert open_below(tmp_path) == 1
    gc.disable()
    try:
        del part
        assert open_below(tmp_path) == 0, "it is closed at once"
    finally:
        gc.enable()


def test_number_and_bytes_are_bounded(tmp_path: Path) -> None:
    regions = made(tmp_path, max_shared_regions=3, max_shared_bytes=100)
    regions.register(ME, "a", "/file", 0, 60)
    refused(503, "max_shared_bytes, 100", lambda: regions.register(ME, "b", "/file", 0, 41))
    regions.register(ME, "b", "/file", 0, 20)
    regions.register(OTHER_TOKEN, "c", "/file", 0, 20)
    refused(503, "max_shared_regions, 3", lambda: regions.register(ME, "d", "/file", 0, 1))
    (part,) = regions.parts(ME, [Span("a", 0, 8)]).values()
    regions.unregister(ME)
    regions.register(ME, "d", "/file", 0, 80)
    refused(503, "registered or in use", lambda: regions.register(ME, "e", "/file", 0, 1))
    del part
    refused(503, "max_shared_bytes", lambda: regions.register(ME, "e", "/file", 0, 1))


def test_regions_of_tokens_that_are_gone_make_room(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8))
    digest = hashlib.sha256(b"token").digest()
    gate = Gate([Token(name="t", sha256=digest.hex(), models=("*",))])
    regions = Regions(GatewayConfig(max_shared_regions=1), gate, folder=tmp_path)
    regions.register(Owner(os.getuid(), digest), "a", "/file", 0, 8)
    refused(503, "max_shared_regions", lambda: regions.register(ME, "b", "/file", 0, 8))
    gate.replace([])
    regions.register(ME, "b", "/file", 0, 8)


def test_what_is_read_at_one_time_is_bounded(tmp_path: Path) -> None:
    regions = made(tmp_path, max_in_flight_bytes=SIZE + 1)
    regions.register(ME, "r", "/file", 0, SIZE)
    span = Span("r", 0, SIZE)
    with pytest.raises(TooLarge, match="inputs in shared memory has more than 1,048,575"):
        read(regions, span, limit_bytes=SIZE - 1)
    parts = regions.parts(ME, [span])
    slow = regions.filled([SharedInput(span, TensorSpec("x", "uint8", (SIZE,)), SIZE)], parts, SIZE)
    next(slow)
    with pytest.raises(Unfit, match="inputs of 1,048,576 bytes are being read"):
        read(regions, Span("r", 0, 2))
    assert read(regions, Span("r", 0, 1)) == b"\0"
    slow.close()
    assert len(read(regions, span)) == SIZE


def test_scripts_find_triton_s_words(tmp_path: Path) -> None:
    regions = made(tmp_path, compatibility="triton")
    regions.register(ME, "r", "/file", 0, 8)
    for match, action in (
        (r"^shared memory region 'r' already in manager", lambda: regions.register(ME, "r", "/file", 0, 8)),
        (r"^Unable to open shared memory region: '/no'", lambda: regions.register(ME, "s", "/no", 0, 8)),
        (
            r"^failed to register shared memory region 's': invalid args",
            lambda: regions.register(ME, "s", "/file", 1, SIZE),
        ),
        (r"^Unable to find system shared memory region: 's'", lambda: regions.status(ME, "s")),
        (r"^Unable to find shared memory region: 's'", lambda: regions.parts(ME, [Span("s", 0, 1)])),
        (r"^Invalid offset for shared memory region: 'r'", lambda: regions.parts(ME, [Span("r", 8, 1)])),
        (
            r"^Invalid offset \+ byte size for shared memory region: 'r'",
            lambda: regions.parts(ME, [Span("r", 1, 8)]),
        ),
    ):
        with pytest.raises(RegionError, match=match):
            action()
