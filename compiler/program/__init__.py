"""The program: an optimised graph without weights, their layout in pages, packing and blocks."""
