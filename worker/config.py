"""A worker's configuration: one flat struct, which the command line reads from TOML or flags."""

from __future__ import annotations

import re

import msgspec

from mainspring.messages.targets import SEPARATOR

MIB = 1024 * 1024
DEVICE = re.compile(r"cpu|cuda:[0-9]{1,3}")
"""The form of `WorkerConfig.device`."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,63}")
"""The form of `WorkerConfig.name`."""
DEFAULT_PAGES = 64
HEARTBEAT_MS = (10.0, 60_000.0)
"""Bounds of `WorkerConfig.heartbeat_ms`, other than 0: an EXEC seldom meets a heartbeat."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a worker."""

    name: str
    """Unique in the cluster; 1 to 64 letters, digits and ``. _ - : @ +``, the first a letter or digit."""
    controller: str = "tcp://127.0.0.1:7401"
    """Address of the controller."""
    keys: str = ""
    """Folder with this process's certificate and key, by which it speaks TLS over TCP with the others; empty:
    what it says over TCP is not encrypted."""
    data_address: str = ""
    """Address that the data socket binds to, such as ``tcp://0.0.0.0:*``, where ``*`` lets the system choose
    the port. Empty: a socket of the worker's name beside the controller's, or a port of 127.0.0.1 if that has
    none."""
    data_host: str = ""
    """Host that gateways connect to, by name or number; empty for the host of ``data_address``, or for this
    host's address on the way to the controller if that is a wildcard."""
    engine: str = "onnxruntime"
    """``onnxruntime``, ``tvm``, ``auto``, which runs each model with the engine that it was compiled for,
    ``python``, or ``emulated``."""
    device: str = "cpu"
    """``cpu``, or ``cuda:N`` for the GPU number N as CUDA counts them."""
    store: str = "store"
    """Folder of the model store; the emulated engine needs none."""
    store_from: str = ""
    """Source of models that ``store`` lacks: the address of ``mainspring store serve``, a folder, or a URL
    that fsspec knows. Empty: nowhere."""
    store_token_file: str = ""
    """File of the token that a served store needs (mode 0600); empty for none."""
    store_max_bytes: int = 0
    """Bytes that the weights and executables in ``store`` may have, of all workers of this host: what was not
    needed longest goes for what is fetched. Only with ``store_from``; 0: any."""
    store_bytes_per_s: int = 0
    """Most bytes a second that are fetched, so that a network or disk is left to others; 0: any."""
    device_kind: str = "cpu"
    """The device's kind, under which models have their profiles; the emulated engine plays that profile. A
    GPU's kind is its name, such as nvidia-h200, unless another one is configured."""
    instruction_set: str = ""
    """Instruction set, such as ``x86_64-avx2``, by which a worker on a CPU says which artifacts it runs: at
    most the processor's, and less where all workers are to run the same ones. Empty: the processor's."""
    pages: int = DEFAULT_PAGES
    """Pages of weights memory, of 16 MiB each; at least 1. On a GPU, 0 is all that its memory holds."""
    io_bytes: int = 256 * MIB
    """IO memory: inputs and outputs of all batches that wait, run or are being sent; at least 1 MiB."""
    workspace_bytes: int = 512 * MIB
    """Memory for what kernels compute on the way: on a GPU for each engine in use, on the CPU for kernels of
    TVM; at least 1 MiB."""
    reserve_bytes: int = 1024 * MIB
    """Memory of a GPU that stays free: for the driver, libraries, the code of kernels, and graphs."""
    load_chunk_bytes: int = 4 * MIB
    """Most bytes of weights that one copy to a GPU moves; the copy of an input waits for two at most."""
    host_weights_bytes: int = 0
    """Pinned host memory that workers on GPUs of one machine share for the weights of prepared models; 0 for
    what the store's models need at the start. The memory grows when a new model does not fit."""
    op_libraries: tuple[str, ...] = ()
    """Libraries of operators that models may run with, in ONNX Runtime on the CPU."""
    threads: int = 1
    """Threads that compute one batch of ONNX Runtime; at least 1. The first is the EXEC thread."""
    realtime: bool = True
    """Pin threads, ask for real-time priority and locked memory, collect garbage only when idle."""
    exec_core: int | None = None
    """Core for the EXEC thread alone; None for the last core that the process may use, or with
    ``exec_core_shared`` for all of them. Workers on one machine need one each."""
    exec_core_shared: bool = False
    """True if gateway or controller use EXEC's cores too, as they do in any case if the process has one core
    alone: what computes there then goes behind them."""
    spin_us: int = 100
    """Time before an instant from which EXEC spins instead of sleeping; 0 saves CPU and costs precision."""
    emulated_seed: int = 0
    """Seed of the emulated durations' jitter."""
    emulated_jitter: float = 0.0
    """Spread of the emulated durations, as a fraction; 0 for none."""
    emulated_open_ms: float = 0.0
    """Time that the emulated device does nothing else while it opens an executable; 0: it opens them beside
    what it does."""
    heartbeat_ms: float = 0.0
    """Time without work after which EXEC gives a GPU something tiny to do, again and again, so that it keeps
    its clocks; 0: never, else from 10 to 60,000. ``make gpu-check`` measures whether it helps."""
    overrun_ms: float = 1500.0
    """Time by which an INFER may compute longer than predicted before it is ended, if the engine can do that;
    0: any. ONNX Runtime on the CPU can, between two nodes of a graph that has a Loop or a Scan. The
    controller drops a worker that takes longer than its ``action_timeout_ms``, so this should be less."""
    early_inputs: int = 4096
    """Most inputs that are held until their action comes; beyond that, the oldest is dropped."""
    early_input_bytes: int = 256 * MIB
    """Most bytes of inputs that are held until their action comes; beyond that, the oldest is dropped."""
    early_input_age_ms: int = 2000
    """Age at which a held input is dropped."""
    max_message_bytes: int = 256 * MIB
    """Largest frame that the data socket accepts; a connection that sends a larger one is cut."""
    slab_bytes: int = 64 * MIB
    """Memory in which each gateway of this host reads large outputs, uncopied; it is taken as it is first
    needed. Outputs beyond it are sent as frames. 0: all are."""
    output_backlog_bytes: int = 512 * MIB
    """Most bytes of outputs that may wait for one gateway; further outputs are dropped and counted."""
    controller_silence_ms: int = 1000
    """Silence after which the controller, which pings ten times a second, counts as lost."""
    hello_retry_ms: int = 200
    """Time between two hellos, which doubles up to 0.4 s."""
    drain_timeout_ms: int = 5000
    """Longest wait for running actions when stopping."""

    @property
    def cuda_device(self) -> int | None:
        """The number of its GPU; None on the CPU."""
        kind, _, number = self.device.partition(":")
        return int(number) if kind == "cuda" else None

    @property
    def computes(self) -> bool:
        """Return whether EXEC keeps a core busy while it runs, instead of a GPU or nothing."""
        return self.cuda_device is None and self.engine != "emulated"

    def __post_init__(self) -> None:
        """Raise `ValueError` that names the field and its limit."""
        if NAME.fullmatch(self.name) is None:
            raise ValueError(
                f"name is {self.name!r}; it must have 1 to 64 letters, digits and . _ - : @ +, and begin "
                "with a letter or digit"
            )
        if DEVICE.fullmatch(self.device) is None:
            raise ValueError(f"device {self.device!r} is neither cpu nor cuda:N, such as cuda:0")
        if SEPARATOR in self.device_kind:
            raise ValueError(f"device_kind {self.device_kind!r} has a /, which the name of a kind can't have")
        if self.instruction_set and not self.computes:
            raise ValueError("instruction_set is for workers that compute on a CPU; leave it out")
        least = {
            "pages": 0, "store_max_bytes": 0, "store_bytes_per_s": 0, "io_bytes": MIB,
            "workspace_bytes": MIB, "reserve_bytes": 0, "load_chunk_bytes": 65536, "host_weights_bytes": 0,
            "threads": 1, "spin_us": 0, "emulated_seed": 0, "emulated_jitter": 0,
            "emulated_open_ms": 0, "overrun_ms": 0,
            "early_inputs": 1, "early_input_bytes": MIB, "early_input_age_ms": 1, "max_message_bytes": MIB,
            "output_backlog_bytes": MIB, "slab_bytes": 0, "controller_silence_ms": 100, "hello_retry_ms": 10,
            "drain_timeout_ms": 0,
        }  # fmt: skip
        for field, minimum in least.items():
            value = getattr(self, field)
            if value < minimum:
                raise ValueError(f"{field} must be at least {minimum}, not {value}")
        if self.heartbeat_ms and not HEARTBEAT_MS[0] <= self.heartbeat_ms <= HEARTBEAT_MS[1]:
            raise ValueError(
                "heartbeat_ms must be 0, for no heartbeats, or from {:g} to {:g}, not {:g}: no EXEC begins "
                "during one, which takes some tens of microseconds".format(*HEARTBEAT_MS, self.heartbeat_ms)
            )
