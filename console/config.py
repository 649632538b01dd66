"""The console's configuration: one flat struct, every field with its unit and what its limit means."""

from __future__ import annotations

import msgspec


class ConsoleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a console that an operator may make. Raises ValueError on a value that can't work."""

    address: str = "http://127.0.0.1:8003"
    """Address that browsers connect to, such as ``https://0.0.0.0:8003`` for TLS; port 0 takes any free
    one."""
    tls: str = ""
    """Folder with the certificate and key that browsers are shown at an address of ``https://``; it is read
    again when it changes."""
    client_certificates: bool = False
    """True if browsers must show a certificate of the authority in that folder, ``ca.pem``."""
    keys: str = ""
    """Folder with this process's certificate and key, by which it speaks TLS over TCP with the others; empty:
    what it says over TCP is not encrypted."""
    controller_address: str = "tcp://127.0.0.1:7401"
    """Address of the controller that is watched."""
    shard: int = 0
    """Shard of the controller that is watched, if there are several controllers."""
    shards: tuple[str, ...] = ()
    """Addresses of the consoles of all controllers, by shard: pages link to them. Empty: there is one
    controller."""
    log_dir: str = ""
    """Folder of an event log that is shown instead of a controller; empty: a controller is watched."""
    hosts: tuple[str, ...] = ()
    """Names by which browsers may call the console, beside ``localhost`` and numeric addresses: those of this
    machine or of the proxy before it. Other names are refused, so that no foreign page can have its own name
    point here."""
    token_file: str = ""
    """File of tokens, as `mainspring token new` writes it, with which operators may change what is served;
    it is read again when it changes. Empty: the gateway's, beside `mainspring up`; else nothing can be
    changed from here. Relative to the folder that the console is started in."""
    token_reload_ms: float = 1_000.0
    """Time between two checks whether the file of tokens has changed."""
    reading_needs_token: bool = False
    """True if reading needs a token too, one for all models (``*``). Needs ``token_file``."""
    keep_s: float = 300.0
    """Length of the history that is kept and can be shown."""
    update_interval_ms: float = 100.0
    """Least time between two pictures that a page gets."""
    query_share: float = 0.25
    """Share of the console's time that making pictures may take, those of all pages together; beyond it they
    come more rarely."""
    slice_ms: float = 5.0
    """Longest time for which records are read, from the controller or a log, before the pages are served
    again."""
    max_pages: int = 64
    """Pages at one time; one more is refused."""
    max_connections: int = 192
    """Connections in all, those of pages included; one more is refused."""
    max_message_bytes: int = 16 << 10
    """Size of a message or request body that a browser sends."""
    max_header_bytes: int = 32 << 10
    """Size of a request's line and headers."""
    header_timeout_ms: float = 10_000.0
    """Time within which a new connection must send its request's headers, and a request its body."""
    ping_interval_ms: float = 20_000.0
    """Time between two pings to a page; a page that does not answer one before the next is disconnected."""
    operate_timeout_ms: float = 5_000.0
    """Time within which the controller must answer an operator's command."""
    max_operations: int = 16
    """Commands that wait at one time; one more is refused."""
    stop_timeout_ms: float = 2_000.0
    """Time that answers under way are given to end when the console stops."""

    def __post_init__(self) -> None:
        """Check the values."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if (
                field != "shard"
                and isinstance(value, int | float)
                and not isinstance(value, bool)
                and not value > 0
            ):
                raise ValueError(f"the console's {field} is {value}; it must be greater than 0")
        if self.query_share > 1:
            raise ValueError(f"the console's query_share is {self.query_share}; it must be at most 1")
        if self.max_connections < self.max_pages:
            raise ValueError(
                f"the console's max_connections is {self.max_connections}; it must be at least max_pages, "
                f"{self.max_pages}"
            )
        if self.reading_needs_token and not self.token_file:
            raise ValueError(
                "the console's reading_needs_token is set without a token_file: no page could be read"
            )
        parse_address(self.address)
        if self.encrypted and not self.tls:
            raise ValueError(
                f"the console's address is {self.address}, which needs tls: the folder of a certificate, as "
                "`mainspring keys issue operator NAME --host HOST` makes it"
            )
        if self.client_certificates and not self.encrypted:
            raise ValueError("the console's client_certificates needs an address of https:// and tls")

    @property
    def encrypted(self) -> bool:
        """Return whether browsers speak TLS."""
        return self.address.startswith("https://")

    @property
    def launcher_token_sha256(self) -> str:
        """None: the launcher asks nothing of a console."""
        return ""


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of an address such as ``http://127.0.0.1:8003``; raise ValueError."""
    host, _, port = address.removeprefix("http://").removeprefix("https://").rpartition(":")
    sound = address.startswith(("http://", "https://")) and host and not set(host) & set("/@? ")
    if not sound or not (port.isdecimal() and len(port) < 6 and int(port) < 1 << 16):
        raise ValueError(f"the console's address is {address!r}; write it like http://127.0.0.1:8003")
    return host.strip("[]"), int(port)
