"""Standard output that no write can stop: a reader that is gone or stands still, a full disk, none at all."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.cli.output import Output


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def stream(output: Output) -> io.TextIOWrapper:
    return io.TextIOWrapper(output, "utf-8", "backslashreplace", line_buffering=True)


def test_what_is_read_comes_as_it_is(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    print("a line\nand", "µ", file=stream(output), flush=True)
    assert os.read(pipe[0], 100).decode() == "a line\nand µ\n"
    assert output.lost == 0


def test_a_reader_that_is_gone_costs_the_lines_alone(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    output = Output(pipe[1])
    said = stream(output)
    for _ in range(3):
        print("nobody reads this", file=said, flush=True)
    assert output.lost == 3


def test_a_reader_that_stands_still_is_waited_for_once_and_told_of_what_it_missed(
    pipe: tuple[int, int],
) -> None:
    os.set_blocking(pipe[1], False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe[1], b"x" * 4096)
    os.set_blocking(pipe[1], True)
    output = Output(pipe[1], patience_s=0.01)
    said = stream(output)
    for number in range(50):
        print("line", number, file=said, flush=True)
    assert output.lost == 50
    os.read(pipe[0], 1 << 20)
    print("again", file=said, flush=True)
    assert os.read(pipe[0], 1 << 20).decode() == (
        "mainspring: 50 lines before this one could not be written here\nagain\n"
    )
    assert output.lost == 0


def test_a_full_disk_costs_the_lines_alone() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        output = Output(full.fileno())
        print("one\ntwo", file=stream(output), flush=True)
        assert output.lost == 2


BEGUN = "from mainspring.cli.output import keep_saying, open_missing; open_missing(); "
BEGUN += "keep_saying(patience_s=0.1); "


def test_a_descriptor_that_is_closed_at_the_start_is_no_files_later(tmp_path: Path) -> None:
    program = (
        f"import sys; {BEGUN} file = open({str(tmp_path / 'kept')!r}, 'w'); print('out', flush=True); "
        "print('err', file=sys.stderr); file.write('mine'); sys.exit(file.fileno() < 3)"
    )
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, program], check=False)
    assert done.returncode == 0
    assert (tmp_path / "kept").read_text() == "mine"


@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_log_says_in_its_own_form_how_many_lines_it_lost(format_: str, tmp_path: Path) -> None:
    """The log's file system is full and has room again: a limit of the file's size stands for it."""
    log = tmp_path / "log"
    program = (
        f"import logging, resource, signal; {BEGUN}"
        "from mainspring.cli.output import set_up_logging; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"set_up_logging('worker-0', 'WARNING', {format_!r}); "
        "limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)); "
        "limit(0); [logging.warning('lost') for _ in range(4)]; "
        "limit(resource.RLIM_INFINITY); logging.warning('kept')"
    )
    with log.open("wb") as file:
        subprocess.run([sys.executable, "-c", program], stderr=file, check=True, timeout=60)
    told, kept = log.read_text().splitlines()
    assert "4 lines before this one could not be written here" in told
    assert "kept" in kept
    assert told.startswith("{") is kept.startswith("{") is (format_ == "json")
