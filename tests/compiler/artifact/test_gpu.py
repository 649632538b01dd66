"""GPUs as the compiler knows them: by their driver's words, and by a table."""

from __future__ import annotations

import pytest
from msgspec import structs

from mainspring.compiler.artifact.target import ATTRIBUTES, KNOWN, Attributes, found_gpu, known_gpu


def test_a_gpu_is_what_its_driver_says() -> None:
    told = Attributes(16, 1_755_000, 2_619_000, 5_120, 232_448, 65_536)
    assert found_gpu("sm_90", told) == structs.replace(
        known_gpu("sm_90"), processors=16, clock_mhz=1_755, memory_gb_s=3_352
    )
    assert {*ATTRIBUTES} == {*Attributes.__struct_fields__}


def test_what_a_driver_does_not_say_is_as_usual() -> None:
    assert found_gpu("sm_80", Attributes()) == known_gpu("sm_80")
    assert found_gpu("sm_80", Attributes(processors=14)) == structs.replace(known_gpu("sm_80"), processors=14)


def test_a_variant_of_an_architecture_has_its_figures() -> None:
    assert structs.replace(known_gpu("sm_90a"), arch="sm_90") == known_gpu("sm_90")


def test_an_unknown_architecture_is_taken_for_an_h100_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert known_gpu("sm_90") == KNOWN["sm_90"]
    assert not caplog.records
    assert known_gpu("sm_77") == structs.replace(known_gpu("sm_90"), arch="sm_77")
    assert "what a GPU of sm_77 has is not known" in caplog.text


def test_a_block_may_ask_for_more_shared_memory_than_without_asking() -> None:
    for gpu in KNOWN.values():
        assert 48 * 1024 < gpu.shared_bytes < 256 * 1024, gpu
