"""A full disk, a folder without permission, an altered store: said at once, with what would help."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.running import ClusterError
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.events import RequestCancelled
from mainspring.telemetry.log import EventLogWriter, read_log
from mainspring.worker.config import MIB
from tests.controller.peers import Stage, spec

NOBODY = 65534
SMALL_KB = 512


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_KB}k,mode=777", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def without_override(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that files' permissions bind, even if it is root's."""
    bound = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("permissions do not bind root without setpriv")
        bound = [setpriv, "--bounding-set=-dac_override,-dac_read_search,-fowner,-chown"]
    return subprocess.run(
        [*bound, sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def fill(disk: Path) -> None:
    """Write until nothing more fits."""
    with (disk / "rest").open("wb", 0) as rest, contextlib.suppress(OSError):
        while rest.write(bytes(4096)):
            pass


def test_a_full_disk_switches_the_event_log_off_and_serving_goes_on(stage: Stage, small_disk: Path) -> None:
    stage.start((spec(),), event_log_dir=str(small_disk / "events"))
    gateway, _ = stage.cluster("m0")
    fill(small_disk)

    def off() -> bool:
        for _ in range(50):
            gateway.arrive(next(numbers), left_ms=None)
        return any("event log off" in why for why in stage.status(gateway).dropped_messages)

    numbers = iter(range(1, 1 << 30))
    stage.until(off)
    dropped = stage.status(gateway).dropped_messages
    (why,) = [key for key in dropped if "event log off" in key]
    assert "No space left on device" in why
    assert str(small_disk) in why
    assert dropped[why] > 0
    assert stage.status(gateway).workers, "the cluster should serve on"


def test_what_was_logged_before_the_disk_was_full_is_readable(small_disk: Path) -> None:
    log = EventLogWriter(small_disk / "events")
    written = 0
    while log.problem is None:
        log.append(written, RequestCancelled(written))
        written += 1
    log.close()
    read = [now_ns for now_ns, _ in read_log(small_disk / "events")]
    assert read == list(range(len(read)))
    assert len(read) > 1_000
    assert len(read) + log.dropped >= written


def test_a_store_on_a_full_disk_says_so_and_leaves_nothing_half_written(small_disk: Path) -> None:
    with pytest.raises(StoreError, match=r"No space left on device; choose a folder with enough room"):
        list(compile_zoo(["resnet20"], Store(small_disk / "store"), batch_sizes=(1,)))
    assert Store(small_disk / "store").names() == []
    left = [path for path in (small_disk / "store").rglob("*") if path.is_file()]
    assert not [path for path in left if ".writing-" in str(path)], left


def test_a_cluster_whose_run_folder_is_on_a_full_disk_says_so(small_disk: Path, profiles: Path) -> None:
    fill(small_disk)
    command = ["-m", "mainspring", "up", "--engine", "emulated", "--profiles", str(profiles), "--port", "0"]
    done = subprocess.run(
        [sys.executable, *command], cwd=small_disk, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    *steps, complaint = done.stderr.splitlines()
    assert complaint == "mainspring: No space left on device"
    assert all(step.endswith("...") for step in steps), done.stderr


def given_away(*paths: Path) -> None:
    """Make what may be done with files and folders somebody else's to say."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize(
    "verb",
    [
        ["zoo", "digits", "--batch-sizes", "1"],
        ["up", "--port", "0"],
        ["models", "list"],
        ["doctor", "--json"],
        ["controller", "--address", "unix://controller.sock"],
    ],
)
def test_a_store_that_may_not_be_read_says_whose_it_is_and_the_remedy(
    tmp_path: Path, verb: list[str]
) -> None:
    store = tmp_path / "store"
    (store / "models").mkdir(parents=True)
    given_away(store)
    store.chmod(0o700 if os.geteuid() == 0 else 0)
    done = without_override("-m", "mainspring", *verb, "--store", str(store), cwd=tmp_path)
    assert done.returncode == 1, done
    said = done.stdout if "--json" in verb else done.stderr
    tried = "can't write" if verb[0] == "zoo" else "can't read"
    assert f"{tried} {store}" in said
    assert "Permission denied (" in said
    assert "--store DIR" in said
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one model."""
    store = tmp_path_factory.mktemp("compiled") / "store"
    list(compile_zoo(["digits"], Store(store), batch_sizes=(1,)))
    return store


@pytest.mark.parametrize(
    "hidden", ["models/digits", "models/digits/manifest.json", "weights/*.bin", "executables/*/graph.onnx"]
)
def test_one_file_of_a_store_that_may_not_be_read_is_named(
    tmp_path: Path, compiled: Path, hidden: str
) -> None:
    store = tmp_path / "store"
    shutil.copytree(compiled, store)
    (path,) = store.glob(hidden)
    given_away(path)
    path.chmod(0o700 if path.is_dir() else 0o600 if os.geteuid() == 0 else 0)
    done = without_override(
        "-m", "mainspring", "up", "--port", "0", "--store", str(store), "--run-dir", "run", cwd=tmp_path
    )
    assert done.returncode == 1
    assert f"can't read {path}" in done.stderr
    assert f"chmod -R a+rX {store}" in done.stderr
    assert done.stderr.count("\n") == 1, "it should be found before anything is started"


def test_a_store_that_may_not_be_written_is_named_before_anything_is_compiled(
    tmp_path: Path, compiled: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(compiled, store)
    given_away(store)
    store.chmod(0o755 if os.geteuid() == 0 else 0o555)
    verb = ["zoo", "digits", "resnet50", "--batch-sizes", "1"]
    done = without_override("-m", "mainspring", *verb, "--store", str(store), cwd=tmp_path)
    assert done.returncode == 1
    assert "(kept)" in done.stdout, "what is there may be read"
    assert f"can't write {store}: Permission denied ({store} belongs to" in done.stderr
    assert "choose a folder" in done.stderr


def test_a_run_folder_that_may_not_be_written_is_named(tmp_path: Path, compiled: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755 if os.geteuid() == 0 else 0o555)
    given_away(folder)
    flags = ["--store", str(compiled), "--port", "0", "--run-dir", str(folder / "run")]
    done = without_override("-m", "mainspring", "up", *flags, cwd=tmp_path)
    assert done.returncode == 1
    complaint = f"can't write to the folder {folder}/run: Permission denied; choose another folder"
    assert done.stderr.splitlines()[-1] == f"mainspring: {complaint} with --run-dir"


def altered(path: Path) -> None:
    """Change one byte in the middle of a file."""
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize("victim", ["weights/*.bin", "executables/*/graph.onnx"])
def test_an_altered_store_ends_the_start_with_a_remedy_that_works(tmp_path: Path, victim: str) -> None:
    store = tmp_path / "store"
    (first,) = compile_zoo(["digits"], Store(store), batch_sizes=(1, 2))
    (path,) = store.glob(victim)
    altered(path)
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {"store": str(store), "run_dir": str(tmp_path / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 2, "io_bytes": MIB},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    complaint = (
        rf"model digits can't be served: worker-0: {path} was altered .*`mainspring zoo digits --store"
    )
    with pytest.raises(ClusterError, match=complaint):
        LocalCluster(make_plan(config), lambda _: None).__enter__()
    (again,) = compile_zoo(["digits"], Store(store), batch_sizes=(1, 2))
    assert not again.kept
    Store(store).verify("digits")
    (kept,) = compile_zoo(["digits"], Store(store), batch_sizes=(1, 2))
    assert kept.kept
    assert kept.manifest.weights_hash == first.manifest.weights_hash
