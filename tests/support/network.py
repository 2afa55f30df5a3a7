"""Hosts as Linux network namespaces, each with an address of its own, around a router that can drop their packets.

The servers run on the router. Nothing outside of the namespaces is changed: this process enters one only to start
programs in it, and reaches the servers through Unix sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

SERVER = "10.77.0.1"
"""The address of the router, under which all hosts reach the servers."""
NETWORK = "10.77.0.0/16"
CLONE_NEWNET = 0x40000000
LOCAL_PRIORITY, FIRST_CUT_PRIORITY = 30000, 100


def unavailable() -> str | None:
    """Return why this machine can't have network namespaces, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if _program() is None:
        return "there is no program ip: install iproute2"
    name = f"holdfast-probe-{os.getpid()}"
    made = _ip("netns", "add", name, check=False)
    if made.returncode == 0:
        _ip("netns", "delete", name)
        return None
    return f"network namespaces are refused: {made.stderr.strip()}"


class HostNetwork:
    """A router and hosts that are connected to it."""

    def __init__(self, hosts: int) -> None:
        self._prefix = f"hf{os.getpid()}"
        self._names = [f"{self._prefix}-{number}" for number in range(hosts + 1)]
        self._priorities = count(FIRST_CUT_PRIORITY)
        self.hosts = range(1, hosts + 1)
        """The numbers of the hosts. The router is number 0."""

    def __enter__(self) -> Self:
        try:
            self._create()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Delete the namespaces. Programs that still run in them keep theirs until they end."""
        for name in self._names:
            _ip("netns", "delete", name, check=False)

    def address(self, host: int) -> str:
        return f"10.77.{host}.2"

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Let this thread, and programs that it starts, use the network of a host; 0 is the router."""
        with Path("/proc/thread-self/ns/net").open() as before, Path("/run/netns", self._names[host]).open() as other:
            _enter(other.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    @contextlib.contextmanager
    def cut(self, *packets: Sequence[str]) -> Iterator[None]:
        """Drop packets at the router meanwhile, silently: `("from", address)` or `("to", address)`, with conditions."""
        rules = [("pref", str(next(self._priorities)), *each, "blackhole") for each in packets]
        for rule in rules:
            self._on(0, "rule", "add", *rule)
        try:
            yield
        finally:
            for rule in rules:
                self._on(0, "rule", "delete", *rule)

    def _create(self) -> None:
        for name in self._names:
            _ip("netns", "add", name)
        self._on(0, "link", "set", "lo", "up")
        self._on(0, "address", "add", f"{SERVER}/32", "dev", "lo")
        # The rule for local addresses comes first by default, before those that drop packets to the router itself.
        self._on(0, "rule", "add", "pref", str(LOCAL_PRIORITY), "lookup", "local")
        self._on(0, "rule", "delete", "pref", "0")
        for host in self.hosts:
            self._connect(host)

    def _connect(self, host: int) -> None:
        inner, outer = "eth0", f"host{host}"
        _ip("-n", self._names[0], "link", "add", outer, "type", "veth", "peer", inner, "netns", self._names[host])
        self._on(0, "address", "add", f"10.77.{host}.1/30", "dev", outer)
        self._on(0, "link", "set", outer, "up")
        self._on(host, "link", "set", "lo", "up")
        self._on(host, "address", "add", f"{self.address(host)}/30", "dev", inner)
        self._on(host, "link", "set", inner, "up")
        self._on(host, "route", "add", "default", "via", f"10.77.{host}.1")

    def _on(self, host: int, *words: str) -> None:
        _ip("-n", self._names[host], *words)


def _program() -> str | None:
    return shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([_program() or "ip", *words], capture_output=True, text=True, check=check)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
