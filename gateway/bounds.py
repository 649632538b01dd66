"""What the request table has no room for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.gateway.core.validation import Signature, header_rows, shapes_of
from mainspring.messages.peers import TensorHeader


class Budget:
    """Bytes that may be held at one time."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, count: int) -> bool:
        """Hold ``count`` more bytes; return False if that is too many, holding none of them."""
        if self.held_bytes + count > self.limit_bytes:
            return False
        self.held_bytes += count
        return True

    def give(self, count: int) -> None:
        """Hold ``count`` bytes less."""
        self.held_bytes -= count
        assert self.held_bytes >= 0, f"{self.held_bytes} bytes are held"


def no_room_for_answer(budget: Budget, more_bytes: int, whose: str = "of all clients") -> str:
    """Return why a request is refused whose answer would go beyond a budget."""
    return (
        f"answers {whose} that are asked for or not read yet hold {budget.held_bytes:,} bytes and may hold "
        f"{budget.limit_bytes:,}, and this one has some {more_bytes:,}; read them, or ask for less at once"
    )


def answer_bytes(signature: Signature, inputs: Sequence[TensorHeader], *, text: bool) -> int:
    """Return what the answer to a request with these inputs takes, about; at most, if it is made ``text``."""
    signature = shapes_of(signature, inputs)
    row_bytes = signature.text_row_bytes if text else signature.answer_row_bytes
    # A request whose inputs have different rows is refused.
    rows = header_rows(signature, inputs)
    return (1 if rows < 1 else min(rows, signature.max_rows)) * row_bytes
