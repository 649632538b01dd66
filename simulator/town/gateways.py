"""A gateway of a town: core, driver and front end as they are deployed."""

from __future__ import annotations

from typing import Any, Final, cast

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.driver import GatewayDriver
from mainspring.gateway.zeromq import ZeroMqFrontEnd
from mainspring.simulator.town.ports import TownClients
from mainspring.simulator.town.process import Process

PORT: Final = 7400
NEVER_COUNTED: Final = (
    *("front_end_failures", "bad_messages_from_controller", "bad_messages_from_workers", "bad_models"),
    *("bad_messages_from_clients", "protocol_mismatch", "wrong_shard", "bad_shard_maps"),
)
"""Reasons that no gateway counts whose peers are sound: each is a bug."""


class TownGateway:
    """See the module's docstring."""

    def __init__(self, process: Process, controller: str, seed: int) -> None:
        self.process = process
        self.config = GatewayConfig(
            name=process.name, controller_address=controller, slab_bytes=0, client_memory_bytes=0
        )
        hub = cast(Any, process.hub)
        self.driver = GatewayDriver(hub, self.config, process.now_ns, process.hub.link, seed)
        address = f"tcp://{process.host}:{PORT}"
        self._clients = ZeroMqFrontEnd(
            *(self.config, self.driver, hub), name="local", listen=lambda _: TownClients(process.hub, address)
        )
        # As `local_clients.LocalClients` has it.
        listener = cast(Any, self._clients._listener)
        listener.on_end = self._clients.gone

    def turn(self, now_ns: int) -> int:
        """Serve what has come, a burst of each, and do what is due."""
        driver, clients, burst = self.driver, self._clients, self.config.burst_messages
        for port in self.process.hub.wait(0):
            driver.serve(port, burst)
        clients.serve(burst)
        if now_ns >= driver.next_wakeup_ns():
            driver.tick(now_ns)
            clients.tick(now_ns)
        return driver.next_wakeup_ns() if not self.process.hub.wait(0) else now_ns

    def check(self) -> None:
        """Check the core, and what no gateway may count."""
        self.driver.core.validate()
        counts = self.driver.all_counts()
        for why in NEVER_COUNTED:
            assert not counts.get(why), f"{self.process.name} counts {counts[why]} {why}"
