"""The architecture as a test: who may import whom, what the pure cores may not touch, how long files get.

`docs/architecture.md` explains the tables.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import house

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "messages": set(),
    "transport": {"messages"},
    "cluster": {"messages"},
    "scheduler": {"cluster", "messages"},
    "telemetry": {"cluster", "messages"},
    "controller": {"cluster", "scheduler", "messages", "telemetry", "transport"},
    "worker": {"messages", "transport", "compiler.artifact"},
    "gateway": {"messages", "transport", "telemetry.bounded", "selection"},
    # A client of the gateway's host connects to it as processes connect to each other.
    "client": {"messages", "transport"},
    "compiler": {"messages"},
    "repository": {"messages", "transport", "compiler"},
    "traces": {"client", "messages", "telemetry"},
    "console": {
        "messages",
        "transport",
        "telemetry",
        "cluster",
    },
    "simulator": {
        "cluster",
        "scheduler",
        "worker",
        "gateway.config",
        "gateway.core",
        "messages",
        "traces",
        "telemetry",
        "compiler.artifact",
        # A town has all processes in one (`simulator/town`).
        *("client.transports", "controller", "gateway", "transport"),
    },
    "planner": {"simulator", "traces", "messages", "client"},
    "selection": {"messages"},
}
"""Folders, or single modules of folders, that each folder may import beside itself."""

ANY_MAY_IMPORT = {"extras"}
"""Modules beside the folders, which import nothing of ours."""

MAY_IMPORT_ANYTHING = ("cli", "experiments", "tests")

FOLDERS = (*MAY_IMPORT, "cli", "experiments")

PURE_FOLDERS = (
    *("cluster", "scheduler", "messages", "console/view", "console/queries", "worker/core"),
    *("gateway/core", "gateway/oip", "selection"),
)
"""Cores that several drivers run: no clock, randomness, thread, socket or file."""

IMPURE_MODULES = {
    "time",
    "datetime",
    "random",
    "secrets",
    "threading",
    "multiprocessing",
    "concurrent",
    "asyncio",
    "socket",
    "select",
    "zmq",
    "os",
    "pathlib",
    "io",
    "tempfile",
    "subprocess",
    "logging",
}
IMPURE_CALLS = {"open", "print", "input", "hash", "id"}
"""``hash`` and ``id`` differ from run to run, so a decision that hangs on one can't be replayed."""

SAYS_PURE = re.compile(r"\bPure[.:]")
"""How a module, class or function says that it is free of these, though no driver may depend on it."""

FILE_LINES = 500
FUNCTION_LINES = 50

HOUSE = {
    "lines of the product": 151_380,
    "files of the product": 752,
    "lines of the lab": 29_440,
    "files on the way of a request over ZeroMQ": 78,
    "files on the way of a request over HTTP": 81,
}
"""What the house may have at most (`measured_house`). Goals: 100,000 lines and 560 files of the product,
22,000 lines of the lab, 80 files over ZeroMQ and 85 over HTTP. Whoever needs more makes room, or raises a
number in a commit that says why. Keys and options have theirs in `tests/cli/documents/test_sample.py`."""

FROM_THE_LAB = "mainspring.experiments.gpu_check.rehearsal"
"""What tests of the product may use of the lab: the stand-in of a GPU that `gpu_check` is shipped with."""

LONG_FILES: dict[str, str] = {}
"""Files past `FILE_LINES`, each with the reason."""

LONG_FUNCTIONS: dict[str, str] = {}
"""Functions past `FUNCTION_LINES` as ``path:name``, each with the reason."""

NOT_FILES = {"dist/", "events/", "out/tests/"}
"""Folders that the documentation names and that the repository does not have."""

UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
"""Marks of what was left for later; written apart here, because this file is looked through too."""

BANNED_FILE_NAMES = {"utils.py", "helpers.py", "misc.py", "common.py"}


def python_files(*folders: str) -> list[str]:
    """Return the repository's Python files in these real folders as relative paths, sorted."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts)


@functools.cache
def tree(path: str) -> ast.Module:
    """Return the file's syntax tree."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


@functools.cache
def imported_modules(path: str) -> tuple[str, ...]:
    """Return the full name of every module, or member of a module, that the file imports anywhere."""
    found: list[str] = []
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names]
            case ast.ImportFrom(module=module, level=0, names=names):
                found += [f"{module}.{alias.name}" for alias in names]
            case ast.ImportFrom():
                found.append(f"relative import at line {node.lineno}")
    return tuple(found)


def functions(path: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function of the file with its dotted name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
            name = getattr(child, "name", None) if isinstance(child, ast.ClassDef | ast.FunctionDef) else None
            yield from walk(child, f"{prefix}{name}." if name else prefix)

    yield from walk(tree(path), "")


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_folder_imports_only_what_it_may(folder: str) -> None:
    allowed = {f"mainspring.{name}" for name in MAY_IMPORT[folder] | ANY_MAY_IMPORT | {folder}}
    wrong = [
        f"{path} imports {module}"
        for path in python_files(folder)
        for module in imported_modules(path)
        if module.split(".")[0] == "mainspring"
        and not any(module == name or module.startswith(f"{name}.") for name in allowed)
    ]
    assert not wrong, f"{folder} may import {sorted(MAY_IMPORT[folder]) or 'nothing of ours'}: {wrong}"


def test_imports_use_the_package_name() -> None:
    # To parse all tests would take longer than all else here: only what may have such an import is parsed.
    folders = "|".join(FOLDERS)
    suspect = re.compile(rf"^\s*import\s.*\b({folders})\b|^\s*from\s+(\.|({folders})\b)", re.MULTILINE)
    wrong = [
        f"{path}: {module}"
        for path in python_files(*FOLDERS, "tests", "mainspring")
        if suspect.search((ROOT / path).read_text(encoding="utf-8"))
        for module in imported_modules(path)
        if module.split(".")[0] in FOLDERS or module.startswith("relative import")
    ]
    assert not wrong, f"import mainspring.<folder>.<module> instead: {wrong}"


def test_every_pure_folder_has_files() -> None:
    for folder in PURE_FOLDERS:
        assert python_files(folder), f"{folder} has no files: PURE_FOLDERS is out of date"


@pytest.mark.parametrize("path", python_files(*PURE_FOLDERS))
def test_pure_core_touches_nothing_outside(path: str) -> None:
    wrong = [module for module in imported_modules(path) if module.split(".")[0] in IMPURE_MODULES]
    wrong += [module for module in imported_modules(path) if module.startswith("numpy.random")]
    wrong += [
        f"{node.func.id}() at line {node.lineno}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]
    assert not wrong, f"{path} is a pure core and uses {wrong}"


def reached(path: str) -> Iterator[tuple[str, str]]:
    """Yield the modules from outside that a file imports, by way of ours too, each with ours that does it.

    What is imported for types alone does not count.
    """
    seen, left = {path}, [path]
    while left:
        file = left.pop()
        for module in imported_when_run(file):
            found = file_of(module)
            if found is None:
                yield module, file
            elif found not in seen:
                seen.add(found)
                left.append(found)


@functools.cache
def imported_when_run(path: str) -> tuple[str, ...]:
    """Return the modules, and their members, that a file imports other than for types."""
    for_types = {
        id(node)
        for block in ast.walk(tree(path))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: list[str] = []
    for node in ast.walk(tree(path)):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)


@functools.cache
def file_of(module: str) -> str | None:
    """Return the file of a module of ours; None for any other, and for a member of one."""
    if not module.startswith("mainspring."):
        return None
    path = module.removeprefix("mainspring.").replace(".", "/")
    return next((each for each in (f"{path}.py", f"{path}/__init__.py") if (ROOT / each).is_file()), None)


def impurities(path: str) -> set[str]:
    """Return the impure modules that a file imports, by way of ours too, each with ours that does it."""
    return {
        f"{module} by {by}"
        for module, by in reached(path)
        if module.split(".")[0] in IMPURE_MODULES and not by.startswith("mainspring/")
    }


@pytest.mark.parametrize("folder", PURE_FOLDERS)
def test_what_pure_cores_import_is_pure_too(folder: str) -> None:
    wrong = {each for path in python_files(folder) for each in impurities(path)}
    assert not wrong, f"{folder} reaches {sorted(wrong)}"


def test_what_says_that_it_is_pure_is_so() -> None:
    saying = [
        path
        for path in python_files(*FOLDERS)
        if "Pure" in (ROOT / path).read_text(encoding="utf-8")
        and any(
            SAYS_PURE.search(ast.get_docstring(node) or "")
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        )
    ]
    wrong = {path: sorted(found) for path in saying if (found := impurities(path))}
    assert not wrong, f"these say that they are pure: {wrong}"


@pytest.mark.parametrize("path", python_files(*PURE_FOLDERS))
def test_pure_core_does_not_iterate_over_sets(path: str) -> None:
    wrong = [
        f"line {node.iter.lineno}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.For | ast.comprehension)
        and (
            isinstance(node.iter, ast.Set | ast.SetComp)
            or (isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) in {"set", "frozenset"})
        )
    ]
    assert not wrong, f"{path} iterates over a set, whose order is not a decision of ours: {wrong}"


def test_no_file_grows_past_its_budget() -> None:
    lengths = {
        path: len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for path in python_files(*FOLDERS, "mainspring", "tests")
    }
    over = {path: length for path, length in lengths.items() if length > FILE_LINES}
    assert over.keys() == LONG_FILES.keys(), f"past {FILE_LINES} lines or no longer so: {over}"


def measured_house() -> dict[str, int]:
    """Return the lines and files of the product (all but the lab and tests), the lines of the lab, and the
    files on a request's way that docs/architecture.md records from `make request-path`."""
    product = house.product()
    return {
        "lines of the product": house.lines(product),
        "files of the product": len(product),
        "lines of the lab": house.lines(house.files()[house.LAB]),
        "files on the way of a request over ZeroMQ": recorded_path("ZeroMQ"),
        "files on the way of a request over HTTP": recorded_path("HTTP"),
    }


def recorded_path(protocol: str) -> int:
    """Return how many files a request passes, as docs/architecture.md says."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    found = re.search(rf"(\d+) over {protocol}", text)
    assert found, f"docs/architecture.md does not say how many files a request passes over {protocol}"
    return int(found[1])


def test_the_house_does_not_grow_past_its_budget() -> None:
    over = {what: count for what, count in measured_house().items() if count > HOUSE[what]}
    assert not over, f"more than {HOUSE}: {over}"


def test_tests_of_the_product_do_without_the_lab() -> None:
    wrong = [
        f"{path} imports {module}"
        for path in python_files("tests")
        if not path.startswith("tests/experiments/")
        and "mainspring.experiments" in (ROOT / path).read_text(encoding="utf-8")
        for module in imported_modules(path)
        if module.startswith("mainspring.experiments") and not module.startswith(FROM_THE_LAB)
    ]
    assert not wrong, wrong


def test_no_function_grows_past_its_budget() -> None:
    over = {
        f"{path}:{name}": length
        for path in python_files(*FOLDERS, "mainspring")
        for name, node in functions(path)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    }
    assert over.keys() == LONG_FUNCTIONS.keys(), f"past {FUNCTION_LINES} lines or no longer so: {over}"


@pytest.mark.parametrize("folder", [*FOLDERS, "mainspring"])
def test_everything_public_has_a_docstring(folder: str) -> None:
    missing = []
    for path in python_files(folder):
        scopes: list[ast.Module | ast.ClassDef] = [tree(path)]
        if path.count("/") or scopes[0].body:
            missing += [] if ast.get_docstring(scopes[0]) else [path]
        while scopes:
            for node in scopes.pop().body:
                public = isinstance(
                    node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                ) and not node.name.startswith("_")
                if public and not ast.get_docstring(node):  # type: ignore[arg-type]
                    missing.append(f"{path}:{node.name}")  # type: ignore[attr-defined]
                if public and isinstance(node, ast.ClassDef):
                    scopes.append(node)
    assert not missing, f"no docstring: {missing}"


def test_nothing_is_left_for_later() -> None:
    marks = [
        f"{path}:{number}"
        for path in python_files(*FOLDERS, "mainspring", "examples", "tests")
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not marks, f"do it now, or open an issue: {marks}"


def test_module_docstrings_say_something() -> None:
    mute = [
        path
        for path in python_files(*FOLDERS, "mainspring", "examples")
        if len((ast.get_docstring(tree(path)) or "two words").split()) < 2
    ]
    assert not mute, f"say what the file is for: {mute}"


def test_every_folder_is_linked_into_the_package() -> None:
    for folder in FOLDERS:
        link = ROOT / "mainspring" / folder
        assert link.is_symlink(), f"mainspring/{folder} should be a link to ../{folder}"
        assert link.readlink() == Path("..") / folder
        assert (ROOT / folder / "__init__.py").is_file(), f"{folder}/ has no __init__.py"
    with_code = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"mainspring", "tests", "build"}
    assert with_code <= set(FOLDERS), f"folders that the architecture does not know: {with_code}"


def test_every_subfolder_is_a_package_so_that_the_wheel_holds_it() -> None:
    missing = [
        folder
        for folder in {str(Path(path).parent) for path in python_files(*FOLDERS)}
        # Folders of Python models are files of the wheel beside its packages.
        if not folder.startswith(("compiler/zoo/python/", "cli/graph_demo/models/"))
        and not (ROOT / folder / "__init__.py").is_file()
    ]
    assert not missing, f"no __init__.py: {missing}"


def test_tests_mirror_the_tree() -> None:
    allowed = {*FOLDERS, "deploy", "examples", "faults", "emulator", "hosts", "mutants", "native"}
    strange = [
        path.name
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and path.name[0] not in "._" and path.name not in allowed
    ]
    assert not strange, f"tests/ has folders for nothing in the tree: {strange}"


def test_no_file_is_named_after_nothing() -> None:
    found = [path for path in python_files(*FOLDERS, "tests") if Path(path).name in BANNED_FILE_NAMES]
    assert not found, f"name the subject instead: {found}"


def test_the_reading_path_has_at_most_twenty_files_of_the_length_that_it_says() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([a-z_/]+\.py)` \| (\d+) \|", text, re.MULTILINE)
    assert 15 <= len(rows) <= 20
    wrong = {
        path: lines
        for path, said in rows
        if abs((lines := len((ROOT / path).read_text(encoding="utf-8").splitlines())) - int(said))
        > lines / 10
    }
    assert not wrong, f"docs/architecture.md: the files have {wrong} lines now"


def test_the_architecture_is_one_short_page() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 220
    long = [line[:60] for line in text.splitlines() if not line.startswith("|") and len(line) > 600]
    assert not long, f"paragraphs of over 600 characters: {long}"


INTERNALS = ("architecture", "state", "scheduler", "shared-memory", "compiled-core", "testing")


@pytest.mark.parametrize(
    "page", ["README.md", "docs/configuration.md", *(f"docs/{name}.md" for name in INTERNALS)]
)
def test_files_that_the_documentation_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)) | set(
        re.findall(r"\]\(((?!http)[^)#]+)\)", text)
    )
    missing = [
        name
        for name in sorted(named)
        if not ((ROOT / name).exists() or ((ROOT / page).parent / name).exists() or name in NOT_FILES)
    ]
    assert not missing, f"{page} names {missing}"
