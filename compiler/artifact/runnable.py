"""What can be verified and measured: a model with its weights bound, whatever its engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Runnable(Protocol):
    """A model with its weights, ready to run on the CPU."""

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run one batch from and to these addresses; raise `ExecutableError` if the engine fails."""

    def run_arrays(
        self, batch_size: int, arrays: Sequence[npt.NDArray[np.generic]]
    ) -> list[npt.NDArray[np.generic]]:
        """Run one batch on arrays; return the outputs."""
