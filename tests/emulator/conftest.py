"""The emulator's own kernels, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.build import Program, compile_source, why_not

HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def _host_compiler() -> None:
    if why_not():
        pytest.skip(why_not())


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The kernels of ``kernels.cu``."""
    if why_not():
        pytest.skip(why_not())
    return compile_source((HERE / "kernels.cu").read_text(), tmp_path_factory.mktemp("kernels"))
