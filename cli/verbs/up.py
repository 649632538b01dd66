"""``mainspring up``: a whole local cluster in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.launcher.foreground import PolicyName, PolicyOptions
from mainspring.cli.options import Insecure, duration_ns

DrainTimeout = Annotated[
    str | None,
    typer.Option(
        help="After Ctrl-C or SIGTERM, how long the whole cluster may take to finish what it accepted; "
        "then it is killed. 10s by default. A second signal ends it at once."
    ),
]
StoreFolder = Annotated[
    Path | None, typer.Option(readable=False, help="Folder of the model store; all of it is served.")
]
RepositoryFolder = Annotated[
    Path | None,
    typer.Option(
        readable=False,
        help="Folder in Triton's layout, MODEL/VERSION/model.onnx: compiled, served, and looked at again for "
        "changes.",
    ),
]
ControlMode = Annotated[
    str | None,
    typer.Option(
        help="When models of the repository are loaded: poll (whenever they change), none (at the start) or "
        "explicit (when clients ask for it)."
    ),
]
LoadModels = Annotated[
    list[str] | None,
    typer.Option(help="In mode explicit: a model to load at the start, again for more; * for all."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        help="A mainspring.toml. Flags override it. Without one: ./mainspring.toml if it is there."
    ),
]
ProfilesFile = Annotated[
    Path | None, typer.Option(help="For the emulated engine: models from a CSV of profiles.")
]
GatewayPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65533,
        help="The gateway's port. 0: any.",
    ),
]
HttpPort = Annotated[
    str | None,
    typer.Option(metavar="PORT|off", help="8000 by default, like the next three: any free with --port 0."),
]
GrpcPort = Annotated[str | None, typer.Option(metavar="PORT|off", help="8001 by default.")]
MetricsPort = Annotated[str | None, typer.Option(metavar="PORT|off", help="8002 by default.")]
ConsolePort = Annotated[str | None, typer.Option(metavar="PORT|off", help="8003 by default.")]
DeviceName = Annotated[
    str | None, typer.Option(help="cpu, or cuda for a worker on each of this machine's GPUs.")
]
PlannedDevices = Annotated[
    Path | None,
    typer.Option(
        metavar="PLAN",
        help="Unlike emulated devices, as many of each kind as a plan has (`mainspring plan`), or any spec "
        "of a simulation; its models, too, if they come from one table of profiles and no others are named.",
    ),
]
KeysOfAll = Annotated[
    Path | None,
    typer.Option(
        readable=False,
        help="Folder of `mainspring keys`, with one for each process: TLS between them over TCP.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|local",
        help="Run each process as an actor of this Ray cluster (HOST:PORT, or auto), of which this machine "
        "is a node, or of a Ray that is started here.",
    ),
]
RunFolder = Annotated[Path | None, typer.Option(readable=False, help="Folder for logs and the event log.")]


def up(
    config: ConfigFile = None,
    store: StoreFolder = None,
    model_repository: RepositoryFolder = None,
    model_control_mode: ControlMode = None,
    load_model: LoadModels = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes, each one device.")] = None,
    device: DeviceName = None,
    devices: PlannedDevices = None,
    engine: Annotated[str | None, typer.Option(help="onnxruntime, tvm, auto or emulated.")] = None,
    pages: Annotated[int | None, typer.Option(min=1, help="Pages of 16 MiB in each worker's cache.")] = None,
    policy: PolicyName = None,
    policy_option: PolicyOptions = None,
    port: GatewayPort = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
    console_port: ConsolePort = None,
    profiles: ProfilesFile = None,
    copies: Annotated[int | None, typer.Option(min=1, help="Instances of each row of --profiles.")] = None,
    run_dir: RunFolder = None,
    keys: KeysOfAll = None,
    ray: RayAddress = None,
    insecure: Insecure = False,
    drain_timeout: DrainTimeout = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text, or json: one object on each line.")] = None,
) -> None:
    """Run controller, gateway and workers on this machine until Ctrl-C or SIGTERM, which drain."""
    from mainspring.cli.configuration.policies import parse_options
    from mainspring.cli.launcher.up import Ports, run_up

    values: dict[str, dict[str, Any]] = {
        "cluster": {
            **_texts(store=store, profiles=profiles, run_dir=run_dir, keys=keys),
            **_texts(device=device, engine=engine),
            "insecure": insecure or None,
            "workers": workers,
            "copies": copies,
            "log_level": log_level,
            "log_format": log_format,
            "stop_timeout_s": drain_timeout and duration_ns(drain_timeout, "--drain-timeout") / 1e9,
        },
        "repository": {**_texts(path=model_repository, mode=model_control_mode), "load_models": load_model},
        "worker": {"pages": pages},
        "scheduler": {"policy": policy, "policy_options": parse_options(policy_option or []) or None},
    }
    ports = Ports(port, http_port, grpc_port, metrics_port, console_port)
    run_up(config, _given(values), ports, ray, devices)


def _texts(**values: object) -> dict[str, str | None]:
    """Return the values as texts, None for what is not said."""
    return {name: None if value is None else str(value) for name, value in values.items()}


def _given(values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what the command line says, without what it does not."""
    return {
        table: {key: value for key, value in keys.items() if value is not None}
        for table, keys in values.items()
    }
