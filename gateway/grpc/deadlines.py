"""How long a call leaves to its answer: its own deadline, its parameters and metadata, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.grpc.access import Caller
from mainspring.gateway.oip.deadlines import (
    SLO_HEADER,
    SLO_PARAMETER,
    TIMEOUT_PARAMETER,
    default_slo_ns,
    slo_ns,
)
from mainspring.messages.model import ServedModel


class Limits:
    """What counts beside what a request says."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._longest_ns = milliseconds(config.max_slo_ms)

    def slo_ns(
        self, parameters: Mapping[str, Any], caller: Caller, options: ServedModel, arrived_ns: int
    ) -> int | None:
        """Return the time from now to the deadline of a request; None for best effort.

        ``arrived_ns`` is when its call began, or in a stream its message came, on this process's clock;
        ``options`` are its model's. Raises `BadRequest` for what is no duration.
        """
        spent_ns = monotonic_ns() - arrived_ns
        left_ns = self._left_ns(caller)
        found_ns = slo_ns(
            timeout_us=parameters.get(TIMEOUT_PARAMETER),
            slo_ms=parameters.get(SLO_PARAMETER),
            header=caller.said(SLO_HEADER),
            # The call's own deadline says what is left of it now, the others what there was on arrival.
            left_ns=None if left_ns is None else left_ns + spent_ns,
            default_ns=default_slo_ns(self._config, options),
        )
        if found_ns is None:
            return None
        # What is too late already is refused as unreachable, by whoever knows how long the model takes.
        return max(1, found_ns - spent_ns)

    def _left_ns(self, caller: Caller) -> int | None:
        """Return what the call's own deadline leaves; clients that want none often set one years ahead."""
        left_s = caller.left_s()
        if left_s is None or left_s * 1e9 > self._longest_ns:
            return None
        return max(1, round(left_s * 1e9))
