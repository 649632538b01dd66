"""What every test needs: its tier, a process whose heap is swept out of the way, and no haste."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from mainspring.native import CORES
from tests import fuzz, host
from tests.tiers import TESTS, TIERS, is_compiled, is_heart, name_of, tier_of

# On a busy machine any example may take long, which says nothing about what is tested. Examples are the same
# each time, so that a change is judged by what it changes; `make fuzz` draws others.
settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    print_blob=True,
    derandomize=fuzz.SEED is None,
)
settings.load_profile("unhurried")

_WANTED = pytest.StashKey[frozenset[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        metavar="TIER[,TIER]",
        help=f"run only the tests of {', '.join(TIERS)}, heart (what make test runs of cluster) or compiled "
        "(what make test-rest runs again of unit)",
    )
    parser.addoption("--not-heart", action="store_true", help="leave out what make test runs of cluster")
    parser.addoption(
        "--fewer-examples",
        action="store_true",
        help=f"of property tests that make test-rest runs again, draw one example in {fuzz.FEWER}",
    )


def pytest_configure(config: pytest.Config) -> None:
    for tier, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{tier}: {meaning}")
    wanted = frozenset(filter(None, (config.getoption("--tier") or "").split(",")))
    if unknown := wanted - {*TIERS, "heart", "compiled"}:
        known = ", ".join((*TIERS, "heart"))
        raise pytest.UsageError(f"no tier {', '.join(unknown)}: there are {known} and compiled")
    config.addinivalue_line(
        "markers", "timing(reason): measures real time; at most five tests, see tests/run.py"
    )
    config.addinivalue_line("markers", "seeded: plays random things by seed; see tests/fuzz.py")
    config.stash[_WANTED] = wanted
    # A build that is stale is reported by this process, not among what is said by those under test.
    for core in CORES:
        core.state()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of another tier than those that were asked for."""
    wanted = config.stash[_WANTED]
    if not wanted or collection_path.suffix != ".py" or not collection_path.is_relative_to(TESTS):
        return None
    name = name_of(collection_path)
    if is_heart(name):
        asked = not config.getoption("--not-heart") and not wanted.isdisjoint(("heart", "cluster"))
    else:
        asked = tier_of(name) in wanted or ("compiled" in wanted and is_compiled(name))
    # None leaves it to the next one to say.
    return None if asked else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier."""
    for item in items:
        name = name_of(item.path)
        tier = tier_of(name)
        if tier is None:
            one_of = ", ".join(TIERS)
            raise pytest.UsageError(
                f"tests/{name}.py has no tier: add its folder to TIER_OF of tests/tiers.py as one of {one_of}"
            )
        item.add_marker(tier)
    if fuzz.SEED is not None:
        fuzz.vary(items)
    elif config.getoption("--fewer-examples"):
        fuzz.thin([item for item in items if is_compiled(name_of(item.path))])


def pytest_runtest_setup() -> None:
    fuzz.stop_in_time()


@pytest.fixture(scope="module", autouse=True)
def swept_heap() -> Iterator[None]:
    """Take what other tests left behind out of the collector's sight.

    To go through it takes half a second, in which all threads of this process stand still: no server of the
    product shares its process with the modules of four thousand tests. What the product does with the
    collector itself, it does here too.
    """
    gc.collect()
    gc.freeze()
    yield
    assert gc.isenabled(), "what serves turns the garbage collector on again when it ends"


@pytest.fixture(autouse=True)
def same_rights() -> Iterator[None]:
    """Fail a test after which this process runs elsewhere, or before others: so would all after it."""
    before = _rights()
    yield
    assert _rights() == before, "cores, scheduling class and niceness should be as they were before the test"


@pytest.fixture(autouse=True)
def watched_host(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep beside a test of real time what the host took meanwhile."""
    if request.node.get_closest_marker("timing") is None:
        yield
        return
    before = host.taken()
    yield
    request.node.user_properties.extend(
        (("timing", request.node.nodeid), ("host", host.taken().since(before)))
    )


@pytest.fixture(autouse=True)
def no_socket(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a unit test that listens on a socket: it belongs to another tier."""
    if request.node.get_closest_marker("unit") is None:
        yield
        return
    _Listening.forbidden_in = name_of(request.path)
    yield
    _Listening.forbidden_in = None


class _Listening:
    """Hook that refuses to bind sockets while a unit test runs."""

    forbidden_in: str | None = None

    @classmethod
    def audit(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.bind" and cls.forbidden_in is not None:
            raise AssertionError(
                f"a unit test opens no socket: make {cls.forbidden_in!r} cluster in TIER_OF of tests/tiers.py"
            )


sys.addaudithook(_Listening.audit)


def _rights() -> tuple[set[int], int, int]:
    return os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
