"""What the benchmark of hops makes of its samples."""

from __future__ import annotations

import pytest

from mainspring.experiments.bench.hop import LENGTHS, Samples, chain, figures_of
from mainspring.messages.graphs import graph_fault


def test_a_hop_is_what_each_step_adds() -> None:
    found = {
        steps: Samples([1.0 + 0.5 * steps] * 3, [0.4 * steps] * 3, [0.3 * steps], [0.2 * steps])
        for steps in LENGTHS
    }
    figures = {each.name: each for each in figures_of(4.0, found)}
    hop = figures["4 KB: hop, median"]
    assert hop.value == pytest.approx(0.5)
    assert hop.met
    assert figures["4 KB: hop as the gateway sees it, median"].value == pytest.approx(0.4)
    assert figures["4 KB: hop, without waits for a processor"].value == pytest.approx(0.3)
    assert figures["4 KB: hop, processor time"].value == pytest.approx(0.2)
    assert figures_of(602.0, found)[0].target is None


def test_each_step_takes_what_the_one_before_gave() -> None:
    spec = chain(3)
    assert graph_fault(spec) is None
    assert [step.inputs["data"] for step in spec.steps] == ["data", "s0.output", "s1.output"]
    assert spec.outputs == {"output": "s2.output"}
