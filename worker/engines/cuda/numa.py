"""Which cores are near a GPU, according to Linux: those of the memory node that its bus belongs to."""

from __future__ import annotations

import re
from pathlib import Path

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


def _device(bus_id: str, system: Path) -> Path:
    return system / "bus" / "pci" / "devices" / normal_bus_id(bus_id)
