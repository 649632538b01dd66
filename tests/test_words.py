"""Docstrings, as a tooltip shows them alone: none begins with a question word or in mid-sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PLAIN_WORDS = (
    *("messages", "transport", "telemetry", "traces", "planner", "simulator", "mainspring"),
    *("worker", "controller", "repository", "examples", "console", "compiler", "cluster", "client"),
    *("cli", "scheduler", "selection", "experiments", "gateway/grpc", "gateway/metrics", "gateway/oip"),
)
"""Folders whose docstrings are all plain; of mainspring the package's own files. Others follow."""

QUESTIONS = "What Whether When Where Which Who Whose Whom How Why"
ORPHANS = "Since Until Of From For By In To With At On Not So As If Than Between "
ORPHANS += "After Before Likewise And That Those Without About"
REFUSED = frozenset(f"{QUESTIONS} {ORPHANS}".split())


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, those below attributes and constants among them."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()


def refused(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the line and the first line's text of each docstring that begins as none should."""
    found = [(line, text.partition("\n")[0]) for line, text in docstrings(tree) if text]
    return sorted((line, text) for line, text in found if text.split()[0].strip(",.:;?!") in REFUSED)


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", PLAIN_WORDS)
def test_docstrings_say_what_their_subject_is(folder: str) -> None:
    assert files(folder), f"{folder} has no Python files"
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files(folder)
        for line, text in refused(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    ]
    assert not wrong, (
        "begin with a verb (functions: 'Return whether ...') or name the thing ('Time of the last result, in "
        "nanoseconds'; 'True if ...'):\n" + "\n".join(wrong)
    )


def test_a_question_and_an_orphan_are_found_wherever_they_stand() -> None:
    source = '''"""What this is."""
FIRST = 1
"""Of the version."""
class Worker:
    """A worker."""
    name: str
    """Whatever operators call it."""
    def busy(self) -> bool:
        """Whether it is busy."""
        self.since_ns = 1
        """Since, roughly,
        when."""
'''
    lines = [line for line, _ in refused(ast.parse(source))]
    assert lines == [1, 3, 9, 11]
