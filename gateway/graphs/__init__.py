"""Graphs of models: what one is, whether it makes sense, and which rows take part in a step."""
