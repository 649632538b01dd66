"""The verbs of the command line, one thin file each; `mainspring.cli.VERBS` lists them.

A file offers ``register(app)`` and imports what is heavy inside its functions.
"""
