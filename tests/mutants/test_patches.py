"""Every planted fault fits the product as it is: a patch that does not would find nothing."""

import shutil
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, apply, patches


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch(1) is not installed")
@pytest.mark.parametrize("patch", patches(), ids=lambda each: each.stem)
def test_a_patch_fits(patch: Path) -> None:
    apply(patch, ROOT, dry=True)


def test_there_are_enough() -> None:
    assert len(patches()) >= 24
