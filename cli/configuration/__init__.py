"""``mainspring.toml``: one table for each kind of process and one for the cluster as a whole."""
