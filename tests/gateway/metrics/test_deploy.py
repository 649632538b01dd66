"""The dashboard and the rules of deploy/: promtool's checks, and a real Prometheus against a real cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client, DeadlineError, DeadlineUnreachable
from mainspring.cli.launcher.addresses import free_ports
from mainspring.messages.metrics import READINGS
from tests.gateway.fakes import serving, wait_until
from tests.gateway.metrics.test_server import ANY, page
from tests.gateway.test_end_to_end import X, emulated, real_controller, real_worker, workers_ready

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy/prometheus/rules.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/mainspring.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
METRIC = re.compile(r"\b(?:mainspring|nv_inference|nv_cache|process)_[a-z0-9_]+(?![a-z0-9_:])")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")

FAULTS = re.compile(r'status!="ok"|event!~')
"""In queries of what a cluster that is well has none of."""

DISTURBED = {"MainspringPredictionsOff"}
"""Alarms that the machine of the tests may well raise, which others use too."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="NOT CHECKED against a real Prometheus: there is none here; apt-get install prometheus, or put "
    "prometheus and promtool of https://prometheus.io/download into the PATH",
)


def documented() -> set[str]:
    """Return the metrics that docs/metrics.md has a line for."""
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z0-9_]+)` \| (?:counter|gauge|histogram) ", text, re.MULTILINE))


@needs_prometheus
@pytest.mark.parametrize(
    "check",
    [
        ("check", "config", "deploy/prometheus/prometheus.yml"),
        ("check", "rules", "deploy/prometheus/rules.yml"),
        ("test", "rules", "deploy/prometheus/rules_test.yml"),
    ],
)
def test_promtool_has_nothing_to_say(check: tuple[str, ...]) -> None:
    command = ["promtool", *check]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_that_is_asked_for_is_documented() -> None:
    rules = re.sub(r"#.*|(summary|description):.*", "", RULES.read_text(encoding="utf-8"))
    asked = {SUFFIX.sub("", name) for name in METRIC.findall("\n".join(QUERIES) + rules)}
    assert len(asked) > 10
    assert asked <= {SUFFIX.sub("", name) for name in documented()}


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                assert other == panel["title"], f"{panel['title']} lies over {other}"
    for panel in PANELS:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}", "a dashboard is not for one server alone"


@needs_prometheus
def test_a_real_prometheus_scrapes_a_real_cluster(tmp_path: Path) -> None:
    with (
        real_controller([emulated("a"), emulated("b"), emulated("slow", 400_000_000)]) as controller,
        real_worker("one", controller),
        serving(controller, metrics_address=ANY, http_address=ANY) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 3), 30)
        for number in range(20):
            client.infer("ab"[number % 2], {"data": X}, slo_ms=20_000)
        # Half of what it takes, and more than the way to the controller.
        with pytest.raises(DeadlineUnreachable):
            client.infer("slow", {"data": X}, slo_ms=200)
        with prometheus(tmp_path, addresses.metrics) as server:
            # Rates need a second scrape after something has happened.
            wait_until(lambda: value(server, "sum_over_time(up[1m])") >= 2, 60)
            for _ in range(20):
                client.infer("a", {"data": X}, slo_ms=20_000)
            wait_until(
                lambda: value(server, 'mainspring_requests_total{model="a",outcome="in_time"}') == 30, 60
            )
            assert value(server, 'rate(mainspring_requests_total{model="a",outcome="in_time"}[1m])') > 0
            assert value(server, 'nv_inference_count{model="a",version="1"}') == 60
            assert value(server, "mainspring_controller_up") == 1
            execution = "sum by (le) (rate(mainspring_execution_duration_seconds_bucket[1m]))"
            assert 0.001 < value(server, f"histogram_quantile(0.99, {execution})") < 1
            assert ask(server, "/api/v1/targets")["activeTargets"][0]["lastError"] == ""
            empty = [query for query in QUERIES if not result(server, filled_in(query))]
            assert not [
                query
                for query in empty
                if not any(name in query for name in ("mainspring_actions_total", "event", "erratic"))
            ]
            check_rules(server)


def check_rules(server: str) -> None:
    """Every rule can be evaluated, and a cluster that is well raises no alarm."""

    def rules() -> list[dict[str, Any]]:
        return [rule for group in ask(server, "/api/v1/rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), 60)
    assert {rule["health"] for rule in rules()} == {"ok"}

    def alarms() -> set[str]:
        raised = {
            rule["name"] for rule in rules() if rule["type"] == "alerting" and rule["state"] != "inactive"
        }
        return raised - DISTURBED

    # One scrape that failed is not an alarm.
    wait_until(lambda: not alarms(), 60)


def filled_in(query: str) -> str:
    """Return a dashboard's query as Grafana would ask it."""
    return query.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$model", ".*")


@contextmanager
def prometheus(folder: Path, metrics: str) -> Iterator[str]:
    """Run a Prometheus that scrapes this gateway each second, with our rules; yield its address."""
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [
                    {
                        "job_name": "mainspring",
                        "static_configs": [{"targets": [metrics.removeprefix("http://")]}],
                    }
                ],
            }
        )
    )
    address = f"127.0.0.1:{free_ports(1)[0]}"
    program = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as said:
        process = subprocess.Popen(program, stderr=said)
    try:
        wait_until(lambda: process.poll() is not None or _is_ready(f"http://{address}"), 60)
        assert process.poll() is None, log.read_text()
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def _is_ready(server: str) -> bool:
    try:
        with urllib.request.urlopen(f"{server}/-/ready", timeout=30):
            return True
    except OSError:
        return False


def ask(server: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(server + path, timeout=30) as reply:
        answer = json.loads(reply.read())
    assert answer["status"] == "success", answer
    assert not answer.get("warnings"), answer
    found: dict[str, Any] = answer["data"]
    return found


def result(server: str, query: str) -> list[Any]:
    found: list[Any] = ask(server, f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")["result"]
    return found


def value(server: str, query: str) -> float:
    """Return the one value that a query has, -1 if it has none."""
    found = result(server, query)
    assert len(found) <= 1, found
    return float(found[0]["value"][1]) if found else -1.0


def refused_on_arrival(client: Client) -> bool:
    """Ask for an answer in less time than any takes; return whether the cluster, not the client, refused."""
    with pytest.raises(DeadlineError) as caught:
        client.infer("a", {"data": X}, slo_ms=2)
    return isinstance(caught.value, DeadlineUnreachable)


def test_the_documentation_has_a_line_for_every_metric_and_for_no_other() -> None:
    with (
        real_controller([emulated("a")]) as controller,
        real_worker("one", controller),
        serving(controller, metrics_address=ANY) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 1), 30)
        client.infer("a", {"data": X}, slo_ms=20_000)
        wait_until(lambda: refused_on_arrival(client))
        client.add_graph('name = "app"\nmembers = ["a"]\noutput = "sum"\nkind = "value"\nspan = 1.0')
        told = re.findall(r"^# TYPE (\S+) ", page(addresses.metrics), re.MULTILINE)
    assert len(set(told)) == len(told), "a family stands there once"
    # An emulated device has no monitor, its model no sequences, the cluster one controller, no graph, no
    # provider and no token that names a tenant.
    shards = {"mainspring_shard_up", "mainspring_shard_map_version"}
    scaled = {f"mainspring_workers_{name}" for name in ("wanted", "running", "leaving", "fault")}
    graphs = {f"mainspring_graph_step_{name}_total" for name in ("answers", "rows", "seconds")}
    had = ("requests_total", "executed_total", "dropped_total", "over_share_total", "device_seconds_total")
    tenants = {f"mainspring_tenant_{name}" for name in (*had, "share_devices")}
    others = {*shards, *scaled, *graphs, *tenants, "mainspring_family_answers_total"}
    assert {*told, *READINGS, "mainspring_model_sequence_events_total", *others} == documented()
