"""The file of tokens, which is read at the start and whenever it has changed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Protocol

from mainspring.transport.tokens import BadTokens, Gate, Token, parse_tokens, token_of_launcher

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
        self._check_ns = 0
        self._read_stamp: tuple[int, ...] | None = None
        self._logged = ""
        if self._path is not None:
            self._read_stamp = self._stamp()
            try:
                self.gate.replace(self._read())
            except (OSError, BadTokens) as error:
                raise ValueError(f"the file of tokens {self._path} can't be used: {_why(error)}") from None

    def next_wakeup_ns(self) -> int | None:
        """Return the instant of the next `tick`; None for never."""
        return None if self._path is None else self._check_ns

    def tick(self, now_ns: int) -> None:
        """Read the file again if it has changed; one that can't be used is logged and changes nothing."""
        if self._path is None or now_ns < self._check_ns:
            return
        self._check_ns = now_ns + self._interval_ns
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


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
