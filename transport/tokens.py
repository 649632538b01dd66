"""Bearer tokens: which clients may use which models, how often, and which may administer the cluster.

A file of tokens holds only their SHA-256, so that a reader of the file can't use them::

    [[token]]
    name = "search"                # for messages and logs
    sha256 = "9f86d081884c7d65…"   # as `mainspring token new` prints it
    models = ["resnet*", "bert"]   # patterns of the models that it may use
    rate = 100.0                   # requests a second; without it, any number
    burst = 200                    # of them at once; without it, those of one second
    in_flight = 64                 # requests without an answer; without it, any number
    in_flight_bytes = 1000000      # bytes of inputs of these; without it, any number
    tenant = "search"              # whose share of the devices they use; without it, nobody's
    best_priority = 2              # the best priority that it gets; without it, any
    admin = false                  # whether it may add, load, unload and remove models

Digests have one length and are compared in constant time. Only digests with the same first bytes are
compared, which a client can't choose without knowing the token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import stat
import tomllib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import msgspec

from mainspring.messages.choices import did_you_mean
from mainspring.messages.codes import Reason

LONGEST_TENANT = 100
"""Characters of the longest name of a tenant."""
LONGEST_TOKEN = 512
"""Characters of the longest token; a longer text is not taken for a token."""
EVERYTHING = "*"
"""Entry of ``models`` that a token needs to see a console, or to change what concerns all models."""
WAIT_NS = 100_000_000
"""Time after which a request may come again whose gateway has no part of its token's rate yet."""
_PREFIX_BYTES = 4
_SECOND_NS = 1_000_000_000
Refusal = tuple[Reason, str, int | None]
"""The reason why a client is refused, a sentence for a person, and after how many nanoseconds it may come
again, if that helps."""
_NO_TOKEN: Refusal = (
    Reason.UNAUTHENTICATED,
    "a token is needed here: send it as the header `Authorization: Bearer TOKEN`, or give it to the client",
    None,
)
_UNKNOWN_TOKEN: Refusal = (Reason.UNAUTHENTICATED, "the token is not one that is known here", None)


def headers_of(refusal: Refusal) -> dict[str, str]:
    """Return the headers of an HTTP reply that say what a refused client should do."""
    reason, _, again_ns = refusal
    if again_ns is not None:
        return {"Retry-After": str(-(-again_ns // _SECOND_NS))}
    return {"WWW-Authenticate": "Bearer"} if reason is Reason.UNAUTHENTICATED else {}


class BadTokens(ValueError):
    """A file of tokens that can't be used; the text says why."""


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the file; see the module's docstring."""

    name: str
    sha256: str
    models: tuple[str, ...]
    rate: float | None = None
    burst: int | None = None
    best_priority: int | None = None
    admin: bool = False
    in_flight: int | None = None
    in_flight_bytes: int | None = None
    tenant: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        if len(self.sha256) != 64 or not set(self.sha256) <= set("0123456789abcdef"):
            raise ValueError(
                f"the sha256 of token {self.name!r} is not 64 hexadecimal digits; make one with "
                "`mainspring token new`"
            )
        if self.rate is not None and not (math.isfinite(self.rate) and self.rate > 0):
            raise ValueError(f"the rate of token {self.name!r} is {self.rate}; it must be greater than 0")
        if self.burst is not None and (self.rate is None or self.burst < 1):
            wrong = f"{self.burst}; it must be at least 1" if self.rate is not None else "set without a rate"
            raise ValueError(f"the burst of token {self.name!r} is {wrong}")
        if self.best_priority is not None and self.best_priority < 0:
            raise ValueError(
                f"the best_priority of token {self.name!r} is {self.best_priority}; it must be 1 for the "
                "highest, more for lower ones, or 0 for none"
            )
        for name in ("in_flight", "in_flight_bytes"):
            if (most := getattr(self, name)) is not None and most < 1:
                raise ValueError(f"the {name} of token {self.name!r} is {most}; it must be at least 1")
        if len(self.tenant) > LONGEST_TENANT or not self.tenant.isprintable():
            raise ValueError(
                f"the tenant of token {self.name!r} is not a name of at most {LONGEST_TENANT} characters"
            )

    @property
    def has_account(self) -> bool:
        """True if its requests are counted while they are in flight, or are a tenant's."""
        return bool(self.tenant) or self.in_flight is not None or self.in_flight_bytes is not None

    @property
    def is_limited(self) -> bool:
        """True if it has a limit that holds over all gateways together."""
        return self.rate is not None or self.in_flight is not None or self.in_flight_bytes is not None

    @property
    def interval_ns(self) -> int:
        """The time between two requests at the token's rate; 0 without a rate."""
        return 0 if self.rate is None else max(1, round(_SECOND_NS / self.rate))

    @property
    def allowance_ns(self) -> int:
        """Return how far ahead of its rate a token may be, in nanoseconds: its burst less one request."""
        burst = self.burst if self.burst is not None else max(1, math.ceil(self.rate or 0))
        return (burst - 1) * self.interval_ns


def parse_tokens(text: str) -> tuple[Token, ...]:
    """Return the tokens of a file's text; raise `BadTokens`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadTokens(f"it is not TOML: {error}") from None
    entries = tables.pop("token", [])
    if tables or not isinstance(entries, list):
        wrong = next(iter(tables), "token")
        raise BadTokens(f"it holds {wrong!r}; it may hold [[token]] tables only")
    tokens = tuple([_entry(number, entry) for number, entry in enumerate(entries, 1)])
    for field in ("name", "sha256"):
        values = [getattr(token, field) for token in tokens]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise BadTokens(f"two tokens have the {field} {twice!r}")
    return tokens


def _entry(number: int, entry: Any) -> Token:
    if isinstance(entry, dict):
        for key in entry:
            if key not in Token.__struct_fields__:
                known = Token.__struct_fields__
                hint = did_you_mean(key, known, f"it may be {', '.join(known)}")
                raise BadTokens(f"token {number} has the unknown key {key!r}{hint}")
    try:
        return msgspec.convert(entry, Token)
    except msgspec.ValidationError as error:
        raise BadTokens(f"token {number} can't be used: {error}") from None


def token_of_launcher(sha256: str) -> tuple[Token, ...]:
    """Return the token of the launcher that started the process, which may do everything, if there is one."""
    if not sha256:
        return ()
    return (Token(name="the launcher's own", sha256=sha256, models=("*",), admin=True),)


def token_sha256(token: str) -> str:
    """Return a token's digest as the file holds it."""
    return hashlib.sha256(token.encode()).hexdigest()


class Credential(msgspec.Struct, frozen=True):
    """The part of the token that a client showed that is kept: its digest, or None without a token."""

    digest: bytes | None


NOTHING = Credential(None)


def credential(token: str) -> Credential:
    """Return the credential of a token that a client showed; an empty or far too long one counts as none."""
    if not 0 < len(token) <= LONGEST_TOKEN:
        return NOTHING
    return Credential(hashlib.sha256(token.encode("utf-8", "replace")).digest())


def from_header(value: str | None) -> Credential:
    """Return the credential in the value of a header ``Authorization``."""
    scheme, _, token = (value or "").strip().partition(" ")
    return credential(token.strip()) if scheme.lower() == "bearer" else NOTHING


class _Holder:
    """A token, and how far its requests are ahead of its rate."""

    __slots__ = ("allowance_ns", "asked", "blocked", "digest", "due_ns", "interval_ns", "token")

    def __init__(self, token: Token, due_ns: int) -> None:
        self.token = token
        self.digest = bytes.fromhex(token.sha256)
        self.due_ns = due_ns
        """Instant at which the next request would arrive if all had arrived at exactly the token's rate."""
        self.asked = 0
        """Requests since `Gate.asked` was last called."""
        self.have(1.0)

    def have(self, part: float) -> None:
        """Let a part of the token's rate and burst be used here; the rest is other gateways'."""
        token = self.token
        self.blocked = token.interval_ns > 0 and part <= 0.0
        self.interval_ns, self.allowance_ns = token.interval_ns, token.allowance_ns
        if token.interval_ns and 0.0 < part < 1.0:
            self.interval_ns = round(token.interval_ns / part)
            # The burst, less one request, lasts as long at each gateway's part of the rate: each has one.

    def may_use(self, model: str) -> bool:
        """Say whether one of the token's patterns matches the model's name, case included."""
        return any(fnmatchcase(model, pattern) for pattern in self.token.models)

    def late_ns(self, now_ns: int) -> int:
        """Count one request; return 0, or by how much it is too early, in which case it does not count."""
        self.asked += 1
        if self.interval_ns == 0:
            return 0
        if self.blocked:
            return WAIT_NS
        due_ns = max(self.due_ns, now_ns)
        late_ns = due_ns - now_ns - self.allowance_ns
        if late_ns > 0:
            return late_ns
        self.due_ns = due_ns + self.interval_ns
        return 0


class Gate:
    """Decides for each request whether it may pass; without tokens, every request may."""

    def __init__(self, tokens: Sequence[Token] | None = None) -> None:
        """``tokens``: None if no token is needed; with an empty list no request may pass."""
        self._holders: dict[bytes, list[_Holder]] | None = None
        self.closed = False
        """True if a request needs a token."""
        self.has_accounts = False
        """True if any token has an account (`Token.has_account`)."""
        self._part_of: Callable[[Token], float] = lambda _token: 1.0
        if tokens is not None:
            self.replace(tokens)

    def replace(self, tokens: Sequence[Token]) -> None:
        """Replace the tokens; one that stays keeps the count of its requests."""
        before = {each.digest: each.due_ns for same in (self._holders or {}).values() for each in same}
        self._holders = {}
        self.closed, self.has_accounts = True, any(token.has_account for token in tokens)
        for token in tokens:
            digest = bytes.fromhex(token.sha256)
            holder = _Holder(token, before.get(digest, 0))
            holder.have(self._part_of(token))
            self._holders.setdefault(digest[:_PREFIX_BYTES], []).append(holder)

    def authorise(
        self, header_value: str | None, model: str | None, now_ns: int, *, administers: bool = False
    ) -> Refusal | None:
        """Return why a request with this header ``Authorization`` may not pass, or None.

        ``model`` is what it is about, by the name that clients use; None for what is about none in
        particular. Each call that passes counts for the token's rate.
        """
        if self._holders is None:
            return None
        return self.check(from_header(header_value), model, now_ns, administers=administers)

    def check(
        self, shown: Credential, model: str | None, now_ns: int, *, administers: bool = False
    ) -> Refusal | None:
        """Do as `authorise` does, for a client that has already shown its token."""
        if self._holders is None:
            return None
        holder = self._find(shown)
        if holder is None:
            return _NO_TOKEN if shown.digest is None else _UNKNOWN_TOKEN
        token = holder.token
        if administers and not token.admin:
            return Reason.FORBIDDEN, f"token {token.name!r} may not change what is served (admin)", None
        if model is not None and not holder.may_use(model):
            allowed = ", ".join(token.models) or "none"
            return (
                Reason.FORBIDDEN,
                f"token {token.name!r} may not use model {model[:100]!r}; its models: {allowed}",
                None,
            )
        late_ns = holder.late_ns(now_ns)
        if late_ns:
            detail = f"token {token.name!r} may send {token.rate:g} requests a second"
            return Reason.RATE_LIMITED, detail, late_ns
        return None

    def priority(self, shown: Credential, wanted: int) -> int:
        """Return the priority of a request that asks for one: no better than its token's best.

        1 is the highest and 0 none, as in `mainspring.messages.clients.InferRequest`.
        """
        if not wanted or self._holders is None:
            return wanted
        holder = self._find(shown)
        best = None if holder is None else holder.token.best_priority
        if best is None:
            return wanted
        return max(wanted, best) if best else 0

    def have(self, part_of: Callable[[Token], float]) -> None:
        """Let a part of each token's rate be used here from now on, of tokens that are read later too."""
        self._part_of = part_of
        for holder in self._all():
            holder.have(part_of(holder.token))

    def asked(self) -> list[tuple[Token, int]]:
        """Return the tokens with a limit that gateways share, and their requests since the last call."""
        found = []
        for holder in self._all():
            if holder.asked and holder.token.is_limited:
                found.append((holder.token, holder.asked))
            holder.asked = 0
        return found

    def token_of(self, shown: Credential) -> Token | None:
        """Return the token that a client showed; None if it is unknown or missing."""
        holder = None if self._holders is None else self._find(shown)
        return None if holder is None else holder.token

    def _all(self) -> list[_Holder]:
        return [each for same in (self._holders or {}).values() for each in same]

    def name(self, shown: Credential) -> str:
        """Return the name of the token that a client showed; empty if the token is unknown or missing."""
        holder = None if self._holders is None else self._find(shown)
        return "" if holder is None else holder.token.name

    def known(self, shown: Credential) -> Refusal | None:
        """Return why this credential is refused altogether, or None; the question counts as no request."""
        if self._holders is None or self._find(shown) is not None:
            return None
        return _NO_TOKEN if shown.digest is None else _UNKNOWN_TOKEN

    def may_see(self, shown: Credential, model: str) -> bool:
        """Say whether a model may be listed for a client; this counts as no request."""
        if self._holders is None:
            return True
        holder = self._find(shown)
        return holder is not None and holder.may_use(model)

    def _find(self, shown: Credential) -> _Holder | None:
        assert self._holders is not None
        if shown.digest is None:
            return None
        found = None
        for holder in self._holders.get(shown.digest[:_PREFIX_BYTES], ()):
            if hmac.compare_digest(holder.digest, shown.digest):
                found = holder
        return found


log = logging.getLogger("mainspring.gateway")

_LARGEST_BYTES = 16 << 20


class Settings(Protocol):
    """The settings of tokens in a process's configuration; see `mainspring.gateway.config`."""

    @property
    def token_file(self) -> str:
        """The path of the file; empty for none."""

    @property
    def token_reload_ms(self) -> float:
        """The time between two checks of the file."""

    @property
    def launcher_token_sha256(self) -> str:
        """The SHA-256 of a token that may do everything; empty for none."""


class TokenFile:
    """Keeps the tokens of a `Gate` equal to those of the file that the configuration names, if any."""

    def __init__(self, config: Settings) -> None:
        """Read the file; raise ValueError, so that the process does not start, if it can't be used."""
        self.gate = Gate()
        self._path = Path(config.token_file) if config.token_file else None
        self._own = token_of_launcher(config.launcher_token_sha256)
        self._interval_ns = round(config.token_reload_ms * 1_000_000)
        self.check_ns = None if self._path is None else 0
        """Instant of the next `tick`; None for never."""
        self._read_stamp: tuple[int, ...] | None = None
        self._logged = ""
        if self._path is not None:
            self._read_stamp = self._stamp()
            try:
                self.gate.replace(self._read())
            except (OSError, BadTokens) as error:
                raise ValueError(f"the file of tokens {self._path} can't be used: {_why(error)}") from None

    def tick(self, now_ns: int) -> None:
        """Read the file again if it has changed; one that can't be used is logged and changes nothing."""
        if self.check_ns is None or now_ns < self.check_ns:
            return
        self.check_ns = now_ns + self._interval_ns
        stamp = self._stamp()
        if stamp == self._read_stamp:
            return
        self._read_stamp = stamp
        try:
            tokens = self._read()
        except (OSError, BadTokens) as error:
            text = f"the file of tokens {self._path} can't be used, and those from before stay: {_why(error)}"
            if text != self._logged:
                log.error("%s", text)
            self._logged = text
            return
        self._logged = ""
        self.gate.replace(tokens)
        log.warning("the file of tokens %s was read again: %d tokens", self._path, len(tokens))

    def _read(self) -> list[Token]:
        assert self._path is not None
        with self._path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise BadTokens(f"it is larger than {_LARGEST_BYTES >> 20} MiB")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise BadTokens(f"it is not UTF-8: {error}") from None
        return [*parse_tokens(text), *self._own]

    def _stamp(self) -> tuple[int, ...] | None:
        """Return numbers that change when the file is written or replaced; None if it does not exist."""
        assert self._path is not None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_token(path: str) -> str:
    """Return the one token in a process's own file, ``""`` for an empty path.

    Raises OSError that says what is wrong: the file can't be read, is empty, or others may read it.
    """
    if not path:
        return ""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            token = file.read(_LARGEST_BYTES).strip()
    except OSError as error:
        raise OSError(error.errno, f"the token file {path} can't be read: {error.strerror}") from None
    # Of root's files a group may read one: so services and containers are given what is not theirs to change.
    open_to_others = 0o037 if status.st_uid == 0 else 0o077
    if stat.S_IMODE(status.st_mode) & open_to_others or status.st_uid not in {os.geteuid(), 0}:
        raise OSError(f"the token file {path} is open to others: chown it to its user and chmod it to 0600")
    if not token:
        raise OSError(f"the token file {path} is empty: write into it what `mainspring token new` prints")
    return token.decode("ascii", "replace")


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
