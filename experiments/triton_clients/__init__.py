"""Programs written for Triton, run against a cluster as they are."""
