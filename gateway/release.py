"""Which release of Mainspring is installed, as gateways tell their clients."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the installed release, or ``unknown`` if the source runs without having been installed."""
    try:
        return version("mainspring")
    except PackageNotFoundError:
        return "unknown"
