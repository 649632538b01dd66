"""The common part of the verbs of single processes: their logging, their readiness line, their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import threading

    from mainspring.transport.config import TransportConfig

LOG_LEVEL = typer.Option(help="DEBUG, INFO, WARNING or ERROR.")
LOG_FORMAT = typer.Option(help="text, or json: one object on each line.")
DRAIN_TIMEOUT = typer.Option(
    help="After Ctrl-C or SIGTERM, how long what was accepted may take to finish. A second signal ends it at "
    "once."
)
PROFILES = typer.Option(help="For emulated workers: models from a CSV of profiles.")
COPIES = typer.Option(min=1, help="Instances of each model, or of each row of --profiles.")
LogLevel = Annotated[str, LOG_LEVEL]
LogFormat = Annotated[str, LOG_FORMAT]
DrainTimeout = Annotated[str, DRAIN_TIMEOUT]
DEFAULT_DRAIN = "5s"
PolicyName = Annotated[
    str | None,
    typer.Option(help="Scheduling policy: a name of docs/policies.md, or package.module:Class."),
]
PolicyOptions = Annotated[
    list[str] | None, typer.Option(help="An option of the policy, as key=value; repeatable.")
]


def begin(
    process: str, log_level: str, log_format: str, transport: TransportConfig | None = None
) -> threading.Event:
    """Set logging, signals and what listeners allow up; return the event that the first SIGINT or SIGTERM
    sets.

    Raises BadParameter for a level or format that does not exist.
    """
    import signal
    import threading

    from mainspring.cli.launcher.signals import stop_on_signals
    from mainspring.cli.output import SERVING_PATIENCE_S, keep_saying, set_up_logging
    from mainspring.transport.handshake_rate import HandshakeRate

    keep_saying(patience_s=SERVING_PATIENCE_S)
    try:
        set_up_logging(process, log_level, log_format)
    except ValueError as error:
        raise typer.BadParameter(str(error).replace("log_", "--log-")) from None
    if transport is not None:
        HandshakeRate.limits = transport
    stop = threading.Event()
    stop_on_signals(stop, signal.SIGINT, signal.SIGTERM, second_exit_code=130)
    return stop


def ready(address: str) -> None:
    """Say on stdout that the process can be connected to, and where."""
    print(f"ready {address}", flush=True)
