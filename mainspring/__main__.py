"""``mainspring`` and ``python -m mainspring``: the command line, where its packages are installed.

The base installation is the client, which has no command line: then this says how to get one.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        from mainspring.cli import main as command_line
    except ModuleNotFoundError as error:
        sys.exit(_without_command_line(error))
    command_line.main()


def _without_command_line(error: ModuleNotFoundError) -> str | None:
    """Return what to say, None after what can be done without; raise what is not a missing package."""
    from mainspring import __version__, extras

    if not extras.missing(error):
        raise error
    if sys.argv[1:] == ["--version"]:
        print(f"mainspring {__version__}")
        return None
    return (
        "mainspring: only the client for Python is installed here (from mainspring import Client). "
        f"The command line to a cluster that runs elsewhere: {extras.command('cli')}. "
        f"To serve models as well: {extras.command('serve')}"
    )


if __name__ == "__main__":
    main()
