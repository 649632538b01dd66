"""The Clockwork paper's evaluation (OSDI '20, section 6) again: one script for each figure and table.

Each script simulates, or with ``--live`` serves through real sockets on emulated devices, and states what
the paper says beside what came out. ``python -m mainspring.experiments.figures``, which ``make experiments``
runs, does all of them one after the other.
"""
