"""One estimate by the last 10 measured durations, and when to doubt it."""

from __future__ import annotations

from typing import Final

from mainspring.messages.estimates import DurationState

SAMPLES: Final = 10
STALE_NS: Final = 1_000_000_000
"""An estimate that was not measured for this long may be doubted, whatever it is."""
SOONEST_NS: Final = 10_000_000
"""Nothing that was measured within this time is doubted."""
PATIENCE: Final = 2
"""Two to this power are the seconds without a measurement after which an estimate goes back to its seed."""
MOST_PATIENCE: Final = 6
"""The same after many times in a row that no measurement bore out."""
RANK: Final = 3
"""Rank of the estimate among ten durations that spread, the largest being the first; among fewer, it is no
less than their median."""
HIGHEST_RANK: Final = 5
"""Highest rank among ten durations: no estimate is below the median."""
EVEN: Final = 11, 10
"""Durations spread if the maximum is more than 11/10 of the one that would then be the estimate."""
OUTLYING: Final = 2
"""An estimate of more than this many times the median of at least `FEWEST` samples is an outlier."""
FEWEST: Final = 3
"""Fewest samples among which one can be an outlier: with only two, it can't be told apart."""
OUTSTANDING: Final = 4
"""A duration of more than this many times the estimate is set aside, if it is longer by `OUTSTANDING_NS`: a
process that was stopped, or a host that others had, says nothing of what is to be expected next."""
OUTSTANDING_NS: Final = 50_000_000
IN_A_ROW: Final = 3
"""Number of outliers in a row that are no longer set aside: the estimate follows them."""


def is_outlier(duration_ns: int, expected_ns: int) -> bool:
    """Return whether a duration is so much longer than expected that no estimate follows it alone."""
    return duration_ns > OUTSTANDING * expected_ns and duration_ns - expected_ns >= OUTSTANDING_NS


class Rolling:
    """An estimate by a seed and then by the last 10 samples.

    A duration that is an outlier (`is_outlier`) becomes a sample only together with the two before it, if
    those were outliers, too. Outliers that were under way at one time, on several devices, count as one: what
    held one up may have held up all.
    """

    __slots__ = (
        "_aside",
        "_aside_ns",
        "_doubted",
        "_doubts",
        "_estimate_ns",
        "_halfway_ns",
        "_known",
        "_rank",
        "_ranked",
        "_returns",
        "_review_ns",
        "_samples",
        "_seed_ns",
        "_since_ns",
    )

    def __init__(self, seed_ns: int, *, seeds: int = 1, rank: int = RANK, known: bool = True) -> None:
        """Begin with a seed that counts as ``seeds`` samples; ``rank`` is as `Estimates.rank`.

        Beside a seed that was only assumed (``known`` is false) the first duration is no outlier.
        """
        self._known = known
        self._aside: list[int] = []
        """The last durations, if they were outliers."""
        self._aside_ns = 0
        """Instant at which the last of them ended."""
        self._samples = [seed_ns] * min(seeds, SAMPLES)
        """The oldest first."""
        self._ranked = list(self._samples)
        """The same, the shortest first."""
        self._rank = rank
        self._estimate_ns = seed_ns
        self._since_ns = 0
        """Instant at which it was last doubted, or measured to be about as long; what is far shorter
        contradicts it."""
        self._review_ns = 0
        """Earliest instant at which it may be doubted."""
        self._doubts = 0
        """Number of doubts of outliers in a row that no measurement has confirmed."""
        self._doubted = False
        """True if samples were forgotten, and no measurement since says whether that was right."""
        self._halfway_ns = 0
        """Duration midway between what the last doubt forgot and what it kept: a measurement below it
        confirms the doubt."""
        self._seed_ns = seed_ns
        """Duration that it goes back to if no measured one is short enough; negative if it is unknown."""
        self._returns = 0
        """Number of times in a row that it went back to its seed or near it without a measurement that
        confirms it."""

    @property
    def estimate_ns(self) -> int:
        """The estimate."""
        return self._estimate_ns

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self._samples)

    def state(self) -> DurationState:
        """Return all that it knows."""
        return DurationState(
            tuple(self._samples),
            self._estimate_ns,
            self._since_ns,
            self._review_ns,
            self._doubts,
            self._doubted,
            self._halfway_ns,
            self._seed_ns,
            self._returns,
            tuple(self._aside),
            self._aside_ns,
            self._known,
        )

    def restore(self, state: DurationState) -> int:
        """Know what another one knew, and return the estimate."""
        self._keep(list(state.samples[-SAMPLES:]))
        self._estimate_ns = state.estimate_ns
        self._since_ns = state.since_ns
        self._review_ns = state.review_ns
        self._doubts = state.doubts
        self._doubted = state.doubted
        self._halfway_ns = state.halfway_ns
        self._seed_ns = state.seed_ns
        self._returns = state.returns
        self._aside = list(state.aside)
        self._aside_ns = state.aside_ns
        self._known = state.known
        return self._estimate_ns

    def stands_out(self, duration_ns: int) -> bool:
        """Return whether a duration that is measured now would be an outlier.

        After a doubt it is compared with what was forgotten, which it may bear out.
        """
        expected_ns = self._estimate_ns
        if self._doubted:
            expected_ns = max(expected_ns, 2 * self._halfway_ns - expected_ns)
        return self._known and is_outlier(duration_ns, expected_ns)

    def add(self, now_ns: int, duration_ns: int) -> int:
        """Take one measured duration in, which ended now, and return the new estimate."""
        if self.stands_out(duration_ns):
            return self._set_aside(now_ns, duration_ns)
        if self._aside:
            self._aside = []
        self._known = True
        return self._take(now_ns, duration_ns)

    def give_up(self, now_ns: int, duration_ns: int) -> int:
        """Record that an action was awaited in vain for a time; return the estimate.

        Once that says as little as an outlier. After another outlier it is taken in as often as it takes for
        every rank to count it. The shortest of what was measured before stays: were nothing else known than
        how long was waited, no doubt could ever have the action tried again.
        """
        if not self._comes_after(now_ns, duration_ns):
            return self._estimate_ns
        if not self._aside:
            return self._set_aside(now_ns, duration_ns)
        self._aside = []
        least_ns = self._ranked[0]
        for _ in range(HIGHEST_RANK):
            self._take(now_ns, duration_ns)
        if least_ns < self._ranked[0]:
            self._samples[0] = least_ns
            self._keep(self._samples)
            self._estimate_ns = self._of_samples()
        return self._estimate_ns

    def _comes_after(self, now_ns: int, duration_ns: int) -> bool:
        """Return whether an outlier that has ended now began after the one before it."""
        return not self._aside or now_ns - duration_ns >= self._aside_ns

    def _set_aside(self, now_ns: int, duration_ns: int) -> int:
        """Note an outlier; if it is the last of `IN_A_ROW`, take them in."""
        if self._comes_after(now_ns, duration_ns):
            self._aside.append(duration_ns)
            self._aside_ns = now_ns
        if len(self._aside) >= IN_A_ROW:
            aside, self._aside = self._aside, []
            for each_ns in aside:
                self._take(now_ns, each_ns)
        return self._estimate_ns

    def _take(self, now_ns: int, duration_ns: int) -> int:
        """Make a duration one of the samples."""
        samples, ranked = self._samples, self._ranked
        samples.append(duration_ns)
        oldest_ns = samples.pop(0) if len(samples) > SAMPLES else None
        if oldest_ns != duration_ns:
            if oldest_ns is not None:
                ranked.remove(oldest_ns)
            place = len(ranked)
            while place and ranked[place - 1] > duration_ns:
                place -= 1
            ranked.insert(place, duration_ns)
        if self._doubted:
            self._weigh(duration_ns)
        if self._returns and len(samples) == SAMPLES:
            self._returns = 0
        self._estimate_ns = self._of_samples()
        if OUTLYING * duration_ns >= self._estimate_ns:
            self._since_ns = now_ns
        self._review_ns = self._since_ns + SOONEST_NS
        return self._estimate_ns

    def _weigh(self, duration_ns: int) -> None:
        """Check whether a measurement confirms the last doubt, or most of them contradict it."""
        if duration_ns < self._halfway_ns:
            self._doubts = self._returns = 0
            self._doubted = False
        elif self._median_ns() >= self._halfway_ns:
            self._doubted = False

    def _median_ns(self) -> int:
        return self._ranked[(len(self._ranked) - 1) // 2]

    def _keep(self, samples: list[int]) -> None:
        """Have these samples, the oldest first."""
        self._samples = samples
        self._ranked = sorted(samples)

    def _of_samples(self) -> int:
        """Return the estimate that follows from the samples; in doubt, their maximum: it may be borne out."""
        ranked = self._ranked
        rank = 1 if self._doubted else min(self._rank, (len(ranked) + 1) // 2)
        upper_ns = ranked[-rank]
        factor, divisor = EVEN
        most_ns = ranked[-1]
        return most_ns if divisor * most_ns <= factor * upper_ns else upper_ns

    def doubt(self, now_ns: int) -> int:
        """Return the estimate for a request that it turns away.

        Outliers among the samples can make an action look too long for every deadline; then it is never
        run again, and no measurement ever corrects the estimate. So once nothing was measured for a while,
        samples above the median are forgotten: that drops outliers, and changes little where a device has
        really become slow.

        An outlier is doubted after as long as it took itself, so that it costs no more than twice its own
        time. Each doubt that no measurement bears out makes the next one wait twice as long, up to
        `STALE_NS`, so that a device that has really become slow is seldom tried in vain. An estimate that is
        no outlier is doubted after `STALE_NS`: it is old only because the action is rarely asked for.

        Where all samples were longer than every deadline since, forgetting some of them helps nobody. If
        nothing else is left to forget, the estimate goes back to its seed, after a time that doubles with
        each time in a row that no measurement bears out (`PATIENCE`).
        """
        if self.doubtful(now_ns):
            self._forget(now_ns)
        return self._estimate_ns

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        if now_ns < self._review_ns:
            return False
        self._review_ns = self._since_ns + self._wait_ns()
        return now_ns >= self._review_ns

    def _wait_ns(self) -> int:
        """Return after how long without a measurement the samples above the median are doubted."""
        estimate_ns = self._estimate_ns
        if len(self._samples) >= FEWEST and estimate_ns > OUTLYING * self._median_ns():
            return min(STALE_NS, max(SOONEST_NS, estimate_ns) << self._doubts)
        if self._returns or self._ranked[0] >= estimate_ns:
            return STALE_NS << min(PATIENCE + self._returns, MOST_PATIENCE)
        return STALE_NS

    def _forget(self, now_ns: int) -> None:
        """Forget the samples above the median."""
        estimate_ns, median_ns, wait_ns = self._estimate_ns, self._median_ns(), self._wait_ns()
        self._since_ns = now_ns
        self._review_ns = now_ns + SOONEST_NS
        # Where most of them are equally long, the median is no less than what is in doubt.
        most_ns = min(median_ns, estimate_ns - 1)
        kept = [each for each in self._samples if each <= most_ns]
        if not kept:
            if not 0 <= self._seed_ns < estimate_ns:
                return
            kept = [self._seed_ns]
            self._returns += 1
        elif self._returns:
            self._returns += 1
        if wait_ns < STALE_NS:
            self._doubts += 1
        self._keep(kept)
        self._doubted = True
        self._estimate_ns = self._of_samples()
        self._halfway_ns = (self._estimate_ns + estimate_ns) // 2
