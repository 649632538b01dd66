"""Compiled code is used when it is of the source that is there, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.native import store
from mainspring.native.builder import KEPT, CannotCompile, check_tools
from tests.native.package import PAIR, run, start, write

BUILD = "print(builder.build(unit))"
ASK = """
from mainspring.inner import options, pair
kinds = ["Python" if module.__file__.endswith(".py") else "compiled" for module in (pair, options)]
print(pair.pair(), *kinds, found.loaded(unit).use.value)
"""
COMPILED = "(3, 6) compiled Python compiled"
AS_PYTHON = "(3, 6) Python Python"


def can_compile() -> bool:
    try:
        check_tools()
    except CannotCompile:
        return False
    return True


pytestmark = pytest.mark.skipif(not can_compile(), reason="mypy, a C compiler or Python.h is missing")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, compiled by two builders at once."""
    root = write(tmp_path_factory.mktemp("package"))
    builders = [start(root, BUILD) for _ in range(2)]
    said = sorted(builder.communicate(timeout=120)[0].strip() for builder in builders)
    assert [builder.returncode for builder in builders] == [0, 0]
    assert said[0].startswith("compiled 2 modules in "), "one of them compiles"
    assert said[1].startswith("compiled ") or said[1] == "None"
    return root


@pytest.fixture
def library(package: Path) -> Iterator[Path]:
    """The compiled library, which is put right again after the test."""
    (file,) = (package.parent / "store").glob("little-*/*.so")
    content = file.read_bytes()
    yield file
    file.write_bytes(content)


def test_two_builders_at_once_leave_one_result(package: Path) -> None:
    left = sorted(path.name for path in (package.parent / "store").iterdir())
    assert left[1:] == ["lock"]
    assert left[0].startswith("little-")


def test_compiled_code_is_served_and_structs_stay_python(package: Path) -> None:
    assert run(package, ASK)[0] == COMPILED


def test_what_is_compiled_is_not_compiled_again(package: Path) -> None:
    assert run(package, BUILD)[0] == "None"


def test_edited_source_runs_as_python_until_it_is_what_it_was(package: Path) -> None:
    constants = package / "outer/constants.py"
    try:
        constants.write_text("STEP = 4\n")
        assert run(package, ASK)[0] == "(4, 8) Python Python missing"
    finally:
        constants.write_text("STEP = 3\n")
    assert run(package, ASK)[0] == COMPILED


def test_it_can_be_switched_off(package: Path) -> None:
    assert run(package, ASK, **{store.SWITCH: "0"})[0] == f"{AS_PYTHON} off"


@pytest.mark.parametrize("kept", [0, 10_000])
def test_a_broken_library_is_passed_over_with_a_warning(package: Path, library: Path, kept: int) -> None:
    content = library.read_bytes()
    library.unlink()  # Another process may have this file mapped.
    library.write_bytes(content[:kept])
    out, errors = run(package, ASK)
    assert out == f"{AS_PYTHON} broken"
    assert "RuntimeWarning: two modules will run as Python" in errors
    assert f"remove {library.parent}" in errors


def test_source_that_mypy_refuses_is_named_and_leaves_nothing(package: Path) -> None:
    wrong = package / "inner/wrong.py"
    wrong.write_text("def size() -> int:\n    return 'large'\n")
    try:
        out, _ = run(package, "try: builder.build(unit)\nexcept builder.CannotCompile as error: print(error)")
    finally:
        wrong.unlink()
    assert "mainspring/inner/wrong.py:2: error:" in out
    assert len(list((package.parent / "store").iterdir())) == 2


def test_the_newest_versions_are_kept_and_what_killed_builders_left_is_not(package: Path) -> None:
    folder = package.parent / "store"
    for number in range(KEPT):
        (folder / f"little-old{number}").mkdir()
    (folder / "unfinished-by-a-killed-builder").mkdir()
    pair = package / "inner/pair.py"
    try:
        pair.write_text(PAIR + "\n\nCHANGED = True\n")
        assert run(package, BUILD)[0].startswith("compiled 2 modules")
        assert run(package, ASK)[0] == COMPILED
    finally:
        pair.write_text(PAIR)
    assert len(list(folder.glob("little-*"))) == KEPT
    assert not list(folder.glob("unfinished-*"))
