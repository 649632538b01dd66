"""Hosts of a test: network namespaces on one bridge, each with a monotonic clock of its own.

Needs the superuser, iproute2, nftables and util-linux; `lacking` says what this machine does not allow.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.patience import PATIENCE_S

TOOLS = ("ip", "nft", "unshare")
PREFIX4, PREFIX6 = "10.77.0", "fd77:"
TABLE = "table inet faults"
CLEAR = f"{TABLE}\ndelete {TABLE}\n"
"""Made if it is not there, so that it can be deleted."""
CHAIN = """chain {way} {{
type filter hook {way} priority 0
{interface} != "lo" {rule}
}}"""
WAYS = {"input": "iifname", "output": "oifname"}
BOOTED_S = 1_100
"""A clock shows no less than 0: a machine has to have run for longer than a host's clock is behind."""


def said(*command: str) -> str:
    """Run a command; return what it says, and raise CalledProcessError if it fails."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until something is so; fail with what is to be said of it."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, what()
        time.sleep(0.1)


@functools.cache
def lacking() -> str:
    """Return why hosts can't be made here; empty if they can."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"there is no {tool} (packages iproute2, nftables, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need the superuser"
    if time.monotonic() < BOOTED_S:
        return f"the machine has run for less than {BOOTED_S} s, so that no clock can be as far behind"
    name = f"probe-{os.getpid()}"
    try:
        said("ip", "netns", "add", name)
        try:
            said("ip", "netns", "exec", name, "nft", CLEAR)
            said("unshare", "--time", "--fork", "--monotonic", "1", "--boottime", "1", "true")
            said("ip", "-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
            said("ip", "-n", name, "link", "add", "bridge0", "type", "bridge")
        finally:
            said("ip", "netns", "delete", name)
    except (OSError, subprocess.SubprocessError) as error:
        return f"namespaces are not permitted here: {getattr(error, 'stderr', '') or error}"
    return ""


class Host:
    """One network namespace; what it runs sees ``ahead_s`` more on its monotonic clock."""

    def __init__(self, namespace: str, number: int, ahead_s: int) -> None:
        self.namespace, self.ahead_s = namespace, ahead_s
        self.port = f"port{number}"
        """The bridge's end of its link."""
        self.address4, self.address6 = f"{PREFIX4}.{number}", f"{PREFIX6}:{number}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a process here; what it says goes to a file."""
        clock = ("--monotonic", str(self.ahead_s), "--boottime", str(self.ahead_s))
        inside = (
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--time",
            "--fork",
            "--kill-child",
            *clock,
        )
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*inside, "--", *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._processes.append(process)
        return process

    def cut_off(self) -> None:
        """Lose every packet from and to other hosts."""
        self._lose("drop")

    def lose(self, one_in: int) -> None:
        """Lose one packet in so many at random, on the way in and on the way out."""
        self._lose(f"numgen random mod {one_in} < 1 drop")

    def heal(self) -> None:
        """Lose nothing any more."""
        self._nft(CLEAR)

    def stop(self) -> None:
        """Kill what was started here."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(30)
        self._processes.clear()

    def _lose(self, rule: str) -> None:
        chains = [CHAIN.format(way=way, interface=each, rule=rule) for way, each in WAYS.items()]
        self._nft("\n".join((CLEAR, TABLE + " {", *chains, "}")))

    def _nft(self, rules: str) -> None:
        said("ip", "netns", "exec", self.namespace, "nft", rules)


class Network:
    """Hosts on one bridge, which is in a namespace of its own: the machine's own network stays as it is."""

    def __init__(self) -> None:
        self._name = f"mainspring-{os.getpid()}"
        self._namespaces: list[str] = []
        self._hosts: list[Host] = []
        self._add_namespace(self._name)
        self._ip(self._name, "link", "add", "bridge0", "type", "bridge")
        self._ip(self._name, "link", "set", "bridge0", "up")

    def host(self, ahead_s: int = 0) -> Host:
        """Add a host, with addresses of IPv4 and IPv6."""
        number = len(self._hosts) + 1
        host = Host(f"{self._name}-{number}", number, ahead_s)
        self._hosts.append(host)
        self._add_namespace(host.namespace)
        there = ("peer", "name", "eth0", "netns", host.namespace)
        self._ip(self._name, "link", "add", host.port, "type", "veth", *there)
        self._ip(self._name, "link", "set", host.port, "master", "bridge0", "up")
        self._ip(host.namespace, "link", "set", "eth0", "up")
        self._ip(host.namespace, "address", "add", f"{host.address4}/24", "dev", "eth0")
        self._ip(host.namespace, "address", "add", f"{host.address6}/64", "dev", "eth0", "nodad")
        return host

    def narrow(self, host: Host, mbit: int) -> None:
        """Let no more than this come to a host, in Mbit/s; raise CalledProcessError where nothing can."""
        rate = ("rate", f"{mbit}mbit", "burst", "256kb", "latency", "100ms")
        said("tc", "-n", self._name, "qdisc", "replace", "dev", host.port, "root", "tbf", *rate)

    def close(self) -> None:
        """Kill what runs on the hosts, and remove them."""
        for host in self._hosts:
            host.stop()
        for name in self._namespaces:
            said("ip", "netns", "delete", name)

    def _add_namespace(self, name: str) -> None:
        said("ip", "netns", "add", name)
        self._namespaces.append(name)
        self._ip(name, "link", "set", "lo", "up")

    def _ip(self, namespace: str, *command: str) -> None:
        said("ip", "-n", namespace, *command)
