"""The handshake on a socket, which reads only what it needs: an unknown peer costs a few hundred bytes.

Over TLS, its own handshake comes before, and bounds what it reads itself (`secure`).
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import NamedTuple

from mainspring.transport import addresses
from mainspring.transport.bounds import Ended
from mainspring.transport.handshake import Handshake, Unproved
from mainspring.transport.keys import Keys, read_keys
from mainspring.transport.secure import FLAGS, NotEncrypted, SecureSocket

NEEDS_TLS = "this process asks for TLS: start the other one with --keys"


class Greeting:
    """One end of a new connection until the handshake is complete."""

    def __init__(self, sock: socket.socket | SecureSocket, handshake: Handshake) -> None:
        """Begin the handshake; raise `Ended` if the connection is already over."""
        self.sock = sock
        self.fd = sock.fileno()
        self.handshake = handshake
        self._received = b""
        self._securing = isinstance(sock, SecureSocket)
        if not self._securing:
            self._send(handshake.opening)

    def advance(self) -> bool:
        """Continue with the bytes that have arrived; return whether the handshake is complete.

        Raises `Ended` and `Violation`; a refused peer has been sent the reason.
        """
        handshake = self.handshake
        if self._securing and not self._secured():
            return False
        while handshake.wants:
            try:
                data = self.sock.recv(handshake.wants - len(self._received), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                raise Ended(str(error.strerror)) from None
            if not data:
                raise Ended("it closed the connection before it had said who it is")
            self._received += data
            if len(self._received) < handshake.wants:
                continue
            received, self._received = self._received, b""
            try:
                self._send(handshake.take(received))
            except Unproved as failure:
                self._send(failure.reply)
                raise
        return True

    def _secured(self) -> bool:
        """Continue TLS's handshake; return whether the other end's certificate is known."""
        assert isinstance(self.sock, SecureSocket), "there is no TLS here"
        try:
            if not self.sock.advance():
                return False
        except NotEncrypted:
            with contextlib.suppress(OSError):
                self.sock.plain.send(self.handshake.refusal(NEEDS_TLS), FLAGS)
            raise
        self._securing = False
        self.handshake.certify(self.sock.fault)
        self._send(self.handshake.opening)
        return True

    def _send(self, data: bytes) -> None:
        if not data:
            return
        try:
            sent = self.sock.send(data, FLAGS)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            if isinstance(self.sock, SecureSocket):
                self.sock.find_refusal()
            raise Ended(str(error.strerror)) from None
        if sent < len(data):
            raise Ended("it does not read")


class Pass(NamedTuple):
    """The credentials of a process on its connections: its role, and its keys if it has any."""

    role: str = "tool"
    keys: Keys | None = None
    """Keys with which connections over TCP are encrypted, and each end's certificate says who it is."""

    def over(self, sock: socket.socket, server: bool) -> socket.socket | SecureSocket:
        """Return what to speak over on a new connection; raise `Ended` if it is already over."""
        if self.keys is None or sock.family == socket.AF_UNIX:
            return sock
        return SecureSocket(sock, self.keys, server)


TOOL = Pass()


def present(role: str, keys: str) -> Pass:
    """Return what a process of this role presents, by the folder of its keys, empty for none.

    Raises OSError that says what is wrong with them.
    """
    return Pass(role, read_keys(keys))


def trusted(sock: socket.socket) -> bool:
    """Say whether, by the kernel's word, the other end is a process of this user or of root."""
    return sock.family == socket.AF_UNIX and addresses.user_of(sock) in {os.geteuid(), 0}
