"""Weights of each user over features of items (Velox): the policy that `selection.linear` is behind. Pure."""

from __future__ import annotations

from mainspring.messages.applications import LINEAR
from mainspring.selection.linear.model import LinearOptions
from mainspring.selection.policies.fixed import Majority


class Linear(Majority):
    """The member that computes features is asked, if there is one; `LinearApplication` does the rest."""

    name = LINEAR
    Options = LinearOptions
