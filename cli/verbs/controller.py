"""``mainspring controller``: one controller in the foreground."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.configuration.single import (
    ConfigFile,
    Shard,
    address_of,
    configured,
    keys_of,
    log_of,
    replaced,
    with_shards,
    with_typed,
)
from mainspring.cli.launcher.foreground import (
    COPIES,
    DEFAULT_DRAIN,
    PROFILES,
    DrainTimeout,
    LogFormat,
    LogLevel,
    PolicyName,
    PolicyOptions,
    begin,
    ready,
)
from mainspring.cli.options import EVENT_LOG, GRAPHS, STORE, KeysFolder, duration_ns

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from mainspring.cli.configuration.config import Config
    from mainspring.cli.launcher.models import ModelSource
    from mainspring.controller.config import ControllerConfig
    from mainspring.messages.graphs import GraphSpec
    from mainspring.scheduler.config import SchedulerConfig

StateFile = Annotated[
    Path | None,
    typer.Option(
        help="File that keeps what clients and operators change, for the next start; without one a restart "
        "forgets it."
    ),
]
Lease = Annotated[
    str | None,
    typer.Option(
        help="Lease that several controllers share, of whom one leads: file:PATH on one machine, "
        "etcd://HOST:PORT, or kubernetes:NAME. Workers and "
        "gateways are given the addresses of all, with commas between them."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Where workers and gateways connect: unix:///PATH, or tcp://HOST:PORT with --keys; "
        "port * takes any. Default: a socket of this user's own.",
        show_default=False,
    ),
]


def controller(
    context: typer.Context,
    config: ConfigFile = None,
    shard: Shard = None,
    address: Address = None,
    keys: KeysFolder = None,
    store: Annotated[Path | None, STORE] = None,
    profiles: Annotated[Path | None, PROFILES] = None,
    copies: Annotated[int, COPIES] = 1,
    graphs: Annotated[Path | None, GRAPHS] = None,
    policy: PolicyName = None,
    policy_option: PolicyOptions = None,
    event_log: Annotated[Path | None, EVENT_LOG] = None,
    state_file: StateFile = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Put a damaged --state-file aside and begin anew.")
    ] = False,
    lease: Lease = None,
    drain_timeout: DrainTimeout = DEFAULT_DRAIN,
    log_level: LogLevel = "WARNING",
    log_format: LogFormat = "text",
) -> None:
    """Run a controller until Ctrl-C or SIGTERM, which drain within --drain-timeout."""
    from mainspring.cli.configuration.graphs import read_folder
    from mainspring.cli.launcher.run_dir import claimed
    from mainspring.cli.places import check_guarded, personal_address

    whole = configured(config)
    source = _source(whole, store, profiles, copies)
    scheduler = _scheduler(context, whole, policy, policy_option)
    where = address or address_of(whole, shard) or personal_address()
    folder = keys_of(whole, keys, f"controller-{shard}" if shard else "controller")
    check_guarded(where, _text(folder) or "", "--address")
    drain = ("drain_timeout_ms", duration_ns(drain_timeout, "--drain-timeout") / 1e6)
    own = replaced(
        with_typed(context, whole.controller, {"drain_timeout": drain}),
        address=where,
        keys=_text(folder) or "",
        event_log_dir=_text(event_log),
        state_file=_text(state_file),
        forget=forget,
        lease=lease or whole.controller.lease,
        **with_shards(whole, shard),
    )
    with contextlib.ExitStack() as stack:
        if event_log is not None:
            claim = claimed(event_log, "another controller", "choose another folder with --event-log")
            stack.enter_context(claim)
        stop = begin("controller", *log_of(context, whole, log_level, log_format), whole.transport)
        _serve(own, scheduler, source, read_folder(_text(graphs) or whole.cluster.graphs), stop)


def _scheduler(
    context: typer.Context, whole: Config, policy: str | None, options: list[str] | None
) -> SchedulerConfig:
    """Return the scheduler's configuration with the policy that was typed; raise ConfigError."""
    from mainspring.cli.configuration.policies import check_policy, parse_options

    given = ("policy_options", parse_options(options or []))
    scheduler = with_typed(context, whole.scheduler, {"policy": ("policy", policy), "policy_option": given})
    check_policy(scheduler.policy, scheduler.policy_options)
    return scheduler


def _source(whole: Config, store: Path | None, profiles: Path | None, copies: int) -> ModelSource:
    """Return where models come from, by flags or else by the configuration; raise BadParameter."""
    from mainspring.cli.launcher.models import ModelSource

    if store is not None and profiles is not None:
        raise typer.BadParameter("models come from --store or from --profiles, not from both")
    if store is None and profiles is None:
        return ModelSource(
            whole.cluster.store,
            whole.cluster.profiles,
            whole.cluster.copies,
            whole.cluster.devices,
        )
    return ModelSource(_text(store), _text(profiles), copies)


def _serve(
    config: ControllerConfig,
    scheduler: SchedulerConfig,
    source: ModelSource,
    graphs: Sequence[GraphSpec],
    stop: threading.Event,
) -> None:
    """Run a controller for the models of a source, and for graphs of them."""
    from mainspring.cli.launcher.models import read
    from mainspring.controller.running import run

    _say_if_slow()
    models, awaited = read(source, stop, adopt=False)
    run(config, scheduler, models, stop, ready, awaited=awaited, graphs=graphs)


def _say_if_slow() -> None:
    """Note in the log that the scheduler is not compiled, unless that is wanted."""
    import logging

    from mainspring.native import CORE, Use, how_to_compile

    state = CORE.state()
    if state.use not in (Use.COMPILED, Use.OFF):
        note = "%s run as Python and take %s (%s): %s"
        remedy = how_to_compile(state)
        logging.getLogger(__name__).warning(note, CORE.purpose, CORE.cost, state.detail, remedy)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
