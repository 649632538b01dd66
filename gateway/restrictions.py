"""Which groups of calls need a header, as Triton's ``--http-restricted-api`` has it. Pure.

A rule such as ``model-repository,logging:admin-key=secret`` says that calls of these groups are answered if
they bring the header ``admin-key`` with the value ``secret``. That is a lock, not a way to tell clients
apart: tokens are that, and where both are asked for a call needs both.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable
from enum import StrEnum

GRPC_PREFIX = "triton-grpc-protocol-"
"""Over gRPC the metadata's name is this and the key."""
_RULE = re.compile(r"([a-z,\- ]+):([A-Za-z0-9!#$%&'*+.^_`|~-]+)=([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")


class Group(StrEnum):
    """Triton's groups of calls."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


class Restrictions:
    """Of one protocol."""

    def __init__(self, key: str, rules: Iterable[str], prefix: str = "") -> None:
        """``key`` is the configuration's; ``prefix`` comes before each header's name. Raises ValueError."""
        self._needed: dict[str, tuple[str, str]] = {}
        for rule in rules:
            found = _RULE.fullmatch(rule)
            if found is None:
                raise ValueError(
                    f"the gateway's {key} has {_public(rule)!r}; a rule is GROUPS:HEADER=VALUE, such as "
                    "'model-repository,logging:admin-key=secret'"
                )
            for group in map(str.strip, found[1].split(",")):
                self._add(key, group, prefix + found[2].lower(), found[3])

    def _add(self, key: str, group: str, name: str, value: str) -> None:
        if group not in list(Group):
            raise ValueError(f"the gateway's {key} has the group {group!r}; groups are {', '.join(Group)}")
        if group in self._needed:
            raise ValueError(f"the gateway's {key} has the group {group!r} twice; one header opens it")
        self._needed[group] = name, value

    def missing(self, group: str, said: Callable[[str], str | None]) -> str | None:
        """Return the header that a call of a group lacks, None if it lacks none.

        ``said`` returns what a header of a call, named in lower case, says.
        """
        if group not in self._needed:
            return None
        name, value = self._needed[group]
        given = (said(name) or "").encode(errors="replace")
        return None if hmac.compare_digest(given, value.encode()) else name


def _public(rule: str) -> str:
    """Return what may be shown of a rule: its value is a secret."""
    return rule.partition("=")[0][:100]


ANY = "*"
"""Stands for pages of any origin."""
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d{1,5})?")


def check_origins(origins: Iterable[str]) -> None:
    """Raise ValueError for what is no origin."""
    for each in origins:
        if each != ANY and not _ORIGIN.fullmatch(each.lower()):
            raise ValueError(
                f"the gateway's http_cors_origins has {each!r}; an origin is SCHEME://HOST or "
                "SCHEME://HOST:PORT, such as https://app.example.com, without a path, or * for any"
            )
