"""The compiled core decides what the Python core decides, to the nanosecond, in seeded simulations."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mainspring.native import CORE, SWITCH, Use
from mainspring.scheduler.policies.registry import policy_names

PLAY = """
import hashlib
import mainspring.scheduler.core as core
from mainspring.simulator.scenario import random_scenario, run_to_end
print("Python" if core.__file__.endswith(".py") else "compiled")
for seed, policy in {cases}:
    digest, counted = hashlib.sha256(), [0]
    def record(now_ns, message):
        counted[0] += 1
        digest.update(repr((now_ns, message)).encode())
    run_to_end(random_scenario(seed, policy, length_ns=500_000_000, validate_every=100, record=record))
    print(seed, policy, counted[0], digest.hexdigest())
"""


def play(cases: list[tuple[int, str]], switch: str) -> list[str]:
    """Return how the core ran, and each case's number of messages and their hash."""
    environment = {**os.environ, SWITCH: switch}
    command = [sys.executable, "-c", PLAY.format(cases=cases)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(CORE.state().use is not Use.COMPILED, reason="not compiled: make native")
def test_every_policy_decides_the_same_compiled_and_as_python() -> None:
    cases = [(seed, "clockwork") for seed in (3, 8, 11, 17)] + [(5, name) for name in policy_names()]
    compiled, python = play(cases, ""), play(cases, "0")
    assert (compiled[0], python[0]) == ("compiled", "Python")
    assert compiled[1:] == python[1:]
    assert all(int(line.split()[2]) > 50 for line in python[1:]), "too little happened to compare"
