"""``mainspring demo --learning``: an application whose best member is degraded and healed while it serves."""
