"""``mainspring models index``, ``load`` and ``unload`` against a cluster on a model repository."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import build_app
from mainspring.client.errors import GatewayUnreachable, InvalidRequest, InvalidValues, UnknownModel
from tests.cli.launcher.test_repository import Site, factor, wait_for
from tests.compiler.test_unverified import FORM
from tests.repository.nets import put


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def models(site: Site, *arguments: str) -> Result:
    width = {"COLUMNS": "200", "NO_COLOR": "1"}
    return CliRunner().invoke(build_app(), ["models", *arguments, "--http", site.http], env=width)


def test_the_command_line_shows_the_index_and_loads_and_unloads(site: Site) -> None:
    put(site.path, "net", 1, 2.0)
    put(site.path, "broken", 1, b"no model")
    with site.cluster(mode="explicit") as (_, client):
        assert "0 ready" not in models(site, "index").output
        done = models(site, "load", "net")
        assert (done.exit_code, done.output) == (0, "loaded net\n")
        assert factor(client) == 2.0
        failed = models(site, "load", "broken")
        assert isinstance(failed.exception, InvalidRequest)
        assert "not an ONNX model" in str(failed.exception)
        shown = models(site, "index").output
        assert re.search(r"net +1 +READY", shown)
        assert re.search(r"broken +1 +UNAVAILABLE +.*not an ONNX model", shown)
        assert shown.endswith("1 ready, 1 unavailable\n")
        entries = json.loads(models(site, "index", "--json").output)
        assert [each for each in entries if each["state"] == "READY"] == [
            {"name": "net", "version": "1", "state": "READY", "reason": ""}
        ]
        assert models(site, "unload", "net").output == "unloaded net\n"
        with pytest.raises(UnknownModel):
            factor(client)
        assert "has no model 'nothing'" in str(models(site, "load", "nothing").exception)
    assert isinstance(models(site, "index").exception, GatewayUnreachable)


def test_a_list_says_what_is_made_of_a_model_beside_what_is_served(site: Site) -> None:
    put(site.path, "net", 1, 2.0)
    with site.cluster() as (cluster, client):
        at = ("list", "--address", cluster.address)
        assert "repo" not in CliRunner().invoke(build_app(), ["models", *at]).output
        put(site.path, "net", 1, b"no model")
        wait_for(lambda: "not an ONNX model" in site.index("net")["1"].reason, "the broken file")
        shown = CliRunner().invoke(build_app(), ["models", *at]).output
        assert re.search(r"repo version 1 is ready: it is served as it was before .*not an ONNX model", shown)
        (listed,) = json.loads(CliRunner().invoke(build_app(), ["models", *at, "--json"]).output)
        assert [each["state"] for each in listed["repository"]] == ["READY"]
        assert factor(client) == 2.0


def test_an_address_that_is_none_is_refused(site: Site) -> None:
    site.http = "tcp://127.0.0.1:7400"
    assert "it is like http://127.0.0.1:8000" in str(models(site, "index").exception)


def test_a_file_that_runs_on_no_sample_is_served_on_the_operators_word(site: Site) -> None:
    file = site.path.parent / "form.onnx"
    head = '<ir_version: 9, opset_import: ["" : 20]>\n'
    file.write_bytes(onnx.parser.parse_model(head + FORM.replace("[N", "[2")).SerializeToString())
    with site.cluster(mode="explicit") as (cluster, client):

        def cli(*arguments: str) -> Result:
            width = {"COLUMNS": "200", "NO_COLOR": "1"}
            return CliRunner().invoke(build_app(), [*arguments, "--address", cluster.address], env=width)

        def ask(*texts: str) -> list[list[float]]:
            y = client.infer("form", {"s": np.array(texts)}, slo_ms=20_000)["y"]
            return [[float(each) for each in row] for row in y]

        refused = cli("models", "add", str(file))
        assert "`--unverified`" in str(refused.exception)
        assert cli("models", "add", str(file), "--unverified").output == "added form\n"
        # No worker has warmed it up, for nobody knows what it runs on.
        assert ask("a=3", "b=0") == [[6.0, 7.0], [0.0, 1.0]]
        with pytest.raises(InvalidValues, match="fails on these values"):
            ask("c=1", "nothing of the form")
        assert ask("c=1", "b=0") == [[2.0, 3.0], [0.0, 1.0]]
        assert "served unverified: form@1-" in cli("status").output
        assert [each["verified"] for each in json.loads(cli("status", "--json").output)["models"]] == [False]
        assert "unverified: served on the operator's word" in cli("models", "list").output
        assert "; unverified" in cli("models").output
        (entry,) = site.index("form").values()
        assert "served unverified" in entry.reason
