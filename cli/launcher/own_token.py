"""The token by which a launcher asks its own gateway whether it serves, where clients need tokens."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import msgspec

from mainspring.cli.launcher.jobs import GatewayJob, Job


def with_own_token(jobs: Iterable[Job]) -> tuple[tuple[Job, ...], str]:
    """Return the jobs with a new token's digest given to gateways that need tokens, and the token.

    Jobs are written to files: the token itself is in none of them.
    """
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    return tuple([_given(job, digest) for job in jobs]), token


def _given(job: Job, digest: str) -> Job:
    if not isinstance(job, GatewayJob) or not job.gateway.token_file:
        return job
    gateway = msgspec.structs.replace(job.gateway, launcher_token_sha256=digest)
    return msgspec.structs.replace(job, gateway=gateway)
