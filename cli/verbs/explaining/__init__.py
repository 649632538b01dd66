"""What `mainspring explain` does: where it finds a request's story, and how it tells it."""
