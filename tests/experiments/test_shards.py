"""Several controllers against one, simulated at a small size, and moved between in a real cluster."""

from __future__ import annotations

from mainspring.experiments import shards, shards_moved


def test_few_shards_do_about_what_one_does_and_a_death_concerns_none_of_the_others() -> None:
    found = shards.main(
        [
            *("--shards", "2", "--devices", "8", "--models", "60", "--mixes", "2", "--rounds", "2"),
            *("--warm-up", "0.5", "--duration", "1", "--death", "1", "--load", "0.5"),
        ]
    )
    assert found["requests"] > 100
    assert 0.8 * found["one"] <= found["sharded"] <= found["requests"]
    assert found["others"] > 0
    assert found["unlike"] == 0


def test_models_and_a_device_move_and_all_are_answered_in_time() -> None:
    found = shards_moved.main(["--models", "10", "--load", "0.3", "--steady-s", "2"])
    before, after = found["shards"]
    assert [workers for workers, _ in before] == [3, 3]
    assert [workers for workers, _ in after] == [2, 4]
    assert before[0][1] - after[0][1] == 10
    for ended in found["ended"].values():
        assert set(ended) == {"in time"}
