"""``python -m mainspring.native``: compile what is not compiled yet. `make native` runs it."""

from __future__ import annotations

import argparse
import sys

from mainspring.native import store
from mainspring.native.builder import CannotCompile, build
from mainspring.native.units import UNITS


def main(arguments: list[str]) -> int:
    """Compile the units; return the exit code, which tells only with ``--strict`` that one can't be."""
    parser = argparse.ArgumentParser("python -m mainspring.native", description=__doc__)
    names = [unit.name for unit in UNITS]
    chosen = f"{' or '.join(names)}; all by default"
    parser.add_argument("units", nargs="*", choices=[*names, []], metavar="UNIT", help=chosen)
    parser.add_argument("--strict", action="store_true", help="fail if something can't be compiled")
    parser.add_argument("--quiet", action="store_true", help="say nothing if nothing is to be done")
    options = parser.parse_args(arguments)
    if store.switched_off():
        print(f"native: {store.SWITCH}=0: everything runs as Python")
        return 0
    failed = False
    for unit in (unit for unit in UNITS if unit.name in (options.units or names)):
        try:
            done = build(unit)
        except CannotCompile as error:
            failed = True
            print(f"native: {unit.purpose} will run as Python, at {unit.cost}: {error}", file=sys.stderr)
        else:
            if done or not options.quiet:
                print(f"native: {done or f'{unit.purpose}: compiled already'}")
    return int(failed and options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
