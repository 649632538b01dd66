"""The choice of an artifact: candidates compared with the original, measured, and the fastest one."""
