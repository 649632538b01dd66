"""Compiled code is used where it is of the sources that are there, and only then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from mainspring import extras, native
from tests.native.package import ASK, ask, compile_package, run, start, write

COMPILED = "(3, 6) compiled Python compiled"
AS_PYTHON = "(3, 6) Python Python"

needs_compiler = pytest.mark.skipif(
    bool(extras.missing_compiler()) or find_spec("mypyc") is None,
    reason="mypy, a C compiler or Python.h is missing",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, compiled by two builders at once."""
    folder = write(tmp_path_factory.mktemp("package"))
    builders = [start(folder, "setup.py", "native") for _ in range(2)]
    said = sorted(builder.communicate(timeout=600)[0].strip() for builder in builders)
    assert [builder.returncode for builder in builders] == [0, 0]
    assert said[0].startswith("native: compiled 2 modules in "), "one of them compiles"
    assert said[1].endswith(": compiled already")
    return folder


@pytest.fixture
def stamp(built: Path) -> Iterator[Path]:
    """The stamp of the build, which is put right again after the test."""
    (file,) = built.glob("build/native/*/core/stamp")
    content = file.read_text()
    yield file
    file.write_text(content)


@needs_compiler
def test_two_builders_at_once_leave_one_result(built: Path) -> None:
    assert sorted(path.name for path in built.glob("build/native/*/*")) == ["core", "lock"]
    assert sorted(path.name for path in built.glob("build/*")) == ["native"]


@needs_compiler
def test_compiled_code_is_used_and_structs_stay_python(built: Path) -> None:
    assert ask(built) == (COMPILED, "")


@needs_compiler
@pytest.mark.parametrize("path", ["mainspring/outer/constants.py", "mainspring/inner/counter.py", "setup.py"])
def test_a_stale_build_is_refused_until_its_sources_are_what_they_were(built: Path, path: str) -> None:
    source = built / path
    content = source.read_text()
    source.write_text(content.replace("STEP = 3", "STEP = 4") + "# changed\n")
    try:
        out, errors = ask(built)
        assert out == f"{'(4, 8)' if 'STEP' in content and 'outer' in path else '(3, 6)'} Python Python stale"
        assert errors.count("\n") == 1
        assert f"plain Python, since {path} was changed after compiling; " in errors
        assert str(built / "setup.py") in errors, "what compiles it is named"
    finally:
        source.write_text(content)
    assert ask(built) == (COMPILED, "")


@needs_compiler
def test_of_a_tree_of_processes_one_reports_a_stale_build(built: Path, stamp: Path) -> None:
    stamp.write_text(re.sub(r"\w{16} Python\n", f"{0:016x} Python\n", stamp.read_text()))
    program = f"""
import subprocess, sys
from mainspring.inner import pair
for _ in range(2):
    print(subprocess.run([sys.executable, "-c", {ASK!r}], capture_output=True, text=True, check=True))
"""
    out, errors = run(built, "-c", program)
    assert "since Python was changed after compiling" in errors
    assert out.count(f"stdout='{AS_PYTHON} stale\\n', stderr=''") == 2


@needs_compiler
def test_a_module_that_was_removed_is_not_found(built: Path) -> None:
    source, aside = built / "mainspring/inner/counter.py", built / "aside.py"
    source.rename(aside)
    try:
        out, _ = run(
            built, "-c", "try: import mainspring.inner.counter\nexcept ModuleNotFoundError: print('gone')"
        )
        assert out == "gone"
    finally:
        aside.rename(source)


@needs_compiler
def test_it_can_be_switched_off(built: Path) -> None:
    assert ask(built, **{native.SWITCH: "0"}) == (f"{AS_PYTHON} off", "")
    said, _ = compile_package(built, CC="no-such-compiler", **{native.SWITCH: "0"})
    assert said == "native: MAINSPRING_NATIVE=0: everything runs as Python"


REFUSED = "def size() -> int:\n    return 'large'\n\n\nclass Base:\n    pass\n"
LATE_HEIR = "from mainspring.inner.{base} import Base\n\n\nclass Heir(Base):\n    pass\n\n\n"
BASE = "class Base:\n    pass\n"
OPEN_BASE = (
    f"from mypy_extensions import mypyc_attr\n\n\n@mypyc_attr(allow_interpreted_subclasses=True)\n{BASE}"
)
SOURCES = {
    "alone": REFUSED,
    "nested": "def nest() -> object:\n    class Inner:\n        pass\n\n    return Inner\n",
    "wrong": REFUSED,
    "heir": LATE_HEIR.format(base="wrong"),
    "base": BASE,
    "late": LATE_HEIR.format(base="base") + REFUSED.partition("class")[0],
    "open_base": OPEN_BASE,
    "open_late": LATE_HEIR.format(base="open_base") + REFUSED.partition("class")[0],
}
"""Modules of which some can not be compiled, with heirs and bases of theirs."""
LEFT_OUT = {
    "alone": "mypyc refuses line 2: Incompatible return value type",
    "nested": "mypyc refuses line 2: ",
    "wrong": "mypyc refuses line 2: ",
    "heir": "its classes derive from those of mainspring.inner.wrong",
    "base": "the classes of mainspring.inner.late derive from its own",
    "late": "mypyc refuses line 9: ",
    "open_late": "mypyc refuses line 9: ",
}


@needs_compiler
def test_a_module_that_can_not_be_compiled_costs_itself_and_its_relatives(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for name, source in SOURCES.items():
        (folder / f"mainspring/inner/{name}.py").write_text(source)
    out, errors = compile_package(folder)
    assert out.startswith("native: compiled 3 modules in "), "the two of the package and the open base"
    assert errors.count("\n") == len(LEFT_OUT), "one line for each"
    for name, why in LEFT_OUT.items():
        assert f"mainspring: mainspring.inner.{name} stays Python: {why}" in errors
    assert ask(folder)[0] == "(3, 6) compiled Python partly"
    imported = "".join(f"import mainspring.inner.{name}; " for name in SOURCES)
    assert run(folder, "-c", f"{imported}print('all')")[0].endswith("all")
    assert compile_package(folder)[0].endswith(": compiled already")
    for name in ("alone", "nested", "wrong", "late", "open_late"):
        (folder / f"mainspring/inner/{name}.py").write_text(BASE)
    assert compile_package(folder)[0].startswith(f"native: compiled {2 + len(SOURCES)} modules in ")
    assert ask(folder) == (COMPILED, "")


@needs_compiler
def test_a_module_that_the_c_compiler_fails_at_costs_itself_alone(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "mainspring/inner/wrong.py").write_text("def size() -> int:\n    return 1\n")
    compiler = folder / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *___wrong.c*) exit 1;; esac\nexec gcc "$@"\n')
    compiler.chmod(0o755)
    _, errors = compile_package(folder, CC=str(compiler))
    assert "mainspring.inner.wrong stays Python: the C compiler failed" in errors
    assert ask(folder)[0] == "(3, 6) compiled Python partly"


@needs_compiler
def test_what_is_wrong_in_a_module_that_is_only_imported_costs_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "mainspring/outer/constants.py").write_text("STEP = 3\nSIZE: int = 'large'\n")
    out, errors = compile_package(folder)
    assert (out[:27], errors) == ("native: compiled 2 modules ", "")


def test_source_with_an_error_of_syntax_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "mainspring/inner/wrong.py").write_text("def size(:\n")
    _, errors = compile_package(folder)
    assert "the worker's core: plain Python, at 3 to 4 times the CPU: " in errors
    assert "wrong.py, line 1" in errors
    assert errors.count("\n") == 1


@needs_compiler
def test_a_source_that_changes_while_it_is_compiled_leaves_no_build(tmp_path: Path) -> None:
    folder = write(tmp_path)
    constants = folder / "mainspring/outer/constants.py"
    compiler = folder / "compiler"
    compiler.write_text(f"#!/bin/sh\necho 'STEP = 5' > {constants}\nexec gcc \"$@\"\n")
    compiler.chmod(0o755)
    _, errors = compile_package(folder, CC=str(compiler))
    assert "its source was changed meanwhile" in errors
    assert ask(folder) == ("(5, 10) Python Python missing", "")


def test_without_a_build_all_runs_as_python_and_nothing_is_said(tmp_path: Path) -> None:
    assert ask(write(tmp_path)) == (f"{AS_PYTHON} missing", "")


@pytest.mark.parametrize("compiler", ["no-such-compiler -O2", "false"])
def test_set_up_goes_on_without_a_compiler(tmp_path: Path, compiler: str) -> None:
    folder = write(tmp_path)
    _, errors = compile_package(folder, CC=compiler)
    assert "the scheduler and the worker's core: plain Python, at 3 to 4 times the CPU: " in errors
    if compiler != "false":
        assert "missing: the C compiler 'no-such-compiler' (apt-get install gcc" in errors
        assert errors.count("\n") == 1
    assert ask(folder) == (f"{AS_PYTHON} missing", "")


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "build").write_text("")
    _, errors = compile_package(folder)
    assert str(folder / "build") in errors
    assert errors.count("\n") == 1
