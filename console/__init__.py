"""The operator console: what the controller knows and intends, shown live or from a recorded run.

A reader of the event stream (`telemetry.log`): it can't slow the controller down, and ending it changes
nothing.
"""
