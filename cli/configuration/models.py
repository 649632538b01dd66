"""``[models.NAME]``: what a ``mainspring.toml`` says of single models."""

from __future__ import annotations

import msgspec

from mainspring.cli.configuration.tables import ConfigError, build
from mainspring.messages.operating import weight_fault

MODELS = "models"


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one model."""

    max_queue_size: int | None = None
    """Number of requests that may wait for it; one more is refused at once."""
    goodput_weight: float | None = None
    """Number of other models' answers that an answer of it in time counts as."""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.max_queue_size is not None and self.max_queue_size < 1:
            raise ValueError(f"max_queue_size is {self.max_queue_size}; it must be at least 1")
        if self.goodput_weight is not None and (fault := weight_fault(self.goodput_weight)):
            raise ValueError(fault)


def read_models(tables: object, source: str) -> dict[str, ModelConfig]:
    """Return the settings of each model that is named; raise `ConfigError`."""
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise ConfigError(f"{source}: models has a table for each model: write [{MODELS}.NAME]")
    return {
        name: build(ModelConfig, table, f"{source}, [{MODELS}.{name}]", {}) for name, table in tables.items()
    }
