"""Memory nodes, according to Linux: which cores are near a GPU, and pages that are spread over all nodes."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

MBIND = {"x86_64": 237, "aarch64": 235}
"""The number of the system call by machine: the C library has no function for it."""
MPOL_INTERLEAVE = 3
SYSTEM = Path("/sys")
_BUS_ID = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])")


def normal_bus_id(text: str) -> str:
    """Return a place on the PCI bus as Linux writes it, ``0000:3b:00.0``; other text in lower case."""
    found = _BUS_ID.fullmatch(text.strip())
    if found is None:
        return text.strip().lower()
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def node_of(bus_id: str, system: Path = SYSTEM) -> int | None:
    """Return the memory node of a device; None where Linux names none, as on machines of one node."""
    try:
        node = int((_device(bus_id, system) / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def cores_near(bus_id: str, system: Path = SYSTEM) -> frozenset[int]:
    """Return the cores near a device; empty where Linux names none."""
    try:
        return parse_cores((_device(bus_id, system) / "local_cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def parse_cores(text: str) -> frozenset[int]:
    """Return the cores in a list such as ``0-3,8,10-11``; raise `ValueError` for other text."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def memory_nodes(system: Path = SYSTEM) -> frozenset[int]:
    """Return the nodes that have memory; empty where Linux names none."""
    try:
        return parse_cores((system / "devices/system/node/has_memory").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def interleave(address: int, size: int, nodes: frozenset[int] | None = None) -> str:
    """Have the untouched pages of a mapping come from the nodes in turn, those of `memory_nodes` by default.

    For shared memory that holds in every process that maps it. Returns why it can't be, empty if it is so or
    there is one node alone.
    """
    wanted = memory_nodes() if nodes is None else nodes
    if nodes is None and len(wanted) < 2:
        return ""
    number = MBIND.get(platform.machine())
    if number is None:
        return f"mbind is not known for {platform.machine()}"
    words = [0] * (max(wanted) // 64 + 1)
    for node in wanted:
        words[node // 64] |= 1 << node % 64
    mask = (ctypes.c_uint64 * len(words))(*words)
    call = ctypes.CDLL(None, use_errno=True).syscall
    arguments = (number, address, size, MPOL_INTERLEAVE, ctypes.addressof(mask), 64 * len(words) + 1, 0)
    if call(*map(ctypes.c_long, arguments)) == 0:
        return ""
    return f"mbind: {os.strerror(ctypes.get_errno())}"


def _device(bus_id: str, system: Path) -> Path:
    return system / "bus" / "pci" / "devices" / normal_bus_id(bus_id)
