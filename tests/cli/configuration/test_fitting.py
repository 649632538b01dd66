"""Defaults that fit a machine's memory, and the refusal of what can't."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.configuration.config import Config, read_config
from mainspring.cli.configuration.fitting import check_fits, check_memory, with_limits
from mainspring.cli.configuration.tables import ConfigError
from mainspring.worker.limits import Limits

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


SLEEPS = {"engine": "emulated", "profiles": "p.csv"}


@pytest.mark.parametrize("cluster", [SLEEPS, {"store": "s", "device": "cuda"}])
def test_what_takes_no_memory_of_the_host_is_left_alone(cluster: dict[str, str]) -> None:
    config = configured({"cluster": cluster}, limited(100))
    assert config.worker.pages == 64
    check_fits(config, limited(100), 64)
