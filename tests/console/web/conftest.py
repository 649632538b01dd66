"""What tests of the web server share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from mainspring.console.config import ConsoleConfig
from mainspring.console.view.view import View
from tests.console.web.served import Console, FedSource, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Return what starts a console, of a view and keys of its configuration."""
    with ExitStack() as running:

        def begin(view: View | None = None, **keys: Any) -> Console:
            config = ConsoleConfig(address="http://127.0.0.1:0", **keys)
            source = FedSource(view or View(), bool(config.token_file))
            return running.enter_context(Console(config, source))

        yield begin
