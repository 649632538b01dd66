"""The lease that controllers share: one holder at a time, as far as a lease can, and each epoch once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.controller.lease import TTL_NS, Leadership
from mainspring.controller.lease_files import FileStore, open_store
from tests.patience import PATIENCE_S

HOLDS = """
import sys, time
from mainspring.controller.lease_files import FileStore
store = FileStore(sys.argv[1], "other", "unix:///other")
print(store.claim(int(sys.argv[2]), 1), flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "lease")


def test_a_claim_is_for_one_and_ends_with_its_time(path: str) -> None:
    one, other = FileStore(path, "one", "unix:///one"), FileStore(path, "other")
    assert one.look(0) is None
    assert one.claim(0, 1)
    assert not other.claim(0, 2)
    lease = other.look(TTL_NS - 1)
    assert lease is not None
    assert (lease.epoch, lease.holder, lease.address, lease.held) == (1, "one", "unix:///one", True)
    assert one.renew(TTL_NS // 2)
    assert not other.claim(TTL_NS, 2)
    # The holder is alive, as its lock says, but it has not renewed.
    assert other.claim(2 * TTL_NS, 2)
    assert not one.renew(2 * TTL_NS)
    assert not one.claim(2 * TTL_NS, 3)


def test_an_epoch_is_claimed_once(path: str) -> None:
    one, other = FileStore(path, "one"), FileStore(path, "other")
    assert one.claim(0, 5)
    one.release()
    assert not other.claim(1, 5)
    assert not other.claim(1, 4)
    assert other.claim(1, 6)


def test_what_is_given_back_is_free_at_once(path: str) -> None:
    one, other = FileStore(path, "one"), FileStore(path, "other")
    assert one.claim(0, 1)
    one.release()
    lease = other.look(1)
    assert lease is not None
    assert not lease.held
    assert other.claim(1, 2)


def test_a_death_frees_it_at_once(path: str) -> None:
    now_ns = time.monotonic_ns()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, path, str(now_ns)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    here = FileStore(path, "here")
    assert not here.claim(now_ns, 2)
    process.kill()
    process.wait(PATIENCE_S)
    assert here.claim(now_ns, 2)


@pytest.mark.parametrize("content", [b"", b"{", b'{"holder":1}', b"\xff" * 5000])
def test_a_damaged_lease_is_held_as_long_as_its_holder_lives(path: str, content: bytes) -> None:
    one, other = FileStore(path, "one"), FileStore(path, "other")
    assert one.claim(0, 1)
    Path(f"{path}.1").write_bytes(content)
    assert not other.claim(10 * TTL_NS, 2)
    one.close()
    assert other.claim(10 * TTL_NS, 2)


def test_a_place_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file:PATH"):
        open_store("lease", "one", "")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        open_store(f"file:{tmp_path}/file/lease", "one", "")


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["claim", "renew", "release", "die"]), st.integers(0, TTL_NS)
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_they_do_epochs_rise_and_one_leads(tmp_path_factory: pytest.TempPathFactory, steps) -> None:  # type: ignore[no-untyped-def]
    path = str(tmp_path_factory.mktemp("lease") / "lease")
    stores = [FileStore(path, f"c{number}") for number in range(3)]
    cores = [Leadership() for _ in stores]
    claimed: list[int] = []
    now_ns = 1
    for number, step, later_ns in steps:
        now_ns += later_ns
        store, core = stores[number], cores[number]
        lease = store.look(now_ns)
        core.told(lease.epoch if lease is not None else 0)
        match step:
            case "claim" if store.claim(now_ns, core.next_epoch):
                claimed.append(core.next_epoch)
                core.claimed(now_ns, core.next_epoch)
            case "renew" if core.leads:
                if store.renew(now_ns):
                    core.renewed(now_ns)
                else:
                    core.lost()
            case "release":
                store.release()
                core.lost()
            case "die":
                store.close()
                stores[number], cores[number] = FileStore(path, f"c{number}"), Leadership()
        for each in cores:
            each.validate()
        assert sum(each.grants(now_ns) for each in cores) <= 1
    assert claimed == sorted(set(claimed))
