"""Why a GPU can't be checked is said, with what would help."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from mainspring import extras
from mainspring.experiments.gpu_check import presence
from mainspring.experiments.gpu_check.presence import missing


class Cuda:
    """A libcuda with so many GPUs."""

    def __init__(self, count: int = 1, status: int = 0, version: int = 13_000) -> None:
        self.count = count
        self.status = status
        self.version = version

    def cuInit(self, _flags: int) -> int:  # noqa: N802
        return self.status

    def cuDriverGetVersion(self, place: Any) -> int:  # noqa: N802
        place._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, place: Any) -> int:  # noqa: N802
        place._obj.value = self.count
        return 0


def reasons(monkeypatch: pytest.MonkeyPatch, library: object, device: str = "cuda:0") -> list[str]:
    monkeypatch.setattr(presence, "PACKAGES", {"json": ""})

    def load(name: str) -> Any:
        assert name == "libcuda.so.1"
        if isinstance(library, Exception):
            raise library
        return library

    return missing(device, load)


def test_nothing_is_missing_where_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reasons(monkeypatch, Cuda()) == []
    assert reasons(monkeypatch, Cuda(2), "cuda:1") == []


@pytest.mark.parametrize(
    ("library", "device", "says"),
    [
        (OSError("no such file"), "cuda:0", "install the driver"),
        (Cuda(status=100), "cuda:0", "cuInit gave error 100"),
        (Cuda(version=12_080), "cuda:0", "is for CUDA 12.8 and no newer one: install driver 580"),
        (Cuda(0), "cuda:0", "no GPU 0: CUDA's driver counts 0"),
        (Cuda(2), "cuda:2", "no GPU 2: CUDA's driver counts 2"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, library: object, device: str, says: str
) -> None:
    (reason,) = reasons(monkeypatch, library, device)
    assert says in reason


def test_missing_packages_are_named_with_their_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PACKAGES", {"no_such_package.part": "gpu", "json": ""})
    found = missing("cuda:0", lambda _name: Cuda())  # type: ignore[arg-type,return-value]
    assert found == [f"the Python package no_such_package.part is missing: {extras.command('gpu')}"]


def test_the_real_driver_is_asked_without_harm() -> None:
    """Whatever this machine has, asking raises nothing."""
    assert all(isinstance(reason, str) for reason in missing("cuda:0", ctypes.CDLL))
