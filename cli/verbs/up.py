"""``mainspring up``: a whole local cluster in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.launcher.foreground import (
    COPIES,
    DRAIN_TIMEOUT,
    LOG_FORMAT,
    LOG_LEVEL,
    PROFILES,
    PolicyName,
    PolicyOptions,
)
from mainspring.cli.options import (
    APPLICATIONS,
    DEVICES,
    ENGINE,
    GRAPHS,
    PAGES,
    RAY,
    STORE,
    WORKERS,
    Insecure,
    duration_ns,
)

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
    typer.Option(help="With mode explicit: a model to load at the start; repeatable; * for all."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        help="A mainspring.toml. Flags override it. Without one: ./mainspring.toml if it is there."
    ),
]
GatewayPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65533,
        help="The gateway's port. 0: any.",
    ),
]
Gateways = Annotated[
    int | None,
    typer.Option(
        min=1, help="Gateways, for clients that know several; ports are 10 higher from one to the next."
    ),
]
PORT = typer.Option(
    metavar="PORT|off",
    help="By default 8000 (HTTP), 8001 (gRPC), 8002 (metrics), 8003 (console); any with --port 0.",
)
PlannedDevices = Annotated[
    Path | None,
    typer.Option(
        metavar="PLAN",
        help="Emulated devices of several kinds, as many of each as a plan has (`mainspring plan`), or any "
        "spec of a simulation; its models, too, if they come from one table of profiles and none are named.",
    ),
]
Controllers = Annotated[
    int | None, typer.Option(help="Controllers: one leads, the others take over if it is gone.")
]
KeysOfAll = Annotated[
    Path | None,
    typer.Option(
        readable=False,
        help="Folder of `mainspring keys`, with one for each process: TLS between them over TCP.",
    ),
]
RunFolder = Annotated[Path | None, typer.Option(readable=False, help="Folder for logs and the event log.")]


def up(
    config: ConfigFile = None,
    store: Annotated[Path | None, STORE] = None,
    graphs: Annotated[Path | None, GRAPHS] = None,
    applications: Annotated[Path | None, APPLICATIONS] = None,
    model_repository: RepositoryFolder = None,
    model_control_mode: ControlMode = None,
    load_model: LoadModels = None,
    workers: Annotated[int | None, WORKERS] = None,
    gateways: Gateways = None,
    controllers: Controllers = None,
    device: Annotated[str | None, DEVICES] = None,
    devices: PlannedDevices = None,
    engine: Annotated[str | None, ENGINE] = None,
    pages: Annotated[int | None, PAGES] = None,
    policy: PolicyName = None,
    policy_option: PolicyOptions = None,
    port: GatewayPort = None,
    http_port: Annotated[str | None, PORT] = None,
    grpc_port: Annotated[str | None, PORT] = None,
    metrics_port: Annotated[str | None, PORT] = None,
    console_port: Annotated[str | None, PORT] = None,
    profiles: Annotated[Path | None, PROFILES] = None,
    copies: Annotated[int | None, COPIES] = None,
    run_dir: RunFolder = None,
    keys: KeysOfAll = None,
    ray: Annotated[str | None, RAY] = None,
    insecure: Insecure = False,
    drain_timeout: Annotated[str | None, DRAIN_TIMEOUT] = None,
    log_level: Annotated[str | None, LOG_LEVEL] = None,
    log_format: Annotated[str | None, LOG_FORMAT] = None,
) -> None:
    """Run controller, gateway and workers on this machine until Ctrl-C or SIGTERM, which drain."""
    from mainspring.cli.launcher.up import Ports, run_up

    values: dict[str, dict[str, Any]] = {
        "cluster": {
            **_texts(
                store=store, profiles=profiles, run_dir=run_dir, keys=keys, engine=engine, device=device
            ),
            **_texts(graphs=_folder(graphs, applications), log_level=log_level, log_format=log_format),
            "insecure": insecure or None,
            **{"workers": workers, "gateways": gateways, "controllers": controllers, "copies": copies},
            "stop_timeout_s": drain_timeout and duration_ns(drain_timeout, "--drain-timeout") / 1e9,
        },
        "repository": {**_texts(path=model_repository, mode=model_control_mode), "load_models": load_model},
        "worker": {"pages": pages},
        "scheduler": _scheduler(policy, policy_option),
    }
    run_up(config, _set(values), Ports(port, http_port, grpc_port, metrics_port, console_port), ray, devices)


def _scheduler(policy: str | None, options: list[str] | None) -> dict[str, Any]:
    from mainspring.cli.configuration.policies import parse_options

    return {"policy": policy, "policy_options": parse_options(options or []) or None}


def _folder(graphs: Path | None, applications: Path | None) -> Path | None:
    """Return the folder of both; raise `BadParameter` if there are two."""
    if graphs and applications:
        raise typer.BadParameter("--applications is --graphs: put the files of both into one folder")
    return graphs or applications


def _texts(**values: object) -> dict[str, str | None]:
    """Return the values as texts, None for what is not said."""
    return {name: None if value is None else str(value) for name, value in values.items()}


def _set(values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what the command line says, without what it does not."""
    return {
        table: {key: value for key, value in keys.items() if value is not None}
        for table, keys in values.items()
    }
