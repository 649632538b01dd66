"""Results, models and clients as people read them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import mainspring
from mainspring import InferResult, Timing
from mainspring.client.address import gateway_address
from mainspring.client.catalog import Models
from mainspring.client.deadlines import slo_nanoseconds
from mainspring.messages.clients import StepTiming
from tests.gateway.fakes import make_spec

MS = 1_000_000


def result(elapsed_ns: int = 12 * MS, **changes: object) -> InferResult:
    timing = Timing(
        *(10 * MS, 2 * MS, 5 * MS, 8 * MS, 4, False, "worker-0"), elapsed_ns=elapsed_ns, slo_ns=20 * MS
    )
    outputs = {
        "scores": np.arange(3_000, dtype=np.float32).reshape(3, 1_000) / 7,
        "<label>": np.array([281, 7]),
    }
    return InferResult(outputs, timing)


def test_a_result_is_a_few_lines_with_shapes_types_first_values_and_its_time() -> None:
    text = repr(result())
    assert len(text.splitlines()) == 5
    assert all(len(line) < 170 for line in text.splitlines())
    assert "'scores': float32[3, 1000] [0, 0.1429, 0.2857, 0.4286, ...]" in text
    assert "'<label>': int64[2] [281, 7]" in text
    assert "12 ms from call to result, 8 ms left of 20 ms, gateway 10 ms" in text
    assert "execution 5 ms in a batch of 4, warm on worker-0" in text


def test_a_late_one_says_by_how_much() -> None:
    late = result(25 * MS)
    assert late.late
    assert "5 ms late of 20 ms" in repr(late)
    assert not result().late


def test_a_notebook_shows_a_table_with_what_outputs_are_called_escaped() -> None:
    html = result()._repr_html_()
    assert html.startswith("<table>")
    assert "&lt;label&gt;" in html
    assert "12 ms from call to result" in html


def test_a_result_without_values_or_with_many_outputs_stays_short() -> None:
    timing = Timing(1, 1, 1, None, 0, False, "", True)
    outputs = {f"y{number}": np.zeros((0, 4), np.float32) for number in range(100)}
    text = repr(InferResult(outputs, timing))
    assert len(text.splitlines()) < 25
    assert "84 more" in text
    assert "from the cache" in text


def test_times_in_milliseconds() -> None:
    timing = result().timing
    assert (timing.elapsed_ms, timing.total_ms, timing.queue_ms) == (12, 10, 2)
    assert (timing.execute_ms, timing.left_ms) == (5, 8)


def test_a_graphs_steps_are_told() -> None:
    steps = (
        StepTiming("a", 2, begin_ns=0, end_ns=3_000_000, worker="w"),
        StepTiming("b"),
        StepTiming("c", 1, True),
    )
    text = repr(InferResult({}, msgspec.structs.replace(result().timing, steps=steps)))
    assert "a: 3 ms for 2 rows on w, b: skipped, c: missing" in text


def test_models_by_name_by_place_and_in_order() -> None:
    models = Models([make_spec("a"), make_spec("b")])
    assert models["b"].name == "b"
    assert models[0].name == "a"
    assert [spec.name for spec in models[:1]] == ["a"]
    assert models.names == ["a", "b"]
    assert repr(models) == "Models(a, b)"
    with pytest.raises(mainspring.UnknownModel, match="'aa' is not served; did you mean 'a'"):
        models["aa"]
    with pytest.raises(KeyError):
        models["nothing"]


def test_a_model_is_one_line() -> None:
    text = repr(make_spec("a"))
    assert len(text) < 200
    assert "ModelSpec('a'" in text
    assert "data: float32[rows, 4]" in text


@pytest.mark.parametrize(("slo", "ns"), [("100ms", 100 * MS), ("0.5 s", 500 * MS), ("none", None)])
def test_an_slo_as_people_write_it(slo: str, ns: int | None) -> None:
    assert slo_nanoseconds(None, slo) == ns


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((None, "soon"), mainspring.InvalidSlo, "50ms"),
        ((None, "100"), mainspring.InvalidSlo, "a number and a unit"),
        ((None, 100), TypeError, "slo_ms=100"),
        ((5, "5ms"), TypeError, "one of them"),
        (("5ms", None), TypeError, "slo='5ms'"),
    ],
)
def test_an_slo_that_is_none_is_a_clear_error(
    arguments: tuple[object, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        slo_nanoseconds(*arguments)  # type: ignore[arg-type]


def test_the_address_is_what_is_given_else_the_environments_else_the_default() -> None:
    there = {"MAINSPRING_ADDRESS": "tcp://elsewhere:7500"}
    assert gateway_address("tcp://here:1", there) == "tcp://here:1"
    assert gateway_address(None, there) == "tcp://elsewhere:7500"
    assert gateway_address(None, {"MAINSPRING_ADDRESS": " "}) == "tcp://127.0.0.1:7400"
    assert gateway_address(None, {}) == "tcp://127.0.0.1:7400"
