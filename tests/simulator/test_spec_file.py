"""Specs from files: what is read, and what errors say."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from mainspring.messages.actions import Command, Infer
from mainspring.messages.events import Event
from mainspring.messages.tables import ConfigError
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import SpecError, WorkloadSpec
from mainspring.simulator.spec_file import put_policy, put_trace, read_spec, read_table
from mainspring.traces.arrival import WorkloadError

GOOD = """
duration_s = 3
seed = 4
[[devices]]
count = 2
[[models]]
name = "m"
infer_ms = { 1 = 2.0, 2 = 3.0 }
[[workload]]
rate = 10
[[workload]]
kind = "closed"
[scheduler]
policy = "clockwork"
[[faults.crashes]]
worker = "worker-1"
at_s = 1.0
[cost]
mode = "table"
[cost.controller]
schedule_us = 5.0
handle_us = { request_arrived = 3.0 }
"""


def write(folder: Path, text: str, name: str = "spec.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


SHAPED = """
duration_s = 2
[[devices]]
count = 1
speed = 2.0
[[models]]
name = "text"
symbols = ["seq"]
pads = true
shaped_ms = { 16 = { 1 = 2.0, 4 = 4.0 }, 128 = { 1 = 10.0, 4 = 30.0 } }
[[workload]]
rate = 150
slo_ms = 60
shape = { seq = "SIZES" }
"""


def note(entries: list[tuple[int, Event | Command]], now_ns: int, entry: Event | Command) -> None:
    entries.append((now_ns, entry))


def test_durations_follow_from_the_sizes_that_are_drawn(tmp_path: Path) -> None:
    found = []
    for sizes in ("1-16", "65-128", "30~1.2"):
        spec = read_spec(write(tmp_path, SHAPED.replace("SIZES", sizes)))
        entries: list[tuple[int, Event | Command]] = []
        run = simulate(spec, record=partial(note, entries))
        infers = [entry for _, entry in entries if isinstance(entry, Infer)]
        assert run.summary.offered > 100
        assert {infer.model for infer in infers} == {"text"}
        found.append({infer.predicted_duration_ns for infer in infers if infer.batch_size == 1})
        padded = any(infer.request_sizes for infer in infers)
        assert padded, "requests of one bucket share executions"
    short, long, both = found
    assert max(short) < 2_000_000 < min(long)
    assert min(both) < 2_000_000 < max(both)
    assert len(long) > 10, "sizes of one bucket differ"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('symbols = ["seq"]', 'symbols = ["h", "w"]'), "'16' for a bucket of h, w"),
        (('symbols = ["seq"]', ""), "symbols and shaped_ms belong together"),
        (("SIZES", "many"), "sizes 'many' are none of"),
    ],
)
def test_shapes_that_can_not_be_are_refused(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_spec(write(tmp_path, SHAPED.replace(*change).replace("SIZES", "1-128")))


def test_buckets_that_make_no_grid_and_dimensions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    grid = "shaped_ms = { 8x8 = { 1 = 1.0 }, 16x16 = { 1 = 2.0 } }"
    text = SHAPED.replace('["seq"]', '["h", "w"]').replace(
        "shaped_ms = { 16 = { 1 = 2.0, 4 = 4.0 }, 128 = { 1 = 10.0, 4 = 30.0 } }", grid
    )
    with pytest.raises(SpecError, match="lacks the bucket 16x8"):
        build_cluster(read_spec(write(tmp_path, text.replace("seq =", "h =").replace("SIZES", "8"))))
    spec = read_spec(write(tmp_path, SHAPED.replace("seq =", "width =").replace("SIZES", "8")))
    with pytest.raises(WorkloadError, match="an open dimension 'width'; there is seq"):
        simulate(spec)


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    import tomllib

    spec = read_spec(write(tmp_path, GOOD))
    assert (spec.duration_s, spec.seed, spec.devices[0].count) == (3.0, 4, 2)
    assert spec.workload[1].kind == "closed"
    assert spec.faults.crashes[0].worker == "worker-1"
    assert spec.cost.controller.handle_us == {"request_arrived": 3.0}
    assert spec == read_spec(write(tmp_path, json.dumps(tomllib.loads(GOOD)), "spec.json"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("seed = 4", "sed = 4"), "did you mean 'seed'"),
        (("[scheduler]", "[schedular]"), "did you mean 'scheduler'"),
        (("count = 2", "cuont = 2"), r"\[\[devices\]\] number 1 has no key 'cuont'; did you mean 'count'"),
        (("rate = 10", "slo = 10"), "it is given in milliseconds, as 'slo_ms'"),
        (("rate = 10", 'kind = "poison"'), "did you mean 'poisson'"),
        (("rate = 10", "rate = -1"), "rate is -1; it must be greater than 0"),
        (("rate = 10", 'rate = "ten"'), "rate expects"),
        (("[[devices]]", "[devices]"), r"write \[\[devices\]\], with two brackets"),
        (("duration_s = 3", 'preload = "all"'), "choose fill, popular, once, none"),
        (("at_s = 1.0", ""), "needs the key 'at_s'"),
        (("schedule_us = 5.0", "schedul_us = 5.0"), "did you mean 'schedule_us'"),
        (("[[models]]", "[[models]]\nstore = 's'"), "one of profiles, store or name"),
        (("[[workload]]\nrate = 10", '[[workload]]\nkind = "azure2019"'), "name it with trace"),
        (('mode = "table"', 'mode = "tables"'), "mode"),
        (("seed = 4", "seed = ["), "is not TOML"),
        (("[[workload]]\nrate = 10", '[[workload]]\nkind = "log"'), "name its folder with log"),
        (
            ("[[workload]]\nrate = 10", '[[workload]]\nkind = "log"\nlog = "x"\nslo_ms = 100\nscale = 2'),
            r"\[\[workload\]\] number 1: slo_ms, scale would change nothing of a workload of kind log",
        ),
        (("rate = 10", 'rate = 10\nlog = "x"'), "poisson is not read from a log"),
        (('name = "m"', 'name = "m"\nat_s = -1'), "at_s is -1; it must be at least 0"),
        (('name = "m"', 'name = "m"\nat_s = 8'), "come at_s = 8, and the run ends after 8 s"),
        (('name = "m"', 'name = "m"\nat_s = 1'), "all models come later"),
        (("[[faults.crashes]]", "[faults]\nopen_ms = -2\n[[faults.crashes]]"), "open_ms is -2"),
    ],
)
def test_errors_say_where_and_what_would_be_right(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(ConfigError, match=says):
        read_spec(write(tmp_path, GOOD.replace(*change)))


def test_settings_go_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    spec = read_spec(
        path, ["workload.rate=7", "workload.1.concurrency=3", "network.delay_us=50", "preload=once"]
    )
    assert [each.rate for each in spec.workload] == [7.0, 7.0]
    assert spec.workload[1].concurrency == 3
    assert spec.network.delay_us == 50.0
    assert spec.preload == "once"
    for wrong, says in [
        ("rate", "KEY=VALUE"),
        ("workload.9.rate=1", "only 2 entries"),
        ("seed.x=1", "nothing to set"),
        ("scheduler.polcy=edf", "did you mean 'policy'"),
    ]:
        with pytest.raises(ConfigError, match=says):
            read_spec(path, [wrong])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            '{ 1 = "2ms" }',
            "infer_ms.1 is a plain number of milliseconds, not the text '2ms': write infer_ms.1 = 2",
        ),
        ("{ 1 = 2.6, 4 = true }", "infer_ms.4 expects a number of milliseconds, not true"),
        ('"5ms"', "infer_ms expects a table, each value a number of milliseconds, not '5ms'"),
    ],
)
def test_a_wrong_entry_of_a_table_is_named(tmp_path: Path, value: str, says: str) -> None:
    text = f'[[devices]]\n[[models]]\nname = "m"\ninfer_ms = {value}\n[[workload]]\n'
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_spec(write(tmp_path, text))


def test_what_python_says_of_a_recorded_workload_beyond_its_log_is_refused() -> None:
    with pytest.raises(ValueError, match="rate would change nothing of a workload of kind log"):
        WorkloadSpec(kind="log", log="events", rate=5.0)


def test_another_policy_takes_none_of_the_options_of_the_first(tmp_path: Path) -> None:
    own = '[scheduler]\npolicy = "mainspring"\npolicy_options = { fairness = 0.5 }\n'
    for policy, options, expected in (
        (None, {}, ("mainspring", {"fairness": 0.5})),
        ("mainspring", {"hold": 1.0}, ("mainspring", {"fairness": 0.5, "hold": 1.0})),
        ("edf", {"skip_heads": True}, ("edf", {"skip_heads": True})),
        (None, {"fairness": 0.1}, ("mainspring", {"fairness": 0.1})),
    ):
        table = read_table(write(tmp_path, own))
        put_policy(table, policy, options)
        assert (table["scheduler"]["policy"], table["scheduler"]["policy_options"]) == expected
    table = read_table(write(tmp_path, "seed = 1\n"))
    put_policy(table, None, {"fairness": 0.1})
    assert table["scheduler"] == {"policy_options": {"fairness": 0.1}}


def test_a_trace_goes_to_the_workloads_that_are_read_from_one(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, '[[workload]]\nkind = "azure2019"\n[[workload]]\nrate = 5\n'))
    put_trace(table, tmp_path / "t.csv")
    assert [each.get("trace") for each in table["workload"]] == [str(tmp_path / "t.csv"), None]
    with pytest.raises(
        ConfigError, match="would change nothing: no workload is of kind azure2019 or azure2021"
    ):
        put_trace(read_table(write(tmp_path, GOOD)), tmp_path / "t.csv")


def test_paths_are_relative_to_the_file_and_files_must_be_there(tmp_path: Path) -> None:
    text = '[[devices]]\n[[models]]\nprofiles = "table.csv"\n[[workload]]\nkind = "log"\nlog = "../events"\n'
    spec = read_spec(write(tmp_path, text))
    assert spec.models[0].profiles == str(tmp_path / "table.csv")
    assert spec.workload[0].log == str(tmp_path / "../events")
    with pytest.raises(ConfigError, match="can't be read"):
        read_spec(tmp_path / "none.toml")
