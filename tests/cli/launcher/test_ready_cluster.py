"""A whole cluster: each way in which nothing can be served shows everywhere, and is over by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from mainspring.client.client import Client
from mainspring.messages.repository import ModelState
from tests.cli.launcher.test_repository import Site, wait_for
from tests.repository.nets import put

NOT_SERVING, SERVING = b"\x08\x02", b"\x08\x01"


class Asked:
    """Asks a cluster in all ways whether it is ready."""

    def __init__(self, site: Site, client: Client, channel: grpc.Channel) -> None:
        self.site = site
        self._client = client
        self._channel = channel

    def http(self, path: str) -> str:
        """Return why not; empty if it is ready, and the status of an answer that says neither."""
        try:
            with urllib.request.urlopen(f"{self.site.http}{path}", timeout=60):
                return ""
        except urllib.error.HTTPError as error:
            return json.loads(error.read())["error"] if error.code == 503 else str(error.code)

    def all_say(self, reason: str, model_reason: str | None = None) -> bool:
        """Whether the server is not ready for this reason, or ready if it is empty; and so the model net."""
        status = self._client.status()
        server = SERVING if not reason else NOT_SERVING
        told = [self.http("/v2/health/ready"), status.not_ready]
        if not all(each.startswith(reason) and bool(each) is bool(reason) for each in told):
            return False
        if self._rpc("/grpc.health.v1.Health/Check") != server:
            return False
        if bool(self._rpc("/inference.GRPCInferenceService/ServerReady")) is bool(reason):
            return False
        if model_reason is None:
            return True
        net = self.http("/v2/models/net/ready")
        health = self._rpc("/grpc.health.v1.Health/Check", b"\x0a\x03net")
        return (
            net.startswith(model_reason)
            and bool(net) is bool(model_reason)
            and health == (NOT_SERVING if model_reason else SERVING)
            and status.unready.get("net", "") == net
        )

    def _rpc(self, path: str, request: bytes = b"") -> bytes:
        return bytes(self._channel.unary_unary(path)(request, timeout=60))


@contextmanager
def asked(site: Site, client: Client) -> Iterator[Asked]:
    with grpc.insecure_channel(site.grpc) as channel:
        yield Asked(site, client, channel)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_empty_folder_a_broken_model_and_a_lost_worker_show_and_are_over_by_themselves(site: Site) -> None:
    with site.cluster() as (cluster, client), asked(site, client) as asking:
        wait_for(lambda: asking.all_say("no model is served"), "the empty folder to show")
        put(site.path, "net", 1, b"no model")
        broken = "can't be loaded"
        wait_for(lambda: asking.all_say(broken, broken), "the broken model to show")
        put(site.path, "net", 1, 2.0)
        wait_for(lambda: asking.all_say("", ""), "the repaired model")
        # One of many that is broken from the start takes nothing away.
        put(site.path, "other", 1, b"no model")
        wait_for(lambda: bool(asking.http("/v2/models/other/ready").startswith(broken)), "the other one")
        assert asking.all_say("", "")
        worker = cluster.supervisor.pid("worker-0") or 0
        os.kill(worker, signal.SIGSTOP)
        wait_for(lambda: asking.all_say("no worker", "no worker"), "the stopped worker to show")
        os.kill(worker, signal.SIGCONT)
        wait_for(lambda: asking.all_say("", ""), "the worker to be back")
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: asking.all_say("no worker", "no worker"), "the killed worker to show")
        wait_for(lambda: asking.all_say("", ""), "another worker")
        shutil.rmtree(site.path / "net")
        wait_for(lambda: asking.all_say("can't be loaded: model 'other'"), "the end of the only good one")
        assert asking.http("/v2/models/net/ready") == "404"


def test_what_is_to_be_loaded_and_can_not_be_shows_and_so_does_the_end_of_all(site: Site) -> None:
    put(site.path, "net", 1, 2.0)
    put(site.path, "broken", 1, b"no model")
    with (
        site.cluster(mode="explicit", load_models=["net", "broken"]) as (_, client),
        asked(site, client) as asking,
    ):
        wait_for(lambda: asking.all_say("can't be loaded: model 'broken'", ""), "the broken one to show")
        site.post("/v2/repository/models/broken/unload")
        wait_for(lambda: asking.all_say("", ""), "the rest")
        site.post("/v2/repository/models/net/unload")
        wait_for(lambda: asking.all_say("no model is served"), "the end of all")
        assert site.index()["net"].state is ModelState.UNAVAILABLE
        site.post("/v2/repository/models/net/load")
        wait_for(lambda: asking.all_say("", ""), "the model again")
