"""How long a test waits for what should come at once, before it says that it never came."""

from __future__ import annotations

PATIENCE_S = 60.0
"""Far beyond what any of it takes: a shared machine may stand still for seconds, which is not a defect."""
