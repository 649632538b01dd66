"""Writes pages of the documentation from the code: configuration, messages, HTTP API."""
