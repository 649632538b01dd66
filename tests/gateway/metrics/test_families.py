"""The gateway's and the controller's families, read back by prometheus-client's parser."""

from __future__ import annotations

from collections import Counter

from mainspring.gateway.metrics.families import (
    as_triton,
    by_model,
    cluster,
    graph_steps,
    model_labels,
    outcomes,
    sequences,
)
from mainspring.gateway.metrics.series import Series
from mainspring.messages.clients import StepTiming
from mainspring.messages.codes import Reason
from mainspring.messages.metrics import ClusterMetrics, HistogramCounts, ModelActions, Reading, WorkerActions
from mainspring.messages.scaling import KindStatus
from mainspring.telemetry.bounded import OTHER
from tests.gateway.metrics.test_series import parsed

MS = 1_000_000
M = (("model", "m"), ("version", "1"))
REST = (("model", "other"),)


def counted() -> list[tuple[str, Series]]:
    """Return a busy model and an idle rest."""
    series = Series()
    for left_ns in (30 * MS, -5 * MS, None):
        series.answered(20 * MS, left_ns)
        series.queue.observe(10 * MS)
        series.execution.observe(2 * MS)
        series.rows += 2
    series.executions, series.input_ns, series.output_ns, series.cold = 2, 6_000, 9_000, 1
    series.hits, series.hit_ns = 1, 4_200
    for cache_ns in (5_000, 4_000):
        series.missed(cache_ns)
    for reason in (Reason.CANCELLED, Reason.DEADLINE_PASSED, Reason.WORKER_FAILED, Reason.BAD_INPUT):
        series.refused(reason, has_deadline=True)
    return [(model_labels("1 m"), series), (model_labels(OTHER), Series())]


def test_what_is_counted_for_each_model() -> None:
    found = parsed("".join(by_model(counted())))
    assert found["mainspring_request_duration_seconds_count"] == {M: 3, REST: 0}
    assert found["mainspring_request_duration_seconds_sum"][M] == 0.06
    assert found["mainspring_queue_duration_seconds_bucket"][(("le", "0.0075"), *M)] == 0
    assert found["mainspring_queue_duration_seconds_bucket"][(("le", "0.01"), *M)] == 3
    assert found["mainspring_slack_seconds_bucket"][(("le", "0.0"), *M)] == 1, "one was late"
    assert "mainspring_slack_seconds_sum" not in found
    assert found["mainspring_slo_requests_total"][M] == 4, "cancelled and bad ones say nothing of the server"
    assert found["mainspring_slo_attained_total"][M] == 1
    assert found["mainspring_cold_starts_total"][M] == 1
    by_outcome = {
        dict(own)["outcome"]: value
        for own, value in found["mainspring_requests_total"].items()
        if dict(own)["model"] == "m"
    }
    assert by_outcome == {"in_time": 1, "late": 1, "best_effort": 1, "rejected": 4}
    reasons = {
        dict(own)["reason"]: value
        for own, value in found["mainspring_rejected_requests_total"].items()
        if dict(own)["model"] == "m"
    }
    assert {"overloaded", "timed_out", "no_worker"} <= set(reasons), "zeros from the start"
    assert {reason: count for reason, count in reasons.items() if count} == {
        "bad_input": 1,
        "cancelled": 1,
        "deadline_passed": 1,
        "worker_failed": 1,
    }


def test_what_became_of_sequences_by_model() -> None:
    numbers = Counter({"begun": 5, "live": 2, "bytes": 64, "ended": 2, "idle": 1, "unknown": 7})
    found = parsed("".join(sequences({model_labels("1 m"): numbers})))
    assert found["mainspring_model_sequences"] == {M: 2}
    assert found["mainspring_model_sequence_bytes"] == {M: 64}
    events = {
        dict(own)["event"]: value for own, value in found["mainspring_model_sequence_events_total"].items()
    }
    assert events == {"begun": 5, "ended": 2, "idle": 1, "dropped": 0, "unknown": 7}
    assert not parsed("".join(sequences({}))), "without sequences nothing is said of them"


def test_what_became_of_each_step_of_a_graph() -> None:
    series = Series()
    took = StepTiming("find", 3, begin_ns=0, end_ns=4 * MS, queue_ns=MS, execute_ns=2 * MS, model="small")
    series.step(took)
    for step in (
        StepTiming("find", 1, begin_ns=MS, end_ns=2 * MS),
        StepTiming("read"),
        StepTiming("s", 1, True),
    ):
        series.step(step)
    found = parsed("".join(graph_steps([(model_labels("1 g"), series)])))
    answers = {
        (dict(own)["step"], dict(own)["outcome"])
        for own, value in found["mainspring_graph_step_answers_total"].items()
        if value
    }
    assert answers == {("find", "run"), ("read", "skipped"), ("s", "missing")}
    find = (("model", "g"), ("step", "find"), ("version", "1"))
    assert found["mainspring_graph_step_rows_total"][find] == 4
    by_small = tuple(sorted((*find, ("member", "small"))))
    assert found["mainspring_family_answers_total"] == {by_small: 1}
    parts = {
        dict(own)["part"]: value
        for own, value in found["mainspring_graph_step_seconds_total"].items()
        if dict(own)["step"] == "find"
    }
    assert parts == {"whole": 0.005, "queue": 0.001, "execution": 0.002}
    assert not parsed("".join(graph_steps(counted()))), "without graphs nothing is said of them"


def test_outcomes_are_all_that_ended() -> None:
    [(_, series), _] = counted()
    assert sum(outcomes(series).values()) == series.latency.count + 4


def test_the_same_under_tritons_names() -> None:
    text = "".join(as_triton(counted(), Counter({model_labels("1 m"): 7})))
    assert "# TYPE nv_inference_count counter\n" in text
    assert 'nv_inference_count{model="m",version="1"} 6\n' in text
    assert 'nv_inference_exec_count{model="m",version="1"} 2\n' in text
    assert 'nv_inference_request_success{model="m",version="1"} 3\n' in text
    assert 'nv_inference_request_duration_us{model="m",version="1"} 60000\n' in text
    assert 'nv_inference_queue_duration_us{model="m",version="1"} 30000\n' in text
    assert 'nv_inference_compute_input_duration_us{model="m",version="1"} 6\n' in text
    assert 'nv_inference_compute_infer_duration_us{model="m",version="1"} 6000\n' in text
    assert 'nv_inference_compute_output_duration_us{model="m",version="1"} 9\n' in text
    assert 'nv_inference_pending_request_count{model="m",version="1"} 7\n' in text
    for event, count, spent_us in (("hit", 1, 4), ("miss", 2, 9)):
        plural = "hits" if event == "hit" else "misses"
        assert f'nv_cache_num_{plural}_per_model{{model="m",version="1"}} {count}\n' in text
        assert f'nv_cache_{event}_duration_per_model{{model="m",version="1"}} {spent_us}\n' in text
    for reason, count in (("REJECTED", 1), ("CANCELED", 1), ("BACKEND", 1), ("OTHER", 1)):
        assert f'nv_inference_request_failure{{model="m",version="1",reason="{reason}"}} {count}\n' in text
    assert parsed(text)


def test_what_the_controller_counts() -> None:
    nothing = HistogramCounts((0, 0), 0)
    model = ModelActions(
        "m",
        "2",
        HistogramCounts((1, 1), 5 * MS),
        HistogramCounts((2, 3), -MS),
        nothing,
        HistogramCounts((4, 0), 4),
        3,
        1,
    )
    worker = WorkerActions('w "0"', "cpu", 8, 3, {"exec": 1_500 * MS}, {"INFER ok": 4, "LOAD too_late": 1})
    metrics = ClusterMetrics((MS,), (-MS,), (1,), (model,), (worker,), 12, 5, (MS,))
    found = parsed("".join(cluster(metrics)))
    mine = (("model", "m"), ("version", "2"))
    assert found["mainspring_load_duration_seconds_bucket"][(("le", "0.001"), *mine)] == 1
    assert found["mainspring_load_duration_seconds_sum"][mine] == 0.005
    assert (
        found["mainspring_prediction_error_seconds_bucket"][(("action", "infer"), ("le", "-0.001"), *mine)]
        == 2
    )
    assert "mainspring_prediction_error_seconds_sum" not in found
    assert found["mainspring_batch_size_count"][mine] == 4
    assert found["mainspring_batched_rows_total"][mine] == 3
    assert found["mainspring_erratic_models"][mine] == 1
    own = ("worker", 'w "0"')
    assert found["mainspring_worker_info"] == {(("device_kind", "cpu"), own): 1}
    assert (found["mainspring_pages"][(own,)], found["mainspring_pages_used"][(own,)]) == (8, 3)
    assert found["mainspring_executor_busy_seconds_total"] == {(("executor", "exec"), own): 1.5}
    assert found["mainspring_actions_total"] == {
        (("action", "infer"), ("status", "ok"), own): 4,
        (("action", "load"), ("status", "too_late"), own): 1,
    }
    assert (found["mainspring_models"][()], found["mainspring_queued_requests"][()]) == (12, 5)


def test_a_workers_time_on_its_device_and_beside_it() -> None:
    parts = {"exec": HistogramCounts((3, 1), 5 * MS)}, {"exec": HistogramCounts((4, 0), MS)}
    worker = WorkerActions("w", "nvidia-h100", 8, 3, {}, {}, *parts)
    metrics = ClusterMetrics((2 * MS,), (1,), (1,), (), (worker,), 0, 0, (MS,))
    found = parsed("".join(cluster(metrics)))
    own = (("executor", "exec"), ("worker", "w"))
    assert found["mainspring_action_device_seconds_sum"] == {own: 0.005}
    assert found["mainspring_action_device_seconds_bucket"][(own[0], ("le", "0.002"), own[1])] == 3
    assert found["mainspring_action_host_seconds_bucket"][(own[0], ("le", "0.001"), own[1])] == 4


def test_what_a_gpu_says_of_itself() -> None:
    told = (
        Reading("mainspring_gpu_sm_clock_hertz", 1.98e9),
        Reading("mainspring_gpu_throttled", 1.0, "power"),
        Reading("mainspring_gpu_throttled", 0.0, "hardware"),
    )
    worker = WorkerActions("w", "nvidia-h100", 8, 3, {}, {}, readings=told)
    found = parsed("".join(cluster(ClusterMetrics((1,), (1,), (1,), (), (worker,), 0, 0, (1,)))))
    own = ("worker", "w")
    assert found["mainspring_gpu_sm_clock_hertz"] == {(own,): 1.98e9}
    assert found["mainspring_gpu_throttled"] == {
        (("reason", "power"), own): 1,
        (("reason", "hardware"), own): 0,
    }
    assert "mainspring_gpu_power_watts" not in found


def test_the_workers_of_a_kind_that_are_wanted_and_those_that_there_are() -> None:
    kinds = (
        KindStatus("cpu", "launcher", 8, 4, 3, ("worker-7", "worker-8"), "worker-3 died"),
        KindStatus("emulated", "launcher", 8, 1, 1),
    )
    metrics = ClusterMetrics((1,), (1,), (1,), (), (), 0, 0, (1,), kinds)
    found = parsed("".join(cluster(metrics)))
    for name, cpu, emulated in (("wanted", 4, 1), ("running", 3, 1), ("leaving", 2, 0), ("fault", 1, 0)):
        values = found[f"mainspring_workers_{name}"]
        assert values == {(("kind", "cpu"),): cpu, (("kind", "emulated"),): emulated}


def test_a_cluster_without_workers_has_no_lines_of_any() -> None:
    assert "worker" not in "".join(cluster(ClusterMetrics((1,), (1,), (1,), (), (), 0, 0, (1,))))
