"""The gateway's configuration: one flat struct, every field with its unit and what its limit means.

Beside it `Restrictions`, which groups of calls need a header, as Triton's ``--http-restricted-api`` has it. A
rule such as ``model-repository,logging:admin-key=secret`` says that calls of these groups are answered if
they bring the header ``admin-key`` with the value ``secret``. That is a lock, not a way to tell clients
apart: tokens are that, and where both are asked for a call needs both.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from mainspring.messages.choices import did_you_mean, one_of
from mainspring.messages.ids import MAX_SHARDS

GRPC_PREFIX = "triton-grpc-protocol-"
"""Over gRPC the metadata's name is this and the key."""
_RULE = re.compile(r"([a-z,\- ]+):([A-Za-z0-9!#$%&'*+.^_`|~-]+)=([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")


class Group(StrEnum):
    """Triton's groups of calls."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


class Restrictions:
    """The groups of calls that need a header over one protocol."""

    def __init__(self, key: str, rules: Iterable[str], prefix: str = "") -> None:
        """``key`` is the configuration's; ``prefix`` comes before each header's name. Raises ValueError."""
        self.needed: dict[str, tuple[str, str]] = {}
        for rule in rules:
            found = _RULE.fullmatch(rule)
            if found is None:
                raise ValueError(
                    f"the gateway's {key} has {_public(rule)!r}; a rule is GROUPS:HEADER=VALUE, such as "
                    "'model-repository,logging:admin-key=secret'"
                )
            for group in map(str.strip, found[1].split(",")):
                self._add(key, group, prefix + found[2].lower(), found[3])

    def _add(self, key: str, group: str, name: str, value: str) -> None:
        if group not in list(Group):
            raise ValueError(f"the gateway's {key} has the group {group!r}; groups are {', '.join(Group)}")
        if group in self.needed:
            raise ValueError(f"the gateway's {key} has the group {group!r} twice; one header opens it")
        self.needed[group] = name, value

    def missing(self, group: str, said: Callable[[str], str | None]) -> str | None:
        """Return the header that a call of a group lacks, None if it lacks none.

        ``said`` returns what a header of a call, named in lower case, says.
        """
        if group not in self.needed:
            return None
        name, value = self.needed[group]
        given = (said(name) or "").encode(errors="replace")
        return None if hmac.compare_digest(given, value.encode()) else name


def _public(rule: str) -> str:
    """Return what may be shown of a rule: its value is a secret."""
    return rule.partition("=")[0][:100]


PROTOCOLS = ("http", "grpc")
"""Protocols of clients beside ZeroMQ; each has its ``NAME_address`` and its ``NAME_max_connections``."""
ANY = "*"
"""Stands for pages of any origin."""
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d{1,5})?")


_STORE = re.compile(r"(memory|sqlite:.+|rediss?://.+)?")


def check_store(where: str) -> None:
    """Raise ValueError for what names no store; it may hold a password, and is not shown whole."""
    if not _STORE.fullmatch(where):
        raise ValueError(
            f"the gateway's application_store begins with {where.partition(':')[0]!r}; it must be memory, "
            "sqlite:FILE or redis://:PASSWORD@HOST:PORT/DB"
        )


def check_origins(origins: Iterable[str]) -> None:
    """Raise ValueError for what is not an origin."""
    for each in origins:
        if each != ANY and not _ORIGIN.fullmatch(each.lower()):
            raise ValueError(
                f"the gateway's http_cors_origins has {each!r}; an origin is SCHEME://HOST or "
                "SCHEME://HOST:PORT, such as https://app.example.com, without a path, or * for any"
            )


def installed_version() -> str:
    """Return the installed release, or ``unknown`` if the source runs without having been installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mainspring")
    except PackageNotFoundError:
        return "unknown"


STRICT = "strict"
AGES = (0.9, 1.1)
"""Between which parts of ``max_connection_age_ms`` a connection's is drawn, as gRPC's server does: those that
came together are not told to go together."""
MAY_BE_ZERO = (
    *("slab_bytes", "client_memory_bytes", "best_effort_timeout_ms"),
    *("max_connection_age_ms", "lame_duck_ms"),
)
READY_WHEN = (STRICT, "serving")
"""When a gateway is ready (`core.readiness`)."""
TRITON = "triton"
"""The name of Triton's servers, and of compatibility with them."""


ENCRYPTED = ("https://", "grpcs://")
"""How addresses begin that are served over TLS."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may set of a gateway. Raises ValueError on a value that can't work."""

    name: str = ""
    """What the gateway calls itself, alone in the cluster: a newer process takes the name of an older one.
    Empty for the name in its certificate, or one of host and process."""
    address: str = "tcp://127.0.0.1:7400"
    """Address that ZeroMQ's clients connect to, with keys (``curve_key``); port ``*`` takes any free one.
    Without keys it serves programs of the gateway's user on its host alone: Mainspring's clients find it by
    themselves, others at ``ipc:///tmp/mainspring-UID/HOST:PORT``."""
    keyless_loopback: bool = False
    """Whether ZeroMQ's clients without keys are served at an ``address`` of the loopback. The cost: ZeroMQ
    takes in messages of any number of frames before the gateway sees them, so every program of this host that
    gets a session, of whatever user, can have the gateway hold memory without bound."""
    local_clients: bool = True
    """Whether Mainspring's own clients of the gateway's user on its host connect by name, past ZeroMQ and
    TCP. They do so by themselves; what they may do is the same."""
    http_address: str = ""
    """Where HTTP clients connect, such as ``http://127.0.0.1:8000``; port 0 takes any free one. Empty: not
    served. `mainspring up` serves port 8000 of this machine unless it is told another."""
    grpc_address: str = ""
    """Where gRPC clients connect, such as ``grpc://127.0.0.1:8001``; otherwise as ``http_address``."""
    curve_key: str = ""
    """File with a secret key of CURVE, as `mainspring keys curve` writes it: ZeroMQ's clients have to
    encrypt, each with a key that ``FILE.clients`` lists. Empty: none over ZeroMQ from other hosts."""
    tls: str = ""
    """Folder with the certificate and key that clients are shown at addresses of ``https://`` and, for gRPC,
    ``grpcs://``; of `mainspring keys` or any other authority. Read again when it changes."""
    client_certificates: bool = False
    """Whether clients there must show a certificate of the authority in that folder, ``ca.pem``."""
    compatibility: str = ""
    """``triton``: over HTTP and gRPC the server calls itself ``triton``, and texts of errors begin with what
    Triton says, for programs that look for it. Empty: its own words."""
    server_name: str = ""
    """What the metadata call it. Empty: ``mainspring``, or ``triton`` with that ``compatibility``."""
    http_restricted_api: tuple[str, ...] = ()
    """Groups of calls over HTTP that need a header, as Triton's option of the same name has it, such as
    ``model-repository,logging:admin-key=secret``; docs/triton.md has the groups."""
    grpc_restricted_protocol: tuple[str, ...] = ()
    """The same over gRPC, where the metadata's name is ``triton-grpc-protocol-`` and the key."""
    metrics_address: str = ""
    """Where Prometheus scrapes, such as ``http://127.0.0.1:8002``; otherwise as ``http_address``."""
    metrics_models: int = 50
    """Models with a label of their own in the metrics: the busiest; the others share the label ``other``."""
    metrics_timeout_ms: float = 1_000.0
    """How long a scrape waits for the controller, whose metrics it leaves out if there is no answer."""
    trace_address: str = ""
    """OpenTelemetry collector that traces are sent to, such as ``http://127.0.0.1:4318``; empty: none are."""
    trace_sample_ratio: float = 0.01
    """Share of the requests that are traced, of those whose client does not say by ``traceparent``."""
    trace_max_per_s: int = 100
    """Requests traced in one second; more are left out, whatever their clients ask for."""
    access_log: str = ""
    """File that gets a line of JSON for each inference request that has ended, with where its time went; of
    each gateway its own. Empty: none."""
    access_log_sample_ratio: float = 1.0
    """Share of the requests that have a line there."""
    access_log_max_bytes: int = 256 << 20
    """Size of that file; beyond it the file becomes ``FILE.1``, what that was ``FILE.2``, and so on."""
    access_log_older_files: int = 4
    """How many of these there are at most."""
    keys: str = ""
    """Folder with this process's certificate and key, by which it speaks TLS over TCP with the others; empty:
    what it says over TCP is not encrypted."""
    controller_address: str = "tcp://127.0.0.1:7401"
    """Address of the controller; of several, the first one's."""
    shards: tuple[str, ...] = ()
    """Addresses of the controllers of which each has a part of the models, by shard, where there are several.
    Empty: there is one."""
    console_address: str = ""
    """Address of the operator console, for clients that ask; empty if there is none."""
    repository_address: str = ""
    """Address of the model repository's process; empty if there is none."""
    repository_timeout_ms: float = 10_000.0
    """How long the model repository may take to answer; loading a model takes as long as it takes."""
    grace_ms: float = 100.0
    """After its deadline, how long a request waits before the gateway answers it with a time-out."""
    best_effort_timeout_ms: float = 0.0
    """How long a request without a deadline waits before the gateway answers it with a time-out; 0: for as
    long as it takes. What would wait too long is refused as it comes (best_effort_horizon_ms)."""
    max_slo_ms: float = 3_600_000.0
    """The longest SLO that is taken for meant; a longer one is refused."""
    default_slo_ms: float | None = None
    """SLO of requests over HTTP and gRPC that bring none; without it they are best effort."""
    model_slo_ms: dict[str, float] = {}
    """The same for single models, by name; a model repository may say it for its own."""
    max_rows_per_request: int = 4_096
    """Rows of one request. One with more than its model's largest batch runs as several batches, on all
    workers that hold the model, and is answered as one; rows that depend on one another are never split."""
    model_max_rows: dict[str, int] = {}
    """The same of single models and graphs, by what clients call them; said as ``max_rows_per_request`` in a
    table ``[models.NAME]`` of its own."""
    max_in_flight: int = 50_000
    """Requests without an answer in all; one more is refused as overloaded."""
    max_in_flight_per_connection: int = 8_192
    """Requests without an answer on one connection; one more is refused as overloaded."""
    max_in_flight_bytes: int = 2 << 30
    """Bytes of the inputs of all requests without an answer; beyond it requests are refused as overloaded."""
    max_answer_bytes: int = 2 << 30
    """Bytes of answers over HTTP and gRPC that are asked for, in the making or not yet read by their clients;
    a request whose answer would go beyond it is refused as overloaded."""
    max_answer_bytes_per_connection: int = 256 << 20
    """The same of one connection. Over HTTP its further requests wait meanwhile, over gRPC they are refused;
    one answer alone may have more."""
    slab_bytes: int = 256 << 20
    """Memory in which large inputs are received and that workers of this host read them from, uncopied; it is
    taken as it is first needed, and stays. Inputs beyond it go to workers as frames. 0: all do."""
    client_memory_bytes: int = 16 << 30
    """Memory that Mainspring's own clients of this host offer, of all of them together, to have their inputs
    read there, uncopied; it is theirs. A client that finds no more room sends its inputs. 0: all do."""
    max_message_bytes: int = 256 << 20
    """Size of one incoming message over ZeroMQ, all its frames; a larger one is refused, a larger frame ends
    the connection."""
    max_connections: int = 20_000
    """Clients that the gateway remembers; one more makes it forget one that has nothing in flight, which
    has to say hello again."""
    zeromq_handshake_timeout_ms: float = 10_000.0
    """How long a new ZeroMQ connection may take until its socket has said what it is."""
    zeromq_write_timeout_ms: float = 30_000.0
    """How long a ZeroMQ client may read nothing of its replies before its connection is closed."""
    http_hosts: tuple[str, ...] = ()
    """Names beside localhost and addresses by which browsers may call HTTP's routes that change something;
    programs may by any."""
    http_cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call over HTTP what changes nothing, such as ``https://app.example.com``, or
    ``*`` for any. Empty: no page of another site may."""
    http_docs: bool = True
    """Whether there is a page to try models in a browser, at ``/docs`` of ``http_address``."""
    http_max_connections: int = 20_000
    """HTTP clients at one time; one more closes a connection that has long been idle, or is refused."""
    http_max_header_bytes: int = 32 << 10
    """Size of a request's line and headers."""
    http_max_body_bytes: int = 64 << 20
    """Size of a request's body, as it comes and inflated."""
    http_max_json_bytes: int = 4 << 20
    """Size of the JSON in it, enough for one image of 224 x 224. While JSON is read, nobody else is served:
    larger tensors are to come as binary data."""
    http_max_pipelined: int = 64
    """Requests that one connection may send ahead of their replies; more are not read before some are out."""
    http_shed_wait_ms: float = 10.0
    """While more inference requests come than can be worked off, one that has waited for longer is refused as
    overloaded, unread, so that the others are answered in time."""
    http_header_timeout_ms: float = 10_000.0
    """How long a request's line and headers may take to come."""
    http_body_idle_ms: float = 10_000.0
    """How long nothing may come of a request's body."""
    http_body_timeout_ms: float = 120_000.0
    """How long a request's body may take to come."""
    http_idle_timeout_ms: float = 75_000.0
    """How long a connection without requests stays open."""
    http_write_timeout_ms: float = 30_000.0
    """How long a client may read nothing of its replies before it is cut off."""
    grpc_max_connections: int = 20_000
    """gRPC clients at one time; one more is turned away."""
    grpc_max_message_bytes: int = 64 << 20
    """Size of a gRPC message, as it comes and inflated; a larger one is refused before it is read."""
    grpc_max_metadata_bytes: int = 32 << 10
    """Size of a call's metadata."""
    grpc_max_streams: int = 1_024
    """Calls that one gRPC connection may have in flight; more wait in the client. Each may hold a message of
    ``grpc_max_message_bytes`` that has not wholly come."""
    grpc_max_calls: int = 20_000
    """gRPC calls in flight in all; one more is refused as ``RESOURCE_EXHAUSTED``."""
    grpc_backlog_bytes: int = 64 << 20
    """Bytes of answers that one ModelStreamInfer may have in the making or wait for its reader; beyond it no
    more requests are read off that stream."""
    grpc_handshake_timeout_ms: float = 10_000.0
    """How long a new connection may take to say that it speaks HTTP/2."""
    grpc_keepalive_ms: float = 30_000.0
    """After this time without a byte from a gRPC client it is asked for a sign of life."""
    grpc_keepalive_timeout_ms: float = 10_000.0
    """How long that may take; then the connection is closed."""
    grpc_idle_timeout_ms: float = 1_800_000.0
    """How long a gRPC connection without calls stays open."""
    reply_backlog_messages: int = 16_384
    """Replies that may wait for one client to read them; a client that reads too slowly for it is cut off."""
    reply_backlog_bytes: int = 512 << 20
    """Bytes of replies that may wait for one client to read them; beyond it the client is cut off."""
    input_backlog_messages: int = 2_000
    """Inputs that may wait for one worker to take them; beyond it they are dropped and their action fails."""
    input_backlog_bytes: int = 512 << 20
    """Bytes of inputs that may wait for one worker to take them; beyond it they are dropped likewise."""
    controller_backlog_messages: int = 100_000
    """Messages that may wait for the controller; beyond it a request is sent again later, and refused as
    ``controller_unreachable`` once its deadline leaves no time for that."""
    hello_interval_ms: float = 200.0
    """Between two hellos to a controller that has not answered."""
    controller_timeout_ms: float = 1_000.0
    """A controller that was silent for this long is lost."""
    controller_wait_ms: float = 5_000.0
    """How long a request waits for a lost controller to come back, if its deadline is not nearer."""
    admin_timeout_ms: float = 10_000.0
    """How long the controller may take to answer a command to change or see the cluster."""
    max_admin_requests: int = 256
    """Such commands at one time; one more is refused as overloaded."""
    shared_memory: bool = True
    """Whether clients over the loopback may register shared memory of their own, as with Triton, and have
    tensors read from there and written there; other clients never may."""
    max_shared_regions: int = 256
    """Regions of shared memory that are registered, or in use by requests, at one time; each holds a file
    descriptor."""
    max_shared_bytes: int = 4 << 30
    """Bytes that all registered regions may have together."""
    cache_models: tuple[str, ...] = ()
    """Models whose outputs are kept for equal requests, by name or pattern such as ``resnet*``; a model
    repository turns the cache on for its own."""
    cache_bytes: int = 256 << 20
    """Bytes that the outputs which are kept for equal requests may take."""
    max_sequences: int = 10_000
    """Sequences that have a state here at one time, of all models; the start of one more is refused as
    overloaded."""
    max_sequence_bytes: int = 1 << 30
    """Bytes that the states of all sequences may take; a start that goes beyond it is refused likewise."""
    sequence_idle_ms: float = 60_000.0
    """How long a sequence may be without a request before its state is dropped, of models that do not say."""
    application_store: str = ""
    """Where what applications learn is kept: ``memory``; ``sqlite:FILE``, which gateways of one host may
    share; or ``redis://:PASSWORD@HOST:PORT/DB``, with ``rediss`` over TLS. Empty: ``applications.sqlite`` in
    ``run_dir``, and memory for a gateway that is started alone."""
    application_state_bytes: int = 64 << 20
    """Bytes of states of contexts that each application holds in memory."""
    token_file: str = ""
    """File of the tokens that clients need, as `mainspring token new` writes it; it is read again when it
    changes. Empty: clients need none."""
    token_reload_ms: float = 1_000.0
    """Between two looks at whether the file of tokens has changed."""
    launcher_token_sha256: str = ""
    """SHA-256 of a token that may do everything beside those of the file: the launcher's own."""
    max_connection_age_ms: float = 0.0
    """After which a client's connection is told to go, more or less by a tenth, so that clients spread over
    all gateways behind a balancer: ``Connection: close``, GOAWAY, and likewise Mainspring's own. 0: never."""
    max_connection_age_grace_ms: float = 60_000.0
    """How long calls under way may take then over gRPC, streams included, before they are ended."""
    lame_duck_ms: float = 0.0
    """On a stop, how long requests are still taken and answered while health checks say that the gateway
    leaves and connections are told to go: as long as a balancer needs to take it out."""
    readiness: str = STRICT
    """When the gateway is ready: "strict" once every model that is to be served can be, and while all that
    have been ready are; "serving" while at least one model is."""
    burst_messages: int = 16
    """Messages taken from one socket before the next socket is served."""
    drain_timeout_ms: float = 5_000.0
    """On a stop, how long requests in flight may take before they are answered as shutting down."""
    goodbye_linger_ms: float = 500.0
    """On a stop, how long the last replies may take to leave before the sockets are closed."""

    def __post_init__(self) -> None:
        """Check the values."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field in MAY_BE_ZERO:
                if value < 0:
                    raise ValueError(f"the gateway's {field} is {value}; it must be 0 or more")
            elif isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ValueError(f"the gateway's {field} is {value}; it must be greater than 0")
        if self.client_certificates and not self.tls:
            raise ValueError("the gateway's client_certificates is set without tls, the folder with ca.pem")
        for key in (*(f"{name}_address" for name in PROTOCOLS), "metrics_address"):
            if getattr(self, key).startswith(ENCRYPTED) and not self.tls:
                raise ValueError(
                    f"the gateway's {key} is {getattr(self, key)}, which needs tls: the folder of a "
                    "certificate, as `mainspring keys issue gateway NAME --host HOST` makes it"
                )
        twice = {address for address in self.shards if self.shards.count(address) > 1}
        if twice:
            raise ValueError(f"the gateway's shards have {min(twice)} twice; each is another controller")
        if len(self.shards) > MAX_SHARDS:
            raise ValueError(f"the gateway's shards are {len(self.shards)}; there may be {MAX_SHARDS}")
        for name, slo_ms in self.model_slo_ms.items():
            if not slo_ms > 0:
                raise ValueError(
                    f"the gateway's model_slo_ms is {slo_ms} for {name!r}; it must be greater than 0"
                )
        if self.compatibility not in ("", TRITON):
            raise ValueError(
                f"the gateway's compatibility is {self.compatibility!r}; it must be empty or {TRITON!r}"
                f"{did_you_mean(self.compatibility, (TRITON,))}"
            )
        check_store(self.application_store)
        if self.readiness not in READY_WHEN:
            raise ValueError(
                f"the gateway's readiness is {self.readiness!r}; it must be one of "
                f"{one_of(self.readiness, READY_WHEN)}"
            )
        for key in ("http_restricted_api", "grpc_restricted_protocol"):
            Restrictions(key, getattr(self, key))
        check_origins(self.http_cors_origins)
        for key in ("trace_sample_ratio", "access_log_sample_ratio"):
            if getattr(self, key) > 1:
                raise ValueError(f"the gateway's {key} is {getattr(self, key)}; it must be at most 1")
        if self.controller_timeout_ms < 2 * self.hello_interval_ms:
            raise ValueError(
                f"the gateway's controller_timeout_ms is {self.controller_timeout_ms}; it must be at least "
                f"twice hello_interval_ms, {2 * self.hello_interval_ms}"
            )

    @property
    def protocols(self) -> dict[str, str]:
        """Return the addresses of the protocols that are served beside ZeroMQ, by name."""
        addresses = {name: getattr(self, f"{name}_address") for name in PROTOCOLS}
        return {name: address for name, address in addresses.items() if address}


def milliseconds(value: float) -> int:
    """Return a duration given in milliseconds as nanoseconds."""
    return round(value * 1_000_000)
