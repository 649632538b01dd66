"""A worker's configuration: one flat struct, read from TOML or flags by others."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a worker is told when it starts."""

    name: str
    """Unique in the cluster; 1 to 64 characters."""
    controller: str = "tcp://127.0.0.1:7401"
    """Address of the controller."""
    data_address: str = "tcp://127.0.0.1:*"
    """Where the data socket binds; ``*`` lets the system choose the port."""
    data_host: str = ""
    """Host that gateways are told to connect to; empty for that of ``data_address``, or for this machine's
    name if that is a wildcard."""
    engine: str = "onnxruntime"
    """``onnxruntime`` or ``emulated``."""
    store: str = "store"
    """Folder of the model store; the emulated engine needs none."""
    device_kind: str = "cpu"
    """Which of a model's profiles this device has; for the emulated engine, which it acts out."""
    pages: int = 64
    """Pages of weights memory, of 16 MiB each; at least 1."""
    io_bytes: int = 256 * MIB
    """IO memory: inputs and outputs of all batches that wait, run or are being sent; at least 1 MiB."""
    threads: int = 1
    """Threads that compute one batch (onnxruntime); at least 1. The first is the EXEC thread."""
    realtime: bool = True
    """Pin threads, ask for real-time priority and locked memory, collect garbage only when idle."""
    exec_core: int | None = None
    """Core of the EXEC thread alone; None for the last one that the process may use. Workers on one machine
    need one each."""
    spin_us: int = 100
    """Time before an instant from which EXEC spins instead of sleeping; 0 saves CPU and costs precision."""
    emulated_seed: int = 0
    """Seed of the emulated durations' jitter."""
    emulated_jitter: float = 0.0
    """Spread of the emulated durations, as a fraction; 0 for none."""
    early_inputs: int = 4096
    """Inputs held until their action comes; beyond, the oldest is dropped."""
    early_input_bytes: int = 256 * MIB
    """Bytes of inputs held until their action comes; beyond, the oldest is dropped."""
    early_input_age_ms: int = 2000
    """Age at which a held input is dropped."""
    max_message_bytes: int = 256 * MIB
    """Largest frame that the data socket accepts; a connection that sends a larger one is cut."""
    output_backlog_bytes: int = 512 * MIB
    """Bytes of outputs that may wait for one gateway to read them; beyond, they are dropped and counted."""
    controller_silence_ms: int = 1000
    """Silence after which the controller counts as lost; it pings ten times a second."""
    hello_retry_ms: int = 200
    """Time between two hellos; it doubles up to a second."""
    drain_timeout_ms: int = 5000
    """Longest wait for running actions when stopping."""

    def __post_init__(self) -> None:
        """Raise `ValueError` that names the field and its limit."""
        if not 1 <= len(self.name) <= 64:
            raise ValueError(f"name must have 1 to 64 characters, not {len(self.name)}")
        least = {
            "pages": 1, "io_bytes": MIB, "threads": 1, "spin_us": 0, "emulated_seed": 0, "emulated_jitter": 0,
            "early_inputs": 1, "early_input_bytes": MIB, "early_input_age_ms": 1, "max_message_bytes": MIB,
            "output_backlog_bytes": MIB, "controller_silence_ms": 100, "hello_retry_ms": 10,
            "drain_timeout_ms": 0,
        }  # fmt: skip
        for field, minimum in least.items():
            value = getattr(self, field)
            if value < minimum:
                raise ValueError(f"{field} must be at least {minimum}, not {value}")
