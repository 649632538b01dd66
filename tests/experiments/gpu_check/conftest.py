"""Settings so small that each check takes a second on the CPU, and a folder with what they need compiled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.experiments.gpu_check.models import check_compiling
from mainspring.experiments.gpu_check.settings import ONNXRUNTIME, Settings, rehearsal
from mainspring.experiments.gpu_check.verdicts import State


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Everything is compiled."""
    chosen = msgspec.structs.replace(
        rehearsal(Path(tmp_path_factory.mktemp("gpu-check"))),
        device="cpu",
        rehearsed=False,
        engine=ONNXRUNTIME,
        engines=(ONNXRUNTIME,),
        architectures=("digits", "resnet20"),
        compile_s=120.0,
        main="digits",
        steady=("digits",),
        batch_sizes=(1, 2),
        loads=5,
        infers=50,
        large_shape=(1_000, 5_000),
        cycled=12,
        cycled_pages=4,
        cycled_s=0.2,
        cluster_s=1.0,
        cluster_load=0.02,
        cluster_slos_ms=(2_000.0,),
    )
    found = check_compiling(chosen)
    assert all(verdict.state is State.TOLD for verdict in found), found
    return chosen
