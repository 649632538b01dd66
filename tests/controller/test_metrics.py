"""What a controller tells a gateway that is being scraped."""

from __future__ import annotations

from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.peers import AdminReply, AdminRequest, Dispatch
from tests.controller.peers import FakeGateway, Stage, spec


def test_a_gateway_is_told_of_workers_and_models(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, _ = stage.cluster("m0")
    gateway.arrive(1)
    stage.until(lambda: bool(gateway.all(Dispatch)))
    metrics = told(stage, gateway, 77)
    while not metrics.models[0].rows:
        # The result is on its way.
        metrics = told(stage, gateway, 78)
    [worker] = metrics.workers
    assert (worker.worker, worker.pages, worker.pages_used) == ("w0", 8, spec().pages)
    assert worker.ended == {"INFER ok": 1, "LOAD ok": 1, "PREPARE ok": 1}
    assert [(model.model, model.rows) for model in metrics.models] == [("m0", 1), ("other", 0)]
    assert sum(metrics.models[0].load.counts) == 1
    assert (metrics.models_served, metrics.requests_queued) == (1, 0)


def told(stage: Stage, gateway: FakeGateway, token: int) -> ClusterMetrics:
    """Ask, and return the answer."""
    before = len(gateway.all(AdminReply))
    gateway.send(AdminRequest(token, metrics=True))
    stage.until(lambda: len(gateway.all(AdminReply)) > before)
    reply = gateway.last(AdminReply)
    assert reply.token == token
    assert reply.status is None
    assert reply.metrics is not None
    return reply.metrics
