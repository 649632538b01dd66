"""What the CPU engine asks of an executable, whatever computes it: one file for each engine fulfils this.

A *program* is an open executable, shared by all models that were compiled to it. Its *plan* says how the
weights of one layout are bound, wherever they are. *Bound*, it is a model that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mainspring.compiler.artifact.manifest import ExecutableInfo, Manifest, WeightTensor
from mainspring.compiler.artifact.store import Store

AddressOf = Callable[[int], int]
"""From a byte of the weights file to its address."""


class Bound(Protocol):
    """A model with its weights at their addresses; one thread at a time runs it."""

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run one batch from and to these addresses; raise `ExecutableError` if the engine fails."""


class Plan(Protocol):
    """How weights are bound, but for their addresses."""

    info: ExecutableInfo

    def bind(self, address_of: AddressOf) -> Bound:
        """Return a model whose weights are there; nothing is copied."""

    def warm(self, address_of: AddressOf, batch_sizes: Sequence[int]) -> None:
        """PREPARE thread: run each of these batch sizes on zeros, whatever runs in the EXEC thread."""


class Program(Protocol):
    """An open executable."""

    def plan(self, tensors: Sequence[WeightTensor]) -> Plan:
        """Return the same plan for equal tensors; raise `ExecutableError` for tensors of another one."""


Opener = Callable[[Store, Manifest], Program]
"""Opens a model's executable, whose file was found unaltered; raises `StoreError`, `ExecutableError` or
`EngineError` that says why it can't be opened here."""
