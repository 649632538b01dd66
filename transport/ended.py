"""How the end of a connection is told to its owner."""


class Ended(Exception):
    """The connection is over; the text says why."""
