"""Families as text that prometheus-client's own parser reads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mainspring.gateway.metrics.series import Buckets, family, head, labels


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return each sample's value by its name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            own = tuple(sorted(sample.labels.items()))
            assert own not in found.setdefault(sample.name, {}), "a sample stands there once"
            found[sample.name][own] = sample.value
    return found


@given(st.text(min_size=1))
def test_any_value_of_a_label_is_read_back(value: str) -> None:
    text = "".join(family("name", "gauge", "meaning", [(labels(model=value), 3)]))
    # The parser splits lines where Python does, not only at line feeds as the format says.
    if len(text.splitlines()) == 3:
        assert parsed(text) == {"name": {(("model", value),): 3.0}}


@given(
    st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=20, unique=True).map(sorted),
    st.data(),
)
def test_a_histogram_is_cumulative_and_complete(bounds: list[int], data: st.DataObject) -> None:
    counts = data.draw(
        st.lists(st.integers(0, 10**9), min_size=len(bounds) + 1, max_size=len(bounds) + 1), "counts"
    )
    lines = Buckets(bounds, 1e9).lines("d", 'model="m"', counts, 5_000_000_000)
    found = parsed(head("d", "histogram", "Durations.") + lines)
    buckets = {dict(own)["le"]: value for own, value in found["d_bucket"].items()}
    assert len(buckets) == len(counts)
    for place, bound in enumerate(bounds):
        assert buckets[repr(bound / 1e9)] == sum(counts[: place + 1])
    assert buckets["+Inf"] == found["d_count"][("model", "m"),] == sum(counts)
    assert ("d_sum" in found) == (bounds[0] >= 0), "a sum of negative values could fall"


def test_a_histogram_without_labels() -> None:
    found = parsed(head("d", "histogram", "Durations.") + Buckets((1, 2), 1).lines("d", "", (1, 2, 3), 14))
    assert found["d_bucket"] == {(("le", "1.0"),): 1, (("le", "2.0"),): 3, (("le", "+Inf"),): 6}
    assert found["d_sum"][()] == 14


@pytest.mark.parametrize("kind", ["counter", "gauge", "untyped"])
def test_a_family_without_samples_is_left_out(kind: str) -> None:
    assert not list(family("name", kind, "meaning", []))
    [metric] = text_string_to_metric_families("".join(family("name", kind, "What it is.", [("", 1.5)])))
    assert (metric.documentation, metric.samples[0].value) == ("What it is.", 1.5)


def test_labels_without_a_value_are_left_out() -> None:
    assert labels(model="m", version="") == 'model="m"'
