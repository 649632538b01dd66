"""Play many towns: ``python -m mainspring.simulator.town SEEDS [FIRST] [WORKLOAD]`` (`make chaos-sim`)."""

from __future__ import annotations

import sys

from mainspring.simulator.town.seeds import play


def main(arguments: list[str]) -> int:
    """Play and tell; return the exit status."""
    count = int(arguments[0]) if arguments else 300
    first = int(arguments[1]) if len(arguments) > 1 else 0
    played = play(range(first, first + count), arguments[2] if len(arguments) > 2 else "")
    print(played)
    return 1 if played.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
