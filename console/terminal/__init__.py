"""The console in a terminal: payloads of `console.payloads` drawn as lines of text, and keys.

* ``lines``      -- columns, bars and numbers that fit a width
* ``cluster``, ``memory``, ``schedule``, ``models`` -- a view each: payload and width in, lines out
* ``screen``     -- which view is shown and from where; what a key changes
* ``keyboard``   -- bytes of a terminal to names of keys
* ``source``     -- where the records come from: a controller, or a log
"""
