"""The devices: one file for each engine, and the registry that makes one from a configuration."""
