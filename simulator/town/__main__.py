"""Play many towns: ``python -m mainspring.simulator.town [--first] SEEDS [FIRST [WORKLOAD]]``.

``--first``: one after the other until one fails; how many were played is printed, and nothing is made small.
"""

from __future__ import annotations

import sys

from mainspring.simulator.town.seeds import fails, play


def main(arguments: list[str]) -> int:
    """Play and tell; return the exit status."""
    until_first = "--first" in arguments
    arguments = [each for each in arguments if each != "--first"]
    count = int(arguments[0]) if arguments else 300
    first = int(arguments[1]) if len(arguments) > 1 else 0
    workload = arguments[2] if len(arguments) > 2 else ""
    if until_first:
        failing = (seed for seed in range(first, first + count) if fails(seed, workload))
        found = next(failing, None)
        print(f"{count if found is None else found - first + 1} seeds")
        return int(found is not None)
    played = play(range(first, first + count), workload)
    print(played)
    return int(bool(played.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
