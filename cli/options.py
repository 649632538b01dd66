"""Options that several verbs of the command line have, and how their values are read and printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.client.deadlines import BadDuration, format_duration, parse_duration_ns


def tls_option(whom: str, where: str) -> Any:
    """Return the option ``--tls`` of a process that shows ``whom`` a certificate at ``where``."""
    shown = f"Folder of the certificate that {whom} are shown at {where}."
    return typer.Option("--tls", readable=False, help=shown)


def token_file_option(use: str) -> Any:
    """Return the option ``--token-file`` of a process that checks tokens; ``use`` says what they are for."""
    return typer.Option(
        "--token-file", readable=False, help=f"Tokens, as `mainspring token` writes them, {use}"
    )


DEFAULT_GATEWAY = "tcp://127.0.0.1:7400"
"""Address at which the gateway listens by default."""


def _given_or_known(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Return the gateway's address: the one given, or else the one that the working folder names."""
    source = context.get_parameter_source(str(parameter.name))
    if source is not None and source.name == "DEFAULT":
        from mainspring.cli.places import gateway

        return gateway()
    return value


GatewayAddress = Annotated[
    str,
    typer.Option(
        help="The cluster: its gateway's address, or those of several with commas, of which one that answers "
        "is asked. By default that of ./mainspring.toml, if there is one.",
        envvar="MAINSPRING_ADDRESS",
        show_envvar=True,
        callback=_given_or_known,
    ),
]
Controller = Annotated[
    str | None,
    typer.Option(
        help="The controller's address, or a cluster's run folder. Default: the cluster of mainspring.toml "
        "or out/run here, else a controller that you started by itself.",
        envvar="MAINSPRING_CONTROLLER",
        show_default=False,
    ),
]
KeysFolder = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        readable=False,
        help="Folder of this process's certificate, as `mainspring keys issue` makes it: TLS over TCP.",
        envvar="MAINSPRING_KEYS",
        show_default=False,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Serve clients beyond this host even where what is said there is not encrypted."
    ),
]
DEFAULT_STORE = Path("store")
LibraryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--op-library",
        help="A library with operators that ONNX Runtime lacks and the model has: a package, such as "
        "onnxruntime-extensions, a .so file, or a folder of files that config.pbtxt may name. It is code "
        "that is run.",
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads that compute one batch.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Such as workload.rate=500; repeatable."),
]
"""Settings that replace those of a simulation's spec."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ReportFolder = Annotated[Path, typer.Option(readable=False, help="Folder for what is reported, as files.")]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        help="A trace of Azure Functions (2019 or 2021), or a CSV file of arrivals; may be gzipped."
    ),
]
SendFor = Annotated[str, typer.Option(help="How long to send.")]
Rows = Annotated[int, typer.Option(min=1, help="Rows of each request.")]
SloOrNone = Annotated[str, typer.Option(help="Time to each request's deadline, like 50ms, or none.")]
Interval = Annotated[str, typer.Option(help="Time between two updates; rates are averages over it.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")]
Realtime = Annotated[
    bool, typer.Option(help="Pin the thread, take real-time priority and lock memory, where permitted.")
]
STORE = typer.Option(readable=False, help="Folder of the model store.")
GRAPHS = typer.Option(readable=False, help="Folder of graphs of models and applications, NAME.toml each.")
APPLICATIONS = typer.Option(readable=False, help="The same folder by another name.")
BATCH_SIZES = typer.Option(
    "--batch-sizes",
    help="Batch sizes, separated by commas. Default: all of a compiled model; to compile, those of "
    "1,2,4,8,16 whose activations take no more than 2 GiB.",
)
LOOK = typer.Option(help="Of a live cluster: how long to watch; Ctrl-C ends it earlier.")
DEVICES = typer.Option(help="cpu, or cuda for this machine's GPUs.")
WORKERS = typer.Option(min=1, help="Worker processes, each one device.")
SEED = typer.Option(min=0, help="Seed of the random numbers: the same seed gives the same run.")
EVENT_LOG = typer.Option(readable=False, help="Folder of the controller's event log.")
LISTEN = typer.Option(help="Where it listens; port 0, over ZeroMQ *, takes any.")
HOSTS = typer.Option("--host", help="A name or address by which it is reached; repeatable.")
MODELS = typer.Option("--models", help="Models, by name or by a pattern such as 'resnet*'.")
RAY = typer.Option(
    metavar="ADDRESS|local",
    help="Run on this Ray cluster (HOST:PORT, or auto), or on one that is started here.",
)
WAIT = typer.Option(metavar="DURATION", help="How long to wait for it, such as 30s or 5m.")
DEVICE = typer.Option(help="cpu, or cuda:0 for the first GPU.")
DEVICE_KIND = typer.Option(help="Name under which profiles are stored. Default: the device's own.")
ENGINE = typer.Option(help="onnxruntime, tvm, auto or emulated.")
PAGES = typer.Option(min=1, help="Pages of a worker's weights memory, 16 MiB each.")
"""Options whose types and defaults differ between verbs."""
Seed = Annotated[int, SEED]
ModelStore = Annotated[Path, STORE]
Token = Annotated[
    str | None,
    typer.Option(
        help="The token that the gateway needs, if it does; better given in the environment, which other "
        "users don't see.",
        envvar="MAINSPRING_TOKEN",
        show_envvar=True,
    ),
]


def typed(context: typer.Context, name: str) -> bool:
    """Return whether a parameter was given on the command line, not by default or in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_with_log(context: typer.Context, *names: str) -> None:
    """Raise BadParameter if an option about a live cluster was typed beside ``--log``."""
    for name in names:
        if typed(context, name):
            raise typer.BadParameter(f"--{name} is about a live cluster; leave it out, or leave --log out")


def print_json(found: object) -> None:
    """Print what a struct holds as indented JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


def duration_ns(text: str, option: str, *, least_ns: int = 1, unit: str = "") -> int:
    """Return what ``text`` means; raise BadParameter if it is not a duration, or below ``least_ns``.

    ``unit`` is that of a number alone; without, a number needs one.
    """
    nanoseconds = _parse(text, option, unit)
    if nanoseconds is None or nanoseconds < least_ns:
        least = format_duration(least_ns) if least_ns else "0"
        above = "above 0" if least_ns == 1 else f"from {least} up"
        raise typer.BadParameter(
            f"{text} is not a time {above}; write it like 5s or 500ms", param_hint=option
        )
    return nanoseconds


def duration_or_none_ns(text: str, option: str) -> int | None:
    """Return what ``text`` means, None for ``none``; raise BadParameter if it is neither or not above 0."""
    nanoseconds = _parse(text, option)
    if nanoseconds is not None and nanoseconds <= 0:
        raise typer.BadParameter(
            f"{text} is not a time above 0; write it like 100ms, or none", param_hint=option
        )
    return nanoseconds


def seconds(text: str, option: str, *, least_s: float = 0.0) -> float:
    """Return what ``text``, a duration or a number of seconds, means in seconds; raise BadParameter as
    `duration_ns` does."""
    return duration_ns(text, option, least_ns=round(least_s * 1e9), unit="s") / 1e9


def _parse(text: str, option: str, unit: str = "") -> int | None:
    try:
        return parse_duration_ns(text, unit)
    except BadDuration as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
