from __future__ import annotations

from pathlib import Path

from mainspring.messages.model import ModelSpec
from mainspring.simulator.cluster import build_cluster
from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec, put_trace, read_spec, read_table

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/azure_8h.toml"
MINUTES = "HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,60,30\no,a,g,http,0,12\n"


def test_the_example_is_eight_hours_of_4026_models_on_six_devices_and_needs_no_other_file() -> None:
    spec = read_spec(EXAMPLE)
    assert spec.warm_up_s + spec.duration_s == 8 * 3600
    cluster = build_cluster(spec)
    assert (len(cluster.workers), len(cluster.models)) == (6, 4026)
    held: list[ModelSpec] = [model for each in cluster.preloaded.values() for model in each.resident]
    assert len({model.name for model in held}) < 4026, "some are cold"
    summary = simulate(read_spec(EXAMPLE, ["warm_up_s=0", "duration_s=2"]), cluster=cluster).summary
    assert 300 < summary.offered < 1200
    assert summary.goodput_share > 0.5
    assert summary.lost == 0


def test_it_plays_a_file_of_azure_functions_instead(tmp_path: Path) -> None:
    trace = tmp_path / "invocations.csv"
    trace.write_text(MINUTES)
    table = read_table(
        EXAMPLE, ["workload.kind=azure2019", "workload.rate=20", "warm_up_s=0", "duration_s=3"]
    )
    put_trace(table, trace)
    assert 20 < simulate(parse_spec(table, "example")).summary.offered < 120
