"""Compiling of folders with model.toml and model.py, to artifacts of the engine ``python``."""
