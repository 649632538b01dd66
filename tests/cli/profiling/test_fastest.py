"""The fastest of several artifacts: how it is found, and what can't be compared."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.cli.profiling.profiling import Measured, check_alike, keep_fastest, per_row_ns
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Timing
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.tables import ConfigError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("fastest") / "store")
    list(compile_zoo(["digits"], store, 2, batch_sizes=(1, 2)))
    return store


def measured(name: str, one_ns: int, two_ns: int) -> Measured:
    timings = {size: Timing(9, ns, ns, ns) for size, ns in ((1, one_ns), (2, two_ns))}
    return Measured(
        models=(name,), source="", engine="tvm", input_bytes=1, output_bytes=1, weights_bytes=1,
        load=timings[1], infer=timings,
    )  # fmt: skip


def test_all_batch_sizes_count_alike() -> None:
    assert per_row_ns(measured("a", 100, 200)) == pytest.approx(100)
    assert per_row_ns(measured("a", 400, 200)) == pytest.approx(200)


def test_the_fastest_is_stored_under_the_name(store: Store) -> None:
    rows = [measured("digits-1", 100, 150), measured("digits-2", 90, 160)]
    assert keep_fastest(store, rows, "digits") is rows[1]
    kept, source = store.manifest("digits"), store.manifest("digits-2")
    assert kept == msgspec.structs.replace(source, name="digits")
    store.verify("digits")
    store.remove("digits")


def test_what_can_not_be_compared_is_refused(store: Store) -> None:
    first, copy = (store.manifest(name) for name in ("digits-1", "digits-2"))
    second = msgspec.structs.replace(copy, executable="0" * 64)
    check_alike([first, second], "digits")
    other_sizes = msgspec.structs.replace(second, batch_sizes=(1,))
    other_outputs = msgspec.structs.replace(second, outputs=first.inputs)
    cases: list[tuple[list[Manifest], str]] = [
        ([first], "two of them at least"),
        ([], "two of them at least"),
        ([first, copy], "digits-1 and digits-2 share an executable"),
        ([first, other_sizes], r"batch sizes \[1, 2\] and \[1\]"),
        ([first, other_outputs], "differ in their inputs or outputs"),
    ]
    for manifests, says in cases:
        with pytest.raises(ConfigError, match=says):
            check_alike(manifests, "digits")


def test_the_name_has_to_be_one(store: Store, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="can't be the name of a model"):
        check_alike(store.manifests(), "../digits")
