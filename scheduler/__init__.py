"""The pure scheduler: events in, commands out, a policy between (design, sections 3 and 5).

Nothing here reads a clock, opens a socket or a file, starts a thread or draws a random number.
"""
