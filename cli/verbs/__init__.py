"""The verbs of the command line, one file each; `mainspring.cli.main.VERBS` lists them.

A file has the function of its verb or, for verbs of its own, their ``app``, and imports what is heavy inside
its functions.
"""
