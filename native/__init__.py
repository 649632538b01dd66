"""The pure cores, compiled ahead of time from their unchanged Python source.

`units` says what is compiled and under which key, `finder` serves it to ``import``, `builder` makes it
(``python -m mainspring.native``). What is compiled is found by a hash of its source: source that was edited
since runs as Python, and gives the same decisions more slowly.
"""
