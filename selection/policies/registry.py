"""The policies of model selection by name. A new one is a class and its line here, or a class anywhere.

``package.module:Class`` names a policy that is not part of Mainspring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mainspring.messages.choices import did_you_mean, policy_named
from mainspring.selection.outputs import Output
from mainspring.selection.policies.counting import EpsilonGreedy, Thompson, Ucb1
from mainspring.selection.policies.exponential import Exp3, Exp4
from mainspring.selection.policies.fixed import Ab, Linear, Majority, Static
from mainspring.selection.policy import Policy

_POLICIES: dict[str, type[Policy]] = {
    each.name: each for each in (Ab, EpsilonGreedy, Exp3, Exp4, Linear, Majority, Static, Thompson, Ucb1)
}


def selection_policy_names() -> list[str]:
    """Return the names of the policies that are part of Mainspring."""
    return sorted(_POLICIES)


def selection_policy_class(name: str) -> type[Policy]:
    """Return the policy of a name, or of ``package.module:Class``; raise ValueError if there is none."""
    found = policy_named(name, _POLICIES, Policy)
    if found.__abstractmethods__:
        raise ValueError(f"policy {name!r} lacks {', '.join(sorted(found.__abstractmethods__))}")
    return found


def make_selection_policy(
    name: str, members: Sequence[str], output: Output, options: Mapping[str, Any]
) -> Policy:
    """Return the policy of a name for these members, with its options.

    Raises ValueError if there is no such policy or option, or if an option is not what it has to be.
    """
    found = selection_policy_class(name)
    known = found.Options.__struct_fields__
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"policy {name!r} has no option {option!r}: {has}{did_you_mean(option, known)}")
    try:
        given = msgspec.convert(dict(options), found.Options, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"options of policy {name!r}: {error}") from None
    return found(members, output, given)
