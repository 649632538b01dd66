"""Parts of ``mainspring trace``."""
