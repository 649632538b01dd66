"""``mainspring`` and ``python -m mainspring``: the command line, where its packages are installed.

The base installation is the client, which has no command line: then this says how to get one.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C, as of shells."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    # First of all: most of the first half second is importing, and what Ctrl-C interrupts there is no news.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    try:
        from mainspring.cli import main as command_line
    except ModuleNotFoundError as error:
        sys.exit(_without_command_line(error))
    try:
        command_line.main()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            # Without the interpreter's own end, which would take what threads in C++ still use away.
            sys.stdout.flush()
            os._exit(INTERRUPTED)
        # All is done: Ctrl-C changes nothing any more.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
    except KeyboardInterrupt:
        end_at_once()


def end_at_once(*_signal: object) -> None:
    """End the process after Ctrl-C, in whatever state it is; also a handler of SIGINT."""
    os.write(2, b"mainspring: interrupted\n")
    os._exit(INTERRUPTED)


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
