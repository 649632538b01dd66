"""The default policy: `policy` decides, and each other module answers one of its questions."""
