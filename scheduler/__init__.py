"""The pure scheduler: events in, commands out, a policy between.

Nothing here reads a clock, opens a socket or a file, starts a thread or draws a random number.
"""
