"""Texts for clients: models by the names that these know."""

from __future__ import annotations

import pytest

from mainspring.messages.served import for_clients


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model minus@1-ab12 was replaced", "model minus was replaced"),
        ("'minus@1-ab12', minus@1-ab12: gone", "'minus', minus: gone"),
        ("can't read /store/models/minus@1-ab12/x", "can't read /store/models/minus@1-ab12/x"),
        ("model minus@1-ab123 is another", "model minus@1-ab123 is another"),
        ("model plus is another", "model plus is another"),
    ],
)
def test_a_model_is_called_what_clients_call_it(text: str, said: str) -> None:
    assert for_clients(text, "minus@1-ab12", "minus") == said
