"""A cluster with a controller that stands by: whatever ends its leader, requests are answered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial

import pytest

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.jobs import ControllerJob, GatewayJob, WorkerJob
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.places import find
from mainspring.client.client import Client
from mainspring.messages.tables import ConfigError
from tests.cli.launcher.test_local import INPUT, ends_well, wait_for
from tests.cli.launcher.test_sharded import sharded
from tests.leaders import Leaders

SLO_MS = 2000.0


def test_the_plan_gives_all_who_may_lead_one_lease(emulated: Callable[..., Config]) -> None:
    plan = make_plan(emulated(workers=1, controllers=3))
    controllers = [job for job in plan.jobs if isinstance(job, ControllerJob)]
    assert [job.name for job in controllers] == ["controller", "controller-standby", "controller-standby-2"]
    assert len({job.controller.lease for job in controllers}) == 1
    for each in ("address", "state_file", "event_log_dir"):
        assert len({getattr(job.controller, each) for job in controllers}) == 3
    addresses = ",".join(job.controller.address for job in controllers)
    assert [job.gateway.controller_address for job in plan.jobs if isinstance(job, GatewayJob)] == [addresses]
    assert [job.worker.controller for job in plan.jobs if isinstance(job, WorkerJob)] == [addresses]


def test_shards_and_standbys_do_not_go_together(emulated: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match="without \\[shards\\]"):
        make_plan(sharded(emulated(workers=2, controllers=2)))


def another_leads(leaders: Leaders, before: int) -> bool:
    return leaders.leader()[0] > before


def test_whatever_ends_a_leader_every_request_is_answered_in_time(emulated: Callable[..., Config]) -> None:
    plan = make_plan(emulated(workers=2, controllers=2))
    with LocalCluster(plan, lambda _: None) as cluster, Client(cluster.address) as client:
        leaders = Leaders(plan, cluster)
        assert find(str(plan.run_dir)).address == ",".join(leaders.names)
        for event in ("kill", "stop", "hand over"):
            wait_for(lambda: len(client.status().workers) == 2, "the workers")
            wait_for(leaders.all_there, "the controllers")
            before, _ = leaders.leader()
            futures, stopped = [], 0
            for number in range(300):
                futures.append(client.submit(f"quick-{number % 2 + 1}", INPUT, slo_ms=SLO_MS))
                if number == 100:
                    stopped = leaders.end(event)
                time.sleep(0.01)
            wait_for(partial(another_leads, leaders, before), "another leader")
            failed = [number for number, future in enumerate(futures) if not ends_well(future)]
            assert failed == [], f"{event}: {failed}"
            if event == "stop":
                os.kill(stopped, signal.SIGCONT)
                # The deposed leader is refused, and stands by.
                wait_for(lambda: len(client.status().workers) == 2, "the workers")
                assert ends_well(client.submit("quick-1", INPUT, slo_ms=SLO_MS))
