"""The policies by name. A new policy is its file and its line here, or a class anywhere else.

``package.module:Class`` names a policy that is not part of Mainspring.
"""

from __future__ import annotations

from mainspring.messages.choices import policy_named
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.policies.baselines.clipper import Clipper
from mainspring.scheduler.policies.baselines.clockwork_release import ClockworkRelease
from mainspring.scheduler.policies.baselines.edf import Edf
from mainspring.scheduler.policies.baselines.fifo import Fifo
from mainspring.scheduler.policies.baselines.first_free import FirstFree
from mainspring.scheduler.policies.baselines.nexus import Nexus
from mainspring.scheduler.policies.baselines.symphony import Symphony
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.policies.mainspring.policy import Mainspring
from mainspring.scheduler.policies.options import read_options
from mainspring.scheduler.state import SchedulerState

_POLICIES: dict[str, type[Policy]] = {
    Clipper.name: Clipper,
    Clockwork.name: Clockwork,
    ClockworkRelease.name: ClockworkRelease,
    Edf.name: Edf,
    Fifo.name: Fifo,
    FirstFree.name: FirstFree,
    Mainspring.name: Mainspring,
    Nexus.name: Nexus,
    Symphony.name: Symphony,
}
_REQUIRED = ("next_batch", "next_load")
"""The methods that a policy must have of its own; of a compiled class Python does not know which are
abstract."""


def policy_names() -> list[str]:
    """Return the names of the policies that are part of Mainspring."""
    return sorted(_POLICIES)


def policy_class(name: str) -> type[Policy]:
    """Return the policy of a name, or of ``package.module:Class``; raise ValueError if there is none."""
    found = policy_named(name, _POLICIES, Policy)
    lacking = [method for method in _REQUIRED if getattr(found, method) is getattr(Policy, method)]
    if lacking:
        raise ValueError(f"policy {name!r} lacks {', '.join(lacking)}")
    return found


def make_policy(name: str, state: SchedulerState) -> Policy:
    """Return the policy of a name, as of `policy_class`, with the configuration's options.

    Raises ValueError if there is no such policy or option.
    """
    found = policy_class(name)
    return found(state, read_options(name, found.Options, state.config.policy_options))
