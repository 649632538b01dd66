"""Whether a scheduling policy exists, before anything is started for it."""

from __future__ import annotations

import sys

from mainspring.launch.tables import ConfigError
from mainspring.scheduler.policies.registry import policy_class


def check_policy(name: str) -> None:
    """Raise `ConfigError` if there is no policy of this name.

    ``package.module:Class`` is found in the current folder too, as it is by the processes that are started.
    """
    if ":" in name and "" not in sys.path:
        sys.path.append("")
    try:
        policy_class(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
