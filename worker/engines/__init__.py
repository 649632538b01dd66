"""The devices: one file or folder for each, and the registry that makes an engine from a configuration."""
