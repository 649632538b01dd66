"""What the lines of the house are, by folder: ``python -m tests.house``."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("code", "docstrings", "comments", "imports", "blank")


def kinds_of(text: str) -> Counter[str]:
    """Return how many lines of a file are of each of `KINDS`; and of one only."""
    lines = text.splitlines()
    kind = ["code"] * len(lines)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                _mark(kind, node, "docstrings")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            _mark(kind, node, "imports")
    for number, line in enumerate(lines):
        if not line.strip():
            kind[number] = "blank"
        elif line.lstrip().startswith("#") and kind[number] == "code":
            kind[number] = "comments"
    return Counter(kind)


def _mark(kind: list[str], node: ast.stmt, name: str) -> None:
    for number in range(node.lineno - 1, node.end_lineno or node.lineno):
        kind[number] = name


def rows() -> Iterator[tuple[str, int, Counter[str]]]:
    """Yield each folder of the house with its number of files and its lines by kind, the largest first."""
    links = [path for path in (ROOT / "mainspring").iterdir() if path.is_dir() and "__" not in path.name]
    folders = {path.name: [*path.resolve().rglob("*.py")] for path in links}
    folders["mainspring"] = [*(ROOT / "mainspring").glob("*.py")]
    counted = [
        (name, len(files), sum((kinds_of(file.read_text(encoding="utf-8")) for file in files), Counter()))
        for name, files in folders.items()
    ]
    yield from sorted(counted, key=lambda row: -row[2].total())


def main() -> None:
    """Print the table, and the product's sum, which is all but ``experiments``."""
    print(f"{'folder':12} {'files':>6} {'lines':>8} " + " ".join(f"{kind:>10}" for kind in KINDS))
    product, files = Counter[str](), 0
    for name, count, kinds in rows():
        print(_row(name, count, kinds))
        if name != "experiments":
            product, files = product + kinds, files + count
    print(_row("product", files, product))


def _row(name: str, files: int, kinds: Counter[str]) -> str:
    return f"{name:12} {files:6} {kinds.total():8,} " + " ".join(f"{kinds[kind]:10,}" for kind in KINDS)


if __name__ == "__main__":
    main()
