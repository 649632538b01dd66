"""What requests without a deadline get under the default policy, beside requests with one."""

from __future__ import annotations

import tomllib

from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec
from mainspring.traces.records import NO_DEADLINE, OUTPUTS

SPEC = """
warm_up_s = 1
duration_s = 5
devices = [{ count = 2, pages = 40 }]
workload = [
  { kind = "gamma", models = "small*", rate = 500, slo_ms = 50 },
  { kind = "poisson", models = "large*", rate = 20, slo_ms = 200 },
  { kind = "closed", models = "small-1", concurrency = 4, best_effort = true },
]
faults = { crashes = [{ worker = "worker-1", at_s = 3.0, down_s = 0.5 }] }

[[models]]
name = "small"
copies = 12
infer_ms = { 1 = 2.5, 2 = 3.4, 4 = 5.2, 8 = 9.0 }
load_ms = 8.0
weights_mb = 100.0

[[models]]
name = "large"
copies = 2
infer_ms = { 1 = 12.0, 2 = 20.0, 4 = 36.0 }
load_ms = 30.0
weights_mb = 360.0
"""
SEEDS = (0, 1, 2)


def served(policy: str) -> tuple[int, int]:
    """Return how many were answered in time, and how many without a deadline were answered."""
    in_time = best_effort = 0
    for seed in SEEDS:
        table = {**tomllib.loads(SPEC), "seed": seed}
        spec = parse_spec({**table, "scheduler": {"policy": policy}}, "spec")
        sent, replied = simulate(spec, analyse=False).records.columns()
        answered, free = replied["outcome"] == OUTPUTS, sent["slo_ns"] == NO_DEADLINE
        taken_ns = replied["replied_ns"] - sent["intended_ns"]
        in_time += int((answered & ~free & (taken_ns <= sent["slo_ns"])).sum())
        best_effort += int((answered & free).sum())
    return in_time, best_effort


def test_the_default_policy_serves_no_less_without_a_deadline_than_clockwork_does() -> None:
    """Memory is short and a worker crashes, so that deadlines are missed whatever runs in the gaps."""
    in_time, best_effort = served("mainspring")
    clockwork_in_time, clockwork_best_effort = served("clockwork")
    assert best_effort > 0.95 * clockwork_best_effort
    assert in_time > 0.99 * clockwork_in_time
