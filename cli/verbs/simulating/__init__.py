"""Parts of ``mainspring simulate``."""
