"""From a folder with model.toml and model.py to an artifact of the engine ``python``."""
