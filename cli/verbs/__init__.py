"""The verbs of the command line, one file each; `mainspring.cli.main.VERBS` lists them.

A file offers ``register(app)`` and imports what is heavy inside its functions.
"""
