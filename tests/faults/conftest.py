"""The stages of the other folders' tests, on which faults are played."""

from tests.cli.conftest import emulated, profiles
from tests.controller.conftest import stage
from tests.worker.conftest import start

__all__ = ["emulated", "profiles", "stage", "start"]
