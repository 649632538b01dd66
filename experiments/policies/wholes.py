"""Fate of requests of many rows beside ordinary ones: ``python -m mainspring.experiments.policies.wholes``.

Such a request becomes a query of several batches, answered as a whole or not at all. Two devices hold four
models; half of the load is requests of 500 rows, the other half ordinary ones of 1 and 8 rows with less time.
In virtual time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from mainspring.experiments.policies.cell import Job, play_requests
from mainspring.experiments.policies.played import models_of, read_table
from mainspring.experiments.policies.scenarios import RESNET, USUAL, Group, Scenario
from mainspring.traces.arrival import SECOND_NS, Arrival
from mainspring.traces.records import OUTPUTS
from mainspring.traces.shapes import best_request_ns

ROWS, WHOLE_MS = 500, 1_500.0
"""Rows of a large request, and the time that it is given."""
ORDINARY = ((100.0, 1), (100.0, 8))
"""SLO in ms and rows of the others."""
MODELS, DEVICES = 4, 2
PART = 0.5
"""Part of the load that large requests are."""
ON_ARRIVAL_NS = 2_000_000
"""Longest time to a refusal that counts as one on arrival."""


class Fate(msgspec.Struct, frozen=True):
    """The fate of the requests of a kind."""

    asked: int
    refused: int
    """Requests that were refused on arrival."""
    answered: int
    """Requests that were answered in time."""

    @property
    def in_vain(self) -> int:
        """Requests that were admitted and not answered in time."""
        return self.asked - self.refused - self.answered

    def told(self) -> str:
        """Say it."""
        return (
            f"{self.asked} asked, {self.refused} refused on arrival, {self.answered} answered in time, "
            f"{self.in_vain} admitted in vain"
        )


def fates(table: Path, policy: str, load: float, wholes: int, seed: int) -> tuple[Fate, Fate]:
    """Return what became of large requests, about so many, and of the ordinary ones beside them."""
    group = Group(varieties=RESNET, copies=MODELS, slo_ms=ORDINARY[0][0])
    scenario = Scenario(name="wholes", title="", groups=(group,), devices={USUAL: DEVICES})
    served = models_of(scenario, read_table(table))
    names = [each.spec.name for each in served]
    infer_ns = served[0].spec.profiles[USUAL].infer_ns
    whole_s = -(-ROWS // max(infer_ns)) * infer_ns[max(infer_ns)] / 1e9
    others_s = [best_request_ns(infer_ns, slo_ms * 1e6, rows) / 1e9 for slo_ms, rows in ORDINARY]
    rate = load * DEVICES * PART / whole_s
    seconds = wholes / rate
    rng = np.random.default_rng([seed, 7])
    found = [
        Arrival(round(at * SECOND_NS), names[rng.integers(MODELS)], ROWS, round(WHOLE_MS * 1e6))
        for at in rng.random(wholes) * seconds
    ]
    others = round(load * DEVICES * (1 - PART) / (sum(others_s) / len(others_s)) * seconds)
    for at in rng.random(others) * seconds:
        slo_ms, rows = ORDINARY[rng.integers(len(ORDINARY))]
        found.append(Arrival(round(at * SECOND_NS), names[rng.integers(MODELS)], rows, round(slo_ms * 1e6)))
    found.sort(key=lambda each: each.time_ns)
    job = Job(
        scenario="wholes", policy=policy, load=load, seed=seed, seconds=seconds, warm_up=0.0,
        most_requests=len(found), table=str(table), bounds=None,
    )  # fmt: skip
    _, sent, replied = play_requests(job, scenario, served, [], found)
    took_ns = replied["replied_ns"] - sent["intended_ns"]
    answered = replied["outcome"] == OUTPUTS
    in_time, refused = answered & (took_ns <= sent["slo_ns"]), ~answered & (took_ns <= ON_ARRIVAL_NS)
    large = sent["rows"] == ROWS
    large_, other = (
        Fate(int(kind.sum()), int((refused & kind).sum()), int((in_time & kind).sum()))
        for kind in (large, ~large)
    )
    return large_, other


def main(
    policy: Annotated[str, typer.Option(help="As of `make policies`.")] = "mainspring",
    load: Annotated[float, typer.Option(help="Multiple of what fills the devices.")] = 0.8,
    wholes: Annotated[int, typer.Option(help="Large requests.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    profiles: Annotated[Path, typer.Option(help="Table of profiles (Clockwork's appendix A).")] = Path(
        "../shared/profiles/clockwork_table1.csv"
    ),
) -> None:
    """Say how many large requests were refused on arrival, answered, and ended after they were admitted."""
    large, others = fates(profiles, policy, load, wholes, seed)
    print(f"{policy} at {load:g}: requests of {ROWS} rows: {large.told()}")
    print(f"{policy} at {load:g}: ordinary requests: {others.told()}")


if __name__ == "__main__":
    typer.run(main)
