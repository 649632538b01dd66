"""``mainspring store``: a store of compiled models, served to workers of other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.launcher.foreground import LogFormat, LogLevel, begin, ready
from mainspring.cli.options import DEFAULT_STORE, LISTEN, Insecure, ModelStore, tls_option, token_file_option

app = typer.Typer(help="Serve compiled models to workers of other hosts.", no_args_is_help=True)
# Without a callback, typer would take the only verb for the whole application.
app.callback()(lambda: None)


@app.command("serve")
def serve(
    store: ModelStore = DEFAULT_STORE,
    address: Annotated[str, LISTEN] = "http://127.0.0.1:7600",
    token_file: Annotated[
        Path | None,
        token_file_option("one of which workers need ([worker] store_token_file). Without it: none."),
    ] = None,
    tls: Annotated[Path | None, tls_option("workers", "an https:// address")] = None,
    client_certificates: Annotated[
        bool, typer.Option(help="Answer those alone that show a certificate of the authority in --tls.")
    ] = False,
    insecure: Insecure = False,
    log_level: LogLevel = "WARNING",
    log_format: LogFormat = "text",
) -> None:
    """Serve a store's files until Ctrl-C or SIGTERM, for workers whose store_from names this address."""
    from mainspring.cli.exposure import check_exposed, of_store
    from mainspring.repository.serving import ServingConfig, run

    try:
        config = ServingConfig(
            store=str(store),
            address=address,
            token_file="" if token_file is None else str(token_file),
            tls="" if tls is None else str(tls),
            client_certificates=client_certificates,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--address") from None
    check_exposed([of_store(config)], insecure)
    run(config, begin("store", log_level, log_format), ready)
