"""Look for what nobody has found yet: ``python -m tests.fuzz MINUTES [ARGUMENT OF PYTEST]...`` (`make fuzz`).

CI judges a change by the same examples each time, so that its verdict depends on the change. This runs the
same tests with other ones until its time is over or something fails: property tests draw `MORE` times as many
examples, from a seed of the round, and tests that are `seeded` play as many times more seeds, which none has
played. What fails is pinned in its test, with `@example` or among the seeds, once it is mended.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

ROUND = "MAINSPRING_FUZZ"
UNTIL = "MAINSPRING_FUZZ_UNTIL"
SEED = int(os.environ[ROUND]) if os.environ.get(ROUND) else None
"""Decides what is drawn in this run; None where it is the same as ever."""
MORE = int(os.environ.get("MAINSPRING_EXAMPLES") or 20)
"""How many times as many examples and seeds there are."""
FEWER = 4
"""How many times fewer examples there are where the same test runs once more, with compiled code."""
ROUNDS = 1_000_000
SEEDS_OF_A_ROUND = 10_000
LONGEST_TEST_S = 3_600


def seeds(count: int, first: int = 0) -> range:
    """Return the seeds from ``first`` on; others, and more of them, in a run that looks for bugs."""
    if SEED is None:
        return range(first, first + count)
    first = (SEED + 1) * SEEDS_OF_A_ROUND
    return range(first, first + min(count * MORE, SEEDS_OF_A_ROUND))


def seeded(count: int, first: int = 0, *, also: Sequence[int] = ()) -> Callable[[Any], Any]:
    """Have a test run once for each of `seeds`, its argument ``seed``, and for those that failed once."""
    known = () if SEED is not None else also

    def decorate(test: Any) -> Any:
        return pytest.mark.seeded(pytest.mark.parametrize("seed", [*known, *seeds(count, first)])(test))

    return decorate


def vary(items: list[pytest.Item]) -> None:
    """Have property tests draw more and other examples, and files come in another order."""
    assert SEED is not None
    for drawing, holder, name in _property_tests(items):
        if getattr(drawing, "_hypothesis_internal_use_seed", None) is None:
            drawing._hypothesis_internal_use_seed = SEED
            _scale(holder, name, MORE)
    order = sorted({item.path for item in items})
    random.Random(SEED).shuffle(order)
    items.sort(key=lambda item: order.index(item.path))


def thin(items: list[pytest.Item]) -> None:
    """Have property tests draw one in `FEWER` of their examples."""
    for _, holder, name in _property_tests(items):
        _scale(holder, name, 1 / FEWER)


def _property_tests(items: list[pytest.Item]) -> Iterator[tuple[Any, Any, str]]:
    """Yield once each: what has a test's seed, what holds its settings, and as which attribute."""
    seen: set[Any] = set()
    for item in items:
        # No public name changes what a test says itself of its settings.
        test: Any = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
        if test in seen:
            continue
        seen.add(test)
        if machine := getattr(test, "_hypothesis_state_machine_class", None):
            yield machine, getattr(item, "cls", None), "settings"
        elif getattr(test, "is_hypothesis_test", False):
            yield test, test, "_hypothesis_internal_use_settings"


def _scale(holder: Any, name: str, factor: float) -> None:
    usual = getattr(holder, name)
    setattr(holder, name, settings(usual, max_examples=max(1, round(usual.max_examples * factor))))


def stop_in_time() -> None:
    """Skip what has not begun when the time is over."""
    until = os.environ.get(UNTIL)
    if until and time.time() > float(until):
        pytest.skip("the time is over")


def main(arguments: Sequence[str]) -> int:
    """Run rounds until the time is over or a test fails; return pytest's exit code of the last one."""
    try:
        until = time.time() + 60 * float(arguments[0])
    except (IndexError, ValueError):
        print("usage: python -m tests.fuzz MINUTES [ARGUMENT OF PYTEST]...", file=sys.stderr)
        return 2
    cores = len(os.sched_getaffinity(0))
    command = (
        *(sys.executable, "-m", "pytest", "-m", "hypothesis or seeded", "--timeout", str(LONGEST_TEST_S)),
        *("-n", str(cores), "--dist", "loadfile", "--no-loadscope-reorder", "--durations=10", *arguments[1:]),
    )
    while True:
        seed = random.SystemRandom().randrange(ROUNDS)
        print(f"\n== what fails, {ROUND}={seed} pytest TEST runs again ==", flush=True)
        variables = {ROUND: str(seed), UNTIL: str(until)}
        code = subprocess.call(command, env={**os.environ, **variables})
        if code or time.time() > until:
            return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
