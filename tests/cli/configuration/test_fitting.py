"""Defaults that fit a machine's memory, and the refusal of what can't."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.configuration.config import Config, read_config
from mainspring.cli.configuration.fitting import check_fits, check_memory, with_limits
from mainspring.messages.tables import ConfigError
from mainspring.worker.limits import Limits, Room

MIB = 1 << 20
STORE = {"cluster": {"store": "store"}}


def limited(mib: int) -> Limits:
    return Limits(memory_bytes=mib * MIB, memory_by="/g/memory.max")


def configured(tables: dict[str, Any], limits: Limits) -> Config:
    return read_config(with_limits(tables, limits), "the test")


@pytest.mark.parametrize(
    ("mib", "workers", "pages", "io_mib"),
    [
        (64_000, 1, 64, 256),
        (64_000, 8, 64, 256),
        (2_048, 1, 63, 256),
        (1_024, 1, 21, 112),
        (2_048, 4, 10, 55),
    ],
)
def test_defaults_follow_the_memory(mib: int, workers: int, pages: int, io_mib: int) -> None:
    config = configured({"cluster": {"store": "store", "workers": workers}}, limited(mib))
    assert (config.worker.pages, config.worker.io_bytes // MIB) == (pages, io_mib)


@given(st.integers(700, 100_000), st.integers(1, 64))
def test_what_defaults_give_fits_where_the_least_does(mib: int, workers: int) -> None:
    config = configured({"cluster": {"store": "store", "workers": workers}}, limited(mib))
    if config.worker.pages > 1:
        check_fits(config, limited(mib), workers)


def test_what_is_given_stays() -> None:
    given_by_file = {**STORE, "worker": {"pages": 100, "io_bytes": 64 * MIB}}
    config = configured(given_by_file, limited(1_024))
    assert (config.worker.pages, config.worker.io_bytes) == (100, 64 * MIB)


def test_what_can_not_fit_is_refused_with_both_numbers() -> None:
    config = configured({**STORE, "worker": {"pages": 100}}, limited(1_024))
    with pytest.raises(ConfigError) as refused:
        check_fits(config, limited(1_024), 1)
    said = str(refused.value)
    assert said.startswith(
        "the worker needs, with gateway and controller, 2.0 GiB of memory (100 pages of 16 MiB, "
    )
    assert "and the memory is limited to 1.0 GiB (/g/memory.max): give fewer --pages" in said
    with pytest.raises(ConfigError, match=r"4 workers need, .* each\), and this machine has 1\.0 GiB"):
        check_fits(config, Limits(memory_bytes=1_024 * MIB), 4)
    with pytest.raises(ConfigError, match=r"worker w needs 1\.8 GiB .* limited to 1\.0 GiB"):
        check_memory("worker w needs", config.worker, limited(1_024))


def left(mib: int, of_mib: int = 16_000, by: str = "") -> Limits:
    return Limits(memory_bytes=16_000 * MIB, room=Room(mib * MIB, of_mib * MIB, by))


def test_defaults_take_what_others_leave() -> None:
    config = configured(STORE, left(1_024))
    assert config.worker == configured(STORE, limited(1_024)).worker
    check_fits(config, left(1_024), 1)


def test_what_others_leave_no_room_for_is_refused_with_both_numbers() -> None:
    config = configured({**STORE, "worker": {"pages": 100}}, left(1_024, 2_048, "/g/memory.max"))
    with pytest.raises(ConfigError) as refused:
        check_fits(config, left(1_024, 2_048, "/g/memory.max"), 1)
    said = str(refused.value)
    assert said.startswith("the worker needs, with gateway and controller, 2.0 GiB of memory (100 pages")
    assert "and of 2.0 GiB (/g/memory.max) others have left 1.0 GiB: give fewer --pages" in said


def test_of_workers_that_run_nothing_is_asked_again() -> None:
    config = configured(STORE, Limits())
    check_fits(config, left(1_500), 2, running=1)
    with pytest.raises(
        ConfigError, match=r"3 workers need, .* 2\.8 GiB more of memory .* have left 1\.5 GiB"
    ):
        check_fits(config, left(1_500), 3, running=1)


def test_what_kernels_of_tvm_compute_in_counts() -> None:
    tvm = {"cluster": {"store": "store", "engine": "tvm"}}
    assert configured(tvm, limited(2_048)).worker.pages == 35
    with pytest.raises(ConfigError, match=r"64 pages of 16 MiB, 512\.0 MiB for kernels, 256\.0 MiB for"):
        check_fits(configured(tvm, Limits()), limited(1_024), 1)


def test_of_a_worker_on_a_gpu_what_is_on_the_host_counts() -> None:
    config = configured({"cluster": {"store": "s", "device": "cuda"}}, limited(100))
    with pytest.raises(
        ConfigError, match=r"544\.0 MiB of memory \(256\.0 MiB for inputs and outputs and 128"
    ):
        check_fits(config, limited(543), 1)
    check_fits(config, limited(544), 1)


SLEEPS = {"engine": "emulated", "profiles": "p.csv"}


def test_what_takes_no_memory_is_left_alone() -> None:
    config = configured({"cluster": SLEEPS}, limited(100))
    assert config.worker.pages == 64
    check_fits(config, limited(100), 64)
