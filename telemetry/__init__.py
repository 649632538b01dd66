"""The record of a run: the event log, and what is made of it.

* ``log``                       -- the segmented event log: its format, writer and reader
* ``summary``, ``samples``      -- what a log says about a run
* ``report``                    -- the report of a run as clients saw it, with what the log adds
* ``plots``, ``style``           -- its picture, and ``summary.json``
* ``actions``, ``bounded``, ``histograms`` -- counts of actions, for metrics
* ``percentiles``               -- percentiles of durations in bounded memory

The controller writes; telemetry, console and replay read. There is no second bookkeeping.
"""
