"""``[models.NAME]``: what a ``mainspring.toml`` says of single models."""

from __future__ import annotations

import msgspec

from mainspring.cli.configuration.tables import ConfigError, build

MODELS = "models"


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one model."""

    max_queue_size: int
    """How many requests may wait for it; one more is refused at once."""

    def __post_init__(self) -> None:
        """Check the value."""
        if self.max_queue_size < 1:
            raise ValueError(f"max_queue_size is {self.max_queue_size}; it must be at least 1")


def read_queues(tables: object, source: str) -> dict[str, int]:
    """Return how many requests may wait for each model that is named; raise `ConfigError`."""
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise ConfigError(f"{source}: models has a table for each model: write [{MODELS}.NAME]")
    return {
        name: build(ModelConfig, table, f"{source}, [{MODELS}.{name}]", {}).max_queue_size
        for name, table in tables.items()
    }
