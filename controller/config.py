"""The controller's configuration: one flat struct; each field states its unit and what its limit means."""

from __future__ import annotations

import msgspec

from mainspring.messages.sharding import first_map, map_fault


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's settings that an operator may make. Raises ValueError on a value that can't work."""

    address: str = ""
    """Address that workers and gateways connect to: ``unix:///PATH``, or ``tcp://HOST:PORT`` where some of
    them run on other hosts; port ``*`` takes any free one. Empty: the socket controller.sock in the run
    folder."""
    keys: str = ""
    """Folder with this process's certificate and key, by which it speaks TLS over TCP with the others; empty:
    what it says over TCP is not encrypted."""
    shard: int = 0
    """Number of this controller among several, counted from 0."""
    shards: tuple[str, ...] = ()
    """Addresses of all controllers where each has a part of the models, in the order of their shards; empty:
    this is the only one."""
    shard_pages: tuple[int, ...] = ()
    """Pages of each shard, by which models are divided at the start; empty: all have as many."""
    event_log_dir: str | None = None
    """Folder of the event log; None for no log."""
    event_log_segment_bytes: int = 64 << 20
    """Size at which a segment of the event log is closed and the next begun."""
    event_log_max_bytes: int = 1 << 30
    """Size of all segments together; beyond it the oldest are deleted."""
    state_file: str | None = None
    """File in which what clients and operators changed is kept for the next start; None to forget it."""
    forget: bool = False
    """True to start over if that file is damaged."""
    lease: str = ""
    """Place of the lease that several controllers share, of whom one leads: file:PATH on one machine,
    etcd://HOST:PORT, or kubernetes:NAME; empty: this is the only one."""
    heartbeat_interval_ms: float = 100.0
    """Time between two pings to each peer. It also bounds how long the controller takes to notice a stop."""
    heartbeat_timeout_ms: float = 1000.0
    """A peer that was silent for this long has left; its work is dispatched elsewhere or rejected."""
    clock_window_samples: int = 1024
    """Pongs from which a peer's clock is estimated, once there are as many; at most half as many more."""
    join_pongs: int = 8
    """Pongs that a worker must have answered, for a first clock offset, before it is given work."""
    burst_messages: int = 256
    """Messages taken in before the scheduler is called, however many more are waiting."""
    message_max_bytes: int = 64 << 20
    """Size of one incoming message; the connection of a peer that sends a larger one is ended."""
    peer_backlog_messages: int = 100_000
    """Messages that may wait for one peer; a peer that reads too slowly for it is dropped."""
    max_peers: int = 4096
    """Peers at the same time; one more is refused."""
    max_models: int = 65_536
    """Models at the same time; adding one more is refused."""
    metrics_models: int = 50
    """Models with a label of their own in the metrics that are asked for; the others share one."""
    observer_interval_ms: float = 50.0
    """Time between two messages with the latest events to each observer, such as a console."""
    observer_backlog_bytes: int = 16 << 20
    """Bytes that may wait for one observer; the connection of one that reads too slowly is ended, so that it
    starts again from a new snapshot."""
    observer_timeout_ms: float = 10_000.0
    """The session of an observer that was silent for this long is ended."""
    max_observers: int = 32
    """Observers at the same time; one more is refused."""
    start_grace_ms: float = 5000.0
    """Time after its start for which the controller keeps requests until the first worker has joined, so that
    a restart costs none; each request at most until shortly before its deadline."""
    drain_timeout_ms: float = 5000.0
    """Time that outstanding requests may take to finish on a stop, before the controller leaves."""
    goodbye_linger_ms: float = 200.0
    """Time that the last messages may take to leave on a stop, before the socket is closed."""

    def __post_init__(self) -> None:
        """Check the values."""
        self._check_shards()
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field not in ("shard", "forget") and isinstance(value, int | float) and not value > 0:
                raise ValueError(f"the controller's {field} is {value}; it must be greater than 0")
        if self.heartbeat_timeout_ms < 2 * self.heartbeat_interval_ms:
            raise ValueError(
                f"the controller's heartbeat_timeout_ms is {self.heartbeat_timeout_ms}; it must be at least "
                f"twice heartbeat_interval_ms, {2 * self.heartbeat_interval_ms}"
            )
        if self.observer_timeout_ms < 2 * self.heartbeat_interval_ms:
            raise ValueError(
                f"the controller's observer_timeout_ms is {self.observer_timeout_ms}; it must be at least "
                f"twice heartbeat_interval_ms, {2 * self.heartbeat_interval_ms}"
            )
        if self.event_log_segment_bytes > self.event_log_max_bytes:
            raise ValueError(
                f"the controller's event_log_segment_bytes is {self.event_log_segment_bytes}; it must be at "
                f"most event_log_max_bytes, {self.event_log_max_bytes}"
            )

    def _check_shards(self) -> None:
        if not 0 <= self.shard < max(1, len(self.shards)):
            raise ValueError(
                f"the controller's shard is {self.shard}, which is not one of its {len(self.shards)} shards; "
                "[shards] lists them, counted from 0"
            )
        if self.shards:
            if self.shard_pages and len(self.shard_pages) != len(self.shards):
                raise ValueError(
                    f"the controller's shard_pages are {len(self.shard_pages)} numbers for "
                    f"{len(self.shards)} shards; give one for each"
                )
            if (fault := map_fault(first_map(self.shards, self.shard_pages))) is not None:
                raise ValueError(f"the controller's shards can't be: {fault}")
