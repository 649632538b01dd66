"""The chart for Kubernetes, rendered by Helm.

Its objects are held against Kubernetes' own schemas, its commands against our command line, and its values
against their schema.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.configuration.config import TABLES, read_config, read_tables
from tests.deploy.commands import DEPLOY, ROOT, taken

yaml = pytest.importorskip("yaml")
validate = pytest.importorskip("kubernetes_validate", reason="`make chart` installs what judges the chart")
HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
if HELM is None:
    pytest.skip("`make chart` installs Helm", allow_module_level=True)

CHART = DEPLOY / "helm" / "mainspring"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
RELEASES = ("1.27", "1.31", "1.35")
"""The oldest that the chart takes, one between, and a new one."""
OPERATORS = "monitoring.coreos.com/"
"""Objects that Prometheus' operator defines, which Kubernetes knows nothing of."""
SCALED = "gateways.autoscaling"
VARIABLES = {"POD_NAME": "release-mainspring-worker-cpu-0", "POD_IP": "10.1.2.3"}

Object = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    command = [HELM, "template", "release", str(CHART), "--namespace", "serving", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def rendered(path: Path) -> tuple[Object, ...]:
    """Return all objects of a release with these values."""
    done = helm("--values", str(path))
    assert done.returncode == 0, done.stderr
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


def pods(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object, Object]]:
    """Yield the name of what makes a pod, the pod's labels and its spec."""
    for each in objects:
        if template := each.get("spec", {}).get("template"):
            yield each["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def shards(objects: tuple[Object, ...]) -> list[str]:
    """Return the addresses of several controllers, by shard."""
    texts = [each["data"].get("mainspring.toml", "") for each in objects if each["kind"] == "ConfigMap"]
    tables = [tomllib.loads(text).get("shards", {}) for text in texts]
    return [address for table in tables for address in table.get("controllers", ())]


def fits(selector: Object, labels: Object) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


each_values = pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)


def test_there_are_a_dozen_releases_to_try() -> None:
    assert len(VALUES) >= 12


@each_values
@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_one_that_kubernetes_takes(path: Path, release: str) -> None:
    found = rendered(path)
    assert found
    for each in found:
        if not each["apiVersion"].startswith(OPERATORS):
            validate.validate(each, release, strict=True)


@each_values
def test_names_are_unique_and_short_enough(path: Path) -> None:
    named = [(each["kind"], each["metadata"]["name"]) for each in rendered(path)]
    assert len(named) == len(set(named))
    assert all(len(name) <= 52 for _, name in named), "a pod's name has a suffix and makes a label of 63"


@each_values
def test_every_command_is_one_that_the_command_line_takes(path: Path) -> None:
    roles = set()
    for _, _, spec in pods(rendered(path)):
        (container,) = spec["containers"]
        roles.add(container["args"][0])
        assert "command" not in container, "the image's entry point is the program"
        taken(container["args"], VARIABLES)
        assert {entry["name"] for entry in container["env"]} >= set(VARIABLES)
    assert roles >= {"controller", "gateway", "worker"}


@each_values
def test_processes_find_each_other(path: Path) -> None:
    objects = rendered(path)
    services = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}
    found = {}
    for name, labels, spec in pods(objects):
        (container,) = spec["containers"]
        found[name] = taken(container["args"], VARIABLES), labels, container
    (controller,) = [each for name, each in found.items() if name.endswith("-controller")]
    listed = shards(objects)
    for name, (flags, labels, container) in found.items():
        if name.endswith("-controller"):
            continue
        shard = int(labels.get("mainspring/shard", 0))
        where = flags["controller"] or listed[0]
        assert flags["controller"] is None or not listed or flags["controller"] == listed[shard]
        for number, address in enumerate(where.split(",")):
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            pod, service, namespace, svc = host.split(".")
            assert (pod, namespace, svc) == (f"{service}-{shard + number}", "serving", "svc")
            assert fits(services[service]["selector"], controller[1])
            assert int(port) == services[service]["ports"][0]["port"]
            assert port == controller[0]["address"].rpartition(":")[2]
        listens = [
            value
            for key in ("address", "data_address", "http", "grpc", "metrics")
            if (value := flags.get(key)) and "127.0.0.1" not in value
        ]
        opened = {int(each.rpartition(":")[2]) for each in listens}
        assert opened == {each["containerPort"] for each in container.get("ports", ())}
    for name, spec in services.items():
        reached = [each for each in found.values() if fits(spec["selector"], each[1])]
        assert reached, f"no pod is behind the service {name}"
        for _, _, container in reached:
            ports = {each["name"] for each in container.get("ports", ())}
            assert {each["targetPort"] for each in spec["ports"]} <= ports


@each_values
def test_what_is_mounted_asked_and_let_in_exists(path: Path) -> None:
    objects = rendered(path)
    claims = {
        each["metadata"]["name"]: [one["metadata"]["name"] for one in each["spec"]["volumeClaimTemplates"]]
        for each in objects
        if "volumeClaimTemplates" in each.get("spec", {})
    }
    ports: dict[str, set[str]] = {}
    for name, labels, spec in pods(objects):
        (container,) = spec["containers"]
        named = [each["name"] for each in spec["volumes"]] + claims.get(name, [])
        assert len(named) == len(set(named))
        assert {each["name"] for each in container["volumeMounts"]} == set(named)
        opened = {each["name"] for each in container.get("ports", ())}
        if not opened:
            continue
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            (way,) = [container[probe][key] for key in ("tcpSocket", "httpGet") if key in container[probe]]
            assert way["port"] in opened
        ports.setdefault(labels["app.kubernetes.io/component"], set()).update(opened)
    for each in objects:
        if each["kind"] != "NetworkPolicy":
            continue
        component = each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        assert {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]} == ports[
            component
        ]


@each_values
def test_pods_are_restricted_and_only_real_time_ones_are_root(path: Path) -> None:
    for name, _, spec in pods(rendered(path)):
        (container,) = spec["containers"]
        security = container["securityContext"]
        real_time = "--realtime" in container["args"]
        leased = any(each.startswith("--lease=") for each in container["args"])
        assert spec["automountServiceAccountToken"] is leased
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"]["runAsNonRoot"] is not real_time, name
        assert (spec["securityContext"]["runAsUser"] == 0) is real_time
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
        assert security["capabilities"].get("add", []) == (["SYS_NICE", "IPC_LOCK"] if real_time else [])
        assert container["resources"]["limits"]["memory"]


@each_values
def test_nothing_is_open_in_clear_unless_the_values_say_so(path: Path) -> None:
    allowed = yaml.safe_load(path.read_text())["security"]["insecure"]
    for _, _, spec in pods(rendered(path)):
        (container,) = spec["containers"]
        flags = taken(container["args"], VARIABLES)
        assert flags.get("insecure", allowed) is allowed
        assert flags["keys"]
        if allowed:
            continue
        doors = [flags[key] for key in ("http", "grpc", "metrics") if flags.get(key)]
        doors += [flags["address"]] if container["args"][0] == "console" else []
        assert all(each.startswith(("https://", "grpcs://")) for each in doors)
        assert not doors or flags["tls"]
        if container["args"][0] == "gateway":
            assert flags["curve_key"] or flags["address"] == "tcp://127.0.0.1:7400"
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        given = [flags.get(key) for key in ("keys", "tls", "curve_key", "token_file")]
        for each in given:
            assert each is None or {str(each), str(each.parent)} & mounted


@each_values
def test_a_process_has_time_to_drain(path: Path) -> None:
    for name, _, spec in pods(rendered(path)):
        (container,) = spec["containers"]
        given = taken(container["args"], VARIABLES)
        if (drain := given.get("drain_timeout")) is not None:
            needed = int(drain.removesuffix("s")) + int(given.get("lame_duck", "0").removesuffix("s"))
            assert spec["terminationGracePeriodSeconds"] > needed, name


@each_values
def test_the_configuration_is_one_that_the_processes_read(path: Path, tmp_path: Path) -> None:
    maps = [
        each for each in rendered(path) if each["kind"] == "ConfigMap" and "mainspring.toml" in each["data"]
    ]
    values = yaml.safe_load(path.read_text())
    given, count = values.get("configuration", ""), values.get("controllers", {}).get("count", 1)
    assert len(maps) == (1 if given or count > 1 else 0)
    for each in maps:
        file = tmp_path / "mainspring.toml"
        file.write_text(each["data"]["mainspring.toml"])
        assert file.read_text().startswith(given)
        config = read_config(read_tables(file), str(file))
        assert config.shards.number == count
        assert set(read_tables(file)) <= set(TABLES)


def test_several_controllers_each_have_workers_a_console_and_a_number() -> None:
    objects = rendered(Path(__file__).parent / "values" / "several-controllers.yaml")
    sets = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "StatefulSet"}
    assert sets["release-mainspring-controller"]["replicas"] == 3
    (container,) = sets["release-mainspring-controller"]["template"]["spec"]["containers"]
    flags = taken(container["args"], {**VARIABLES, "POD_NAME": "release-mainspring-controller-2"})
    assert flags["shard"] == 2
    endings = ("", "-1", "-2")
    assert {name for name in sets if "worker" in name} == {
        f"release-mainspring-worker-{group}{ending}" for group in ("cpu", "large") for ending in endings
    }
    assert all(spec["replicas"] == 2 for name, spec in sets.items() if "worker-cpu" in name)
    deployed = {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    assert deployed == {
        *(f"release-mainspring-console{ending}" for ending in endings),
        *("release-mainspring-gateway", "release-mainspring-balancer"),
    }
    guarded = [each["metadata"]["name"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert "release-mainspring-controller" in guarded
    (policy,) = [
        each
        for each in objects
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "release-mainspring-controller"
    ]
    let_in = [
        each["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for each in policy["spec"]["ingress"][0]["from"]
    ]
    assert "balancer" in let_in


def test_controllers_that_stand_by_share_a_lease_and_may_do_nothing_else() -> None:
    objects = rendered(Path(__file__).parent / "values" / "standby-controllers.yaml")
    named = {
        each["kind"]: each for each in objects if each["kind"] in ("ServiceAccount", "Role", "RoleBinding")
    }
    ((spec, args, count),) = [
        (
            each["spec"]["template"]["spec"],
            each["spec"]["template"]["spec"]["containers"][0]["args"],
            each["spec"]["replicas"],
        )
        for each in objects
        if each["kind"] == "StatefulSet" and each["metadata"]["name"].endswith("-controller")
    ]
    assert count == 3
    assert "--address=tcp://$(POD_IP):7300" in args, "the others follow the address that is in the lease"
    (lease,) = [each.removeprefix("--lease=kubernetes:") for each in args if each.startswith("--lease=")]
    account = named["ServiceAccount"]["metadata"]["name"]
    assert spec["serviceAccountName"] == account
    assert [(each["kind"], each["name"]) for each in named["RoleBinding"]["subjects"]] == [
        ("ServiceAccount", account)
    ]
    assert named["RoleBinding"]["roleRef"]["name"] == named["Role"]["metadata"]["name"]
    rules = [(each["resources"], each.get("resourceNames"), each["verbs"]) for each in named["Role"]["rules"]]
    assert rules == [(["leases"], [lease], ["get", "update"]), (["leases"], None, ["create"])]
    (flags,) = {
        each
        for _, labels, pod in pods(objects)
        if labels["app.kubernetes.io/component"] in ("worker", "gateway")
        for each in pod["containers"][0]["args"]
        if each.startswith("--controller=")
    }
    assert flags.count(",") == 2, "workers and gateways know all of them"
    assert not [each for each in rendered(VALUES[0]) if each["kind"] in named], "one alone needs no account"


def test_no_two_objects_select_the_same_pods() -> None:
    for path in VALUES:
        made = [(labels, name) for name, labels, _ in pods(rendered(path))]
        for each in rendered(path):
            if each.get("spec", {}).get("template") is None:
                continue
            chosen = [name for labels, name in made if fits(each["spec"]["selector"]["matchLabels"], labels)]
            assert chosen == [each["metadata"]["name"]]


def test_rules_dashboard_and_metrics_are_ours() -> None:
    objects = rendered(Path(__file__).parent / "values" / "monitored.yaml")
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    assert maps["release-mainspring-rules"]["mainspring.yaml"] == rules
    (operators,) = [each for each in objects if each["kind"] == "PrometheusRule"]
    assert operators["spec"] == yaml.safe_load(rules)
    dashboard = json.loads(maps["release-mainspring-dashboard"]["mainspring.json"])
    assert dashboard == json.loads((DEPLOY / "grafana" / "mainspring.json").read_text())


def test_gateways_scale_by_a_metric_that_they_have() -> None:
    objects = rendered(Path(__file__).parent / "values" / "autoscaling.yaml")
    (scaler,) = [each for each in objects if each["kind"] == "HorizontalPodAutoscaler"]
    (metric,) = scaler["spec"]["metrics"]
    assert f"| `{metric['pods']['metric']['name']}` | gauge |" in (ROOT / "docs" / "metrics.md").read_text()
    (gateway,) = [
        each for each in objects if each["kind"] == "Deployment" and "gateway" in each["metadata"]["name"]
    ]
    assert "replicas" not in gateway["spec"], "a release would set back what the scaler has set"


def test_a_gpu_is_asked_for_by_workers_that_compute_on_one() -> None:
    for path in VALUES:
        for _, _, spec in pods(rendered(path)):
            (container,) = spec["containers"]
            asked = container["resources"]["limits"].get("nvidia.com/gpu", 0)
            assert asked == (1 if "--device=cuda:0" in container["args"] else 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("gatewys.replicas=2", "gatewys is not allowed"),
        ("gateways.replicas=0", "gateways.replicas: Must be greater than or equal to 1"),
        ("gateways.replicas=many", "gateways.replicas: Invalid type"),
        ("gateways.minAvailable=half", "gateways.minAvailable"),
        ("workers[0].name=With Space", "workers.0.name: Does not match pattern"),
        ("workers[0].name=a,workers[0].device=tpu", 'must be one of the following: "cpu", "cuda"'),
        ("workers[0].name=a,workers[0].gpus=2", "gpus is not allowed"),
        ("workers[0].name=a,workers[1].name=a", 'two groups of workers are called "a"'),
        ("workers[0].name=a,workers[0].device=cuda,workers[0].engine=emulated", "leave device cpu"),
        ("workers=null", "workers is required"),
        ("store.claim=a,store.hostPath=/b", "the store is one of them"),
        ("store.hostPath=relative", "store.hostPath: Does not match pattern"),
        ("controllers.persistence.size=4GB", "controllers.persistence.size: Does not match pattern"),
        ("drainSeconds=0", "drainSeconds: Must be greater than or equal to 1"),
        ("logLevel=loud", "logLevel must be one of the following"),
        ("image.repository=", "image.repository"),
        (
            "gateways.autoscaling.enabled=true,gateways.autoscaling.minReplicas=9",
            "above maxReplicas, which is 8",
        ),
        (f"{SCALED}.enabled=true,{SCALED}.inFlightRequests=0,{SCALED}.cpuPercent=0", "nothing to scale by"),
        ("security.insecure=false", "not be encrypted: set security.tls, or"),
        ("security.keys.worker=", "know each other by keys: set security.keys.worker"),
        ("controllers.count=0", "controllers.count: Must be greater than or equal to 1"),
        ("controllers.count=65", "controllers.count: Must be less than or equal to 64"),
        ("controllers.count=2,controllers.standbys=1", "standbys is for one controller"),
        ("controllers.count=2,configuration=[shards]", "configuration has a table [shards]"),
        (
            "security.keys.balancer=b,controllers.count=2,workers[0].name=a,workers[1].name=a-1",
            'groups of workers are called "a-1"',
        ),
        ("networkPolicy.clients[0].everybody=true", "everybody is not allowed"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong: str, says: str) -> None:
    done = helm("--values", str(VALUES[0].parent / "default.yaml"), "--set", wrong)
    assert done.returncode != 0
    assert says in done.stderr


def test_every_value_is_in_the_schema_and_in_the_file() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(found: Object, allowed: Object, where: str) -> None:
        known = allowed.get("properties")
        if known is None:
            return
        assert allowed["additionalProperties"] is False, where
        # `global` is Helm's own.
        assert set(found) == set(known) - {"global"}, where
        for key, value in found.items():
            if isinstance(value, dict):
                compare(value, known[key], f"{where}.{key}")

    compare(values, schema, "")


def test_the_oldest_release_is_what_the_chart_says() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={RELEASES[0]}.0-0"
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
