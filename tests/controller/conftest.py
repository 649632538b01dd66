"""The stage on which the controller's tests play."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controller.peers import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A stage whose controllers are stopped, and whose schedulers are checked, at the end."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()
