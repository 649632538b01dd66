"""The console in a terminal: payloads of `console.payloads` drawn as lines of text, and keys.

`lines` fits columns, bars and numbers into a width, `cluster` draws the views, `screen` holds what is shown
and what a key changes, `running` reads records and keys.
"""
