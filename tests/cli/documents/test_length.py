"""The documentation stays short: its words in all, and those of each paragraph, list item and table cell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MOST_WORDS = 72_510
MOST_WORDS_OF_A_PART = 120
ITEM = re.compile(r"\s*(?:[*+-]|\d+[.)])\s")


def words(text: str) -> int:
    """Count what has a letter or a digit: the bars of a table are no words."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def parts(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, list item and table cell outside of code, with the number of its first line."""
    code, first, part = False, 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        cell = line.startswith("|")
        if part and (fence or cell or not line.strip() or ITEM.match(line)):
            yield first, part
            part = ""
        code ^= fence
        if cell and not code:
            yield from ((number, text) for text in re.split(r"(?<!\\)\|", line))
        elif line.strip() and not code and not fence:
            first, part = (first, f"{part} {line}") if part else (number, line)


def test_a_part_is_a_paragraph_an_item_or_a_cell() -> None:
    page = "# Title\n\na b\nc\n* d\n  e\n1. f\n```\ncode\n\n| code |\n```\n| g | h \\| i |\n"
    found = [(number, " ".join(part.split())) for number, part in parts(page) if part.strip()]
    assert found == [
        (1, "# Title"),
        (3, "a b c"),
        (5, "* d e"),
        (7, "1. f"),
        (13, "g"),
        (13, "h \\| i"),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_part_of_a_page_is_long(page: Path) -> None:
    found = parts(page.read_text(encoding="utf-8"))
    long = {number: count for number, part in found if (count := words(part)) > MOST_WORDS_OF_A_PART}
    assert not long, f"{page.name} has at these lines as many words as this, in place of 120 at most: {long}"


def test_all_pages_together_are_short() -> None:
    count = sum(words(page.read_text(encoding="utf-8")) for page in PAGES)
    assert count <= MOST_WORDS, f"docs/ has {count} words, {count - MOST_WORDS} too many: shorten a page"
