"""The sums of all contexts' states, of which their mean is made, as a record that gateways add to. Pure."""

from __future__ import annotations

from typing import Final

from mainspring.selection.policy import Policy, State

_COUNT: Final = ""
"""Stands for a member in the record: how many contexts the sums are of."""


def with_count(sums: State, count: float) -> State:
    """Return sums as a record has them."""
    return {**sums, _COUNT: (count,)}


def total_fits(policy: Policy, state: State) -> bool:
    """Say whether a record is one of sums, with as many numbers of each member as the policy has."""
    return _COUNT in state and policy.fits(_without_count(state) or policy.init())


def merged_totals(policy: Policy, there: State, before: State, after: State) -> tuple[State, float]:
    """Return the sums that are stored, and the count, with what changed here between two added to them.

    ``before`` is empty where nothing was stored before.
    """
    sums = _plus(_scaled(policy, there), _scaled(policy, after), 1)
    count = there[_COUNT][0] + after[_COUNT][0] - (before[_COUNT][0] if before else 0.0)
    return _plus(sums, _scaled(policy, before), -1), count


def _plus(one: State, other: State, sign: int) -> State:
    """Return sums with others added (1) or taken away (-1); an empty state is nothing."""
    if not other:
        return one
    return {
        member: tuple(
            [
                old + sign * each
                for old, each in zip(one.get(member, (0.0,) * len(numbers)), numbers, strict=True)
            ]
        )
        for member, numbers in other.items()
    }


def _without_count(state: State) -> State:
    return {member: numbers for member, numbers in state.items() if member != _COUNT}


def _scaled(policy: Policy, total: State) -> State:
    """Return sums with the members that entered since they were stored, as of the mean context."""
    sums = _without_count(total)
    if not sums:
        return {}
    count = total[_COUNT][0]
    mean = policy.completed(
        {member: tuple([each / count for each in numbers]) for member, numbers in sums.items()}
    )
    return {
        member: sums.get(member) or tuple([each * count for each in numbers])
        for member, numbers in mean.items()
    }
