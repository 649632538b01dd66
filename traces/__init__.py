"""Workloads: Azure Functions readers, generators, the replayer that sends them, and what came of it."""
