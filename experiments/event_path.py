"""Files that an event passes: `make event-path` plays a simulation and watches `Scheduler.handle`, as Python.

For each kind of event: medians of its files of cluster/ and scheduler/, and of calls back to one it had left.
"""

import sys
from collections import defaultdict
from itertools import pairwise
from statistics import median

from mainspring.experiments.scheduler_decisions import specs
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.run import simulate

ways, handle = defaultdict[str, list[tuple[int, int]]](list), Scheduler.handle


def watched(scheduler: Scheduler, now_ns: int, event: object) -> None:
    """Handle an event and note its way."""
    way: list[str] = []
    sys.setprofile(lambda frame, what, _: way.append(frame.f_code.co_filename) if what == "call" else None)
    handle(scheduler, now_ns, event)  # type: ignore[arg-type]
    sys.setprofile(None)
    way = ["", *(file for file in way if "/cluster/" in file or "/scheduler/" in file)]
    left = [file for before, file in pairwise(way) if file != before]
    ways[type(event).__name__].append((len(set(left)), len(left) - len(set(left))))


if __name__ == "__main__":
    Scheduler.handle = watched  # type: ignore[method-assign, assignment]
    simulate(specs()["scarce memory"], analyse=False)
    for kind, found in ways.items():
        files, returns = (median(each) for each in zip(*found, strict=True))
        print(f"{kind}: {len(found)} events, {files:.0f} files, {returns:.0f} returns")
