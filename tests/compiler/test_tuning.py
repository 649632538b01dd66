"""The search for the fastest variant of each kernel, with a simulated timer, and what is kept of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.plan import LaunchPlan, Plans, TimerFailed, Trial
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.tuning import (
    MARGIN,
    MOST_FAILURES,
    ROUNDS,
    VARIANTS,
    Subject,
    Tuner,
    fastest,
    in_turns,
)

Choice = tuple[int, int]


class Device:
    """A simulated GPU and its clock: each variant of each subject takes its own time, give or take."""

    def __init__(self, ns: dict[str, list[int]], noise: float = 0.0) -> None:
        self.ns = ns
        self.noise = noise
        self.random = random.Random(5)
        self.now = 0.0
        self.timed: list[str] = []
        self.breaks: set[str] = set()
        self.opened = 0

    def subject(self, key: str, cost: float = 1.0) -> Subject:
        choices = [(16 >> number, number) for number in range(len(self.ns[key]))]
        return Subject(key, cost, choices, lambda some: self.build(key, some))

    def build(self, key: str, choices: Sequence[Choice]) -> Trial:
        plans = tuple(LaunchPlan(number, 0, ()) for number in range(1, len(choices) + 1))
        return Trial(Plans("cuda", "sm_90", "", {}, plans), key.encode())

    @contextmanager
    def open(self) -> Iterator[Device]:
        self.opened += 1
        yield self

    def __call__(self, trial: Trial) -> tuple[int, ...]:
        key = trial.image.decode()
        self.timed.append(key)
        self.now += 10
        if key in self.breaks:
            raise TimerFailed("an illegal memory access was encountered")
        # A clock that falls while it runs, and now and then something that takes long.
        return tuple(
            int(
                self.ns[key][number - 1]
                * (1 + position / len(trial.order))
                * self.random.uniform(1 - self.noise, 1 + self.noise)
                * (10 if self.noise and self.random.random() < 0.1 else 1)
            )
            for position, number in enumerate(trial.order)
        )

    def tuner(self, store: Store, seconds: float = 1000) -> Tuner:
        return Tuner(store, self.open, seconds, lambda: self.now)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize("winner", range(VARIANTS))
def test_the_fastest_variant_wins_through_noise_and_a_falling_clock(winner: int) -> None:
    ns = [1_000_000 + 200_000 * (number != winner) for number in range(VARIANTS)]
    device = Device({"k": ns}, noise=0.03)
    choice, medians = fastest(device.subject("k"), device)
    assert choice == device.subject("k").choices[winner]
    assert len(medians) == VARIANTS
    assert min(medians, key=lambda each: medians[each]) == f"[{16 >> winner},{winner}]"


def test_what_hardly_beats_the_model_s_own_choice_does_not_win() -> None:
    hardly, clearly = (int(1_000_000 * (1 - share)) for share in (MARGIN / 2, 2 * MARGIN))
    device = Device({"hardly": [1_000_000, hardly], "clearly": [1_000_000, clearly]})

    # In a clock that stands still, which the order can't disturb.
    def timer(trial: Trial) -> tuple[int, ...]:
        return tuple(device.ns[trial.image.decode()][number - 1] for number in trial.order)

    assert fastest(device.subject("hardly"), timer)[0] == device.subject("hardly").choices[0]
    assert fastest(device.subject("clearly"), timer)[0] == device.subject("clearly").choices[1]


def test_only_the_first_variants_are_built() -> None:
    device = Device({"k": [100 * (20 - number) for number in range(20)]})
    assert fastest(device.subject("k"), device)[0] == device.subject("k").choices[VARIANTS - 1]


def test_variants_run_in_turns_in_an_order_that_a_seed_decides() -> None:
    order = in_turns(5, ROUNDS, "k")
    rounds = [order[5 * number : 5 * number + 5] for number in range(ROUNDS)]
    assert all(sorted(each) == [1, 2, 3, 4, 5] for each in rounds)
    assert len(set(rounds)) > ROUNDS // 2
    assert order == in_turns(5, ROUNDS, "k") != in_turns(5, ROUNDS, "l")


def test_winners_are_kept_and_need_no_gpu_again(store: Store) -> None:
    device = Device({"a": [300, 200, 100], "b": [100, 200, 300]})
    subjects = [device.subject("a"), device.subject("b")]
    found = device.tuner(store).choose(subjects, "sm_90")
    assert found == {"a": subjects[0].choices[2], "b": subjects[1].choices[0]}
    assert Tuner(store).choose(subjects, "sm_90") == found
    assert device.tuner(store).choose(subjects, "sm_90") == found
    assert (sorted(device.timed), device.opened) == (["a", "b"], 1)
    assert Tuner(store).choose(subjects, "sm_80") == {}, "another architecture"
    assert Tuner(store).choose([device.subject("b")._replace(key="c")], "sm_90") == {}


def test_a_choice_that_can_no_longer_be_made_and_a_damaged_record_are_timed_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device({"a": [300, 200, 100]})
    subject = device.subject("a")
    device.tuner(store).choose([subject], "sm_90")
    assert Tuner(store).choose([subject._replace(choices=subject.choices[:2])], "sm_90") == {}
    (record,) = (store.root / "tuned").iterdir()
    record.write_text("{")
    assert Tuner(store).choose([subject], "sm_90") == {}
    assert "timed again" in caplog.text
    assert device.tuner(store).choose([subject], "sm_90") == {"a": subject.choices[2]}
    assert device.timed == ["a", "a"]


def test_a_search_ends_in_time_with_the_most_expensive_done_and_goes_on_the_next_time(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device({str(number): [200, 100] for number in range(5)})
    subjects = [device.subject(str(number), cost=number) for number in range(5)]
    assert device.tuner(store, seconds=25).choose(subjects, "sm_90").keys() == {"4", "3", "2"}
    assert "3 of 5 kernels were timed in 25 s" in caplog.text
    assert device.tuner(store, seconds=25).choose(subjects, "sm_90").keys() == {"0", "1", "2", "3", "4"}
    assert device.timed == ["4", "3", "2", "1", "0"]


def test_without_time_nothing_is_timed(store: Store) -> None:
    device = Device({"a": [200, 100]})
    assert device.tuner(store, seconds=0).choose([device.subject("a")], "sm_90") == {}
    assert not device.opened


def test_what_can_not_be_timed_stays_as_the_model_has_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device({key: [200, 100] for key in "abcdefg"})
    device.breaks = {"a"}

    def refuse(_: Sequence[Choice]) -> Trial:
        raise CompileError("no compiler")

    subjects = [device.subject(key) for key in "abc"]
    subjects[1] = subjects[1]._replace(build=refuse)
    assert device.tuner(store).choose(subjects, "sm_90").keys() == {"c"}
    assert "an illegal memory access" in caplog.text
    assert "no compiler" in caplog.text
    device.breaks = {*device.ns}
    device.timed.clear()
    assert device.tuner(store).choose([device.subject(key) for key in "abdefg"], "sm_90") == {}
    assert len(device.timed) == MOST_FAILURES


def test_a_timer_that_forgets_runs_is_no_timer() -> None:
    device = Device({"a": [200, 100]})
    with pytest.raises(TimerFailed, match=f"{2 * ROUNDS} runs .* 1 were timed"):
        fastest(device.subject("a"), lambda _: (5,))
