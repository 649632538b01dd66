"""What is compiled keeps to what compiled code can do, and lacks nothing that it calls often."""

from __future__ import annotations

import ast
from glob import glob
from pathlib import Path

import pytest

import setup
from mainspring.native import CORES, PATH, Core

ROOT = Path(__file__).resolve().parent.parent.parent
STAYS_PYTHON = (
    "mainspring/messages/",
    *("mainspring/telemetry/series.py", "mainspring/traces/shapes.py", "mainspring/traces/source.py"),
    *("mainspring/traces/tracefile.py", "mainspring/telemetry/log.py"),
)
"""What compiled modules import and is not compiled, beside packages and modules that define Structs."""
ABOUT_THE_PATH = (
    *("mainspring/compiler/", "mainspring/extras.py", "mainspring/gateway/", "mainspring/selection/"),
    *("mainspring/telemetry/", "mainspring/transport/", "mainspring/worker/"),
)
"""Where most is called at the start, for a new connection, or for requests of a seldom kind: of this, `PATH`
names what is called for every request."""


BASES = {
    *("Enum", "StrEnum", "IntEnum", "ABC", "Exception", "ValueError", "Generic", "NamedTuple", "Protocol"),
    "TypedDict",
}
"""Base classes beside compiled ones."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_what_compiled_modules_import_is_compiled_too() -> None:
    compiled = {core: setup.compiled_files(core) for core in CORES}
    all_compiled = {path for paths in compiled.values() for path in paths}
    assert len(all_compiled) > 40
    for core, paths in compiled.items():
        stays = (*STAYS_PYTHON, *(ABOUT_THE_PATH if core is PATH else ("mainspring/gateway/core/",)))
        others = [
            path
            for path in setup.read_files(paths)
            if path not in all_compiled
            and not path.endswith("__init__.py")
            and not path.startswith(stays)
            and not setup.STRUCT.search(Path(path).read_bytes())
        ]
        assert not others, f"add them to MODULES of setup.py, {core.name}"


def test_no_module_belongs_to_two_cores() -> None:
    paths = [path for core in CORES for path in setup.compiled_files(core)]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_every_pattern_of_a_core_names_something(core: Core) -> None:
    for pattern in setup.MODULES[core]:
        assert glob(f"mainspring/{pattern}", recursive=True), f"MODULES names {pattern}"


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_no_class_method_of_a_core_asks_super(core: Core) -> None:
    """mypyc would have it called with the class's own class."""
    for path in setup.read_files(setup.compiled_files(core)):
        for node in ast.walk(ast.parse(Path(path).read_bytes())):
            if isinstance(node, ast.FunctionDef) and _is_class_method(node):
                calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
                asks = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "super"]
                assert not asks, f"{path}:{node.lineno}: {node.name} is a class method that asks super()"


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_no_function_of_a_core_catches_two_kinds_of_errors_under_one_name(core: Core) -> None:
    """mypyc takes both for the first kind, and raises TypeError where the second is caught."""
    for path in setup.compiled_files(core):
        for function in ast.walk(ast.parse(Path(path).read_bytes())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            caught: dict[str, str] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
                    kind = ast.unparse(node.type)
                    assert caught.setdefault(node.name, kind) == kind, (
                        f"{path}:{node.lineno}: {node.name} is also a {caught[node.name]}"
                    )


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_no_class_of_a_core_has_a_base_class_from_elsewhere(core: Core) -> None:
    """An object of such a class crashed the process when it was freed."""
    compiled = {path.removesuffix(".py").replace("/", ".") for path in setup.compiled_files(core)}
    for path in setup.compiled_files(core):
        tree = ast.parse(Path(path).read_bytes())
        known = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} | BASES
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in compiled:
                known |= {alias.asname or alias.name for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
                assert bases <= known, f"{path}:{node.lineno}: {node.name} is a {bases - known}"


WORDS_OF_C = {
    *("_alignof", "_asm", "_attribute", "_builtin", "_complex", "_const", "_extension", "_imag", "_inline"),
    *("_label", "_real", "_restrict", "_signed", "_thread", "_typeof", "_volatile"),
}
"""Names of attributes that are words of the language with the underscore that mypyc puts before them."""


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_no_attribute_of_a_core_is_a_word_of_c(core: Core) -> None:
    """One alone would leave the whole core as Python: each of its files reads what all classes hold."""
    for path in setup.compiled_files(core):
        for node in ast.walk(ast.parse(Path(path).read_bytes())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                assert node.attr not in WORDS_OF_C, f"{path}:{node.lineno}: call {node.attr} otherwise"


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_no_function_of_a_core_has_a_function_with_a_name_of_its_own(core: Core) -> None:
    """It refers to the variables that it uses, and they to it: both, and all that the variables hold, would
    be freed by the collector alone, which is off while requests are served."""
    for path in setup.compiled_files(core):
        for node in ast.walk(ast.parse(Path(path).read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                within = [
                    each
                    for each in ast.walk(node)
                    if each is not node and isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                assert not within, f"{path}:{within[0].lineno}: take functools.partial of one outside instead"


def _is_class_method(node: ast.FunctionDef) -> bool:
    names = [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
    return "classmethod" in names


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_no_module_of_a_core_looks_for_files_beside_itself(core: Core) -> None:
    """A compiled module lies in the build's folder, without what lies beside its source."""
    for path in setup.compiled_files(core):
        assert "__file__" not in Path(path).read_text(encoding="utf-8"), path


def test_what_runs_as_python_derives_from_no_compiled_class() -> None:
    """Its process would end as it imports it, unless the compiled class says that it may."""
    compiled = {path for core in CORES for path in setup.compiled_files(core)}
    closed = set()
    for path in compiled:
        for node in ast.walk(ast.parse(Path(path).read_bytes())):
            if isinstance(node, ast.ClassDef):
                said = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
                open_to_heirs = (
                    "allow_interpreted_subclasses=True",
                    "NamedTuple",
                    "Protocol",
                    "Enum",
                    "Error",
                )
                if not any(each in said for each in open_to_heirs):
                    closed.add((path.removesuffix(".py").replace("/", "."), node.name))
    # Its folders are links, which `rglob` would leave out.
    for source in glob("mainspring/**/*.py", recursive=True):
        if source in compiled:
            continue
        tree = ast.parse(Path(source).read_bytes())
        imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = [imported.get(ast.unparse(base).partition("[")[0]) for base in node.bases]
                assert not closed.intersection(bases), f"{source}:{node.lineno}: compile {node.name}, too"
