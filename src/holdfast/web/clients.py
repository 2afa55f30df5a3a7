"""Where a request comes from: the client's address, also behind a trusted proxy, and whether it came directly."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from starlette.types import Scope

from holdfast.errors import ConfigError

CLIENT = "holdfast.client"
"""Key of the ASGI scope: the address that the client is counted by (`ClientAddresses.of`)."""
DIRECT = "holdfast.direct"
"""Key of the ASGI scope: whether a local client sent the request to this server itself (`is_direct`)."""
MAX_FORWARDED_ADDRESSES = 20

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_PROXY_HEADERS = frozenset(
    {
        b"cdn-loop",
        b"client-ip",
        b"forwarded",
        b"front-end-https",
        b"proxy-client-ip",
        b"true-client-ip",
        b"via",
        b"wl-proxy-client-ip",
        b"x-appengine-user-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-host",
        b"x-originating-ip",
        b"x-proxyuser-ip",
        b"x-remote-addr",
        b"x-remote-ip",
        b"x-scheme",
    }
)
_PROXY_PREFIXES = (
    b"cf-",
    b"fastly-",
    b"fly-",
    b"ngrok-",
    b"tailscale-",
    b"x-amz",
    b"x-arr-",
    b"x-azure-",
    b"x-envoy-",
    b"x-forwarded",
    b"x-original-",
    b"x-real-",
)
"""How the headers begin that proxies, load balancers and tunnels add. Browsers and HTTP clients send none of them."""


class ClientAddresses:
    """Finds the address of a client. Only proxies that the operator names are believed."""

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._proxies = [_network(proxy) for proxy in proxies]

    def of(self, scope: Scope) -> str:
        """Return the address of the client. IPv6 clients are counted by their network, which is theirs alone.

        A proxy appends the address it was called from to X-Forwarded-For. So the last address that isn't a proxy's own
        is the client's; what precedes it was made up by anyone.
        """
        peer = scope.get("client")
        address = None if peer is None else _address(str(peer[0]))
        if address is not None and self.is_proxy(str(address)):
            for forwarded in reversed(_forwarded_for(scope)):
                address = forwarded
                if not self.is_proxy(str(address)):
                    break
        if address is None:
            return "unknown"
        if isinstance(address, ipaddress.IPv6Address):
            return str(ipaddress.IPv6Network((address, 64), strict=False))
        return str(address)

    def is_proxy(self, address: str) -> bool:
        """Return whether an address is that of a trusted proxy."""
        found = _address(address)
        return found is not None and any(found in network for network in self._proxies)


def is_loopback(host: str) -> bool:
    """Return whether an address or name is a loopback one."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_direct(scope: Scope) -> bool:
    """Return whether the request comes from this machine, to this server, without a proxy or another application.

    Both ends of the connection must be loopback addresses. A proxy on this machine has one too, but adds headers or,
    like nginx without further settings, speaks HTTP/1.0, which browsers don't. An application that mounts the site
    leaves itself in the scope.
    """
    mounted = bool(scope.get("root_path")) or "app" in scope or "router" in scope
    ends = scope.get("client"), scope.get("server")
    local = all(end is not None and is_loopback(str(end[0])) for end in ends)
    proxied = any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES) for name, _ in scope["headers"])
    return local and not mounted and not proxied and scope.get("http_version") != "1.0"


def _forwarded_for(scope: Scope) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the last addresses of X-Forwarded-For, up to the first that isn't one."""
    text = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")
    found = []
    for part in reversed(text.rsplit(",", MAX_FORWARDED_ADDRESSES)):
        address = _address(part.strip())
        if address is None:
            break
        found.append(address)
    return found[::-1]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if isinstance(mapped, ipaddress.IPv4Address) else address


def _network(proxy: str) -> Network:
    try:
        return ipaddress.ip_network(proxy)
    except ValueError:
        raise ConfigError(f"{str(proxy)[:100]!r} is not an address of a proxy: use 10.0.0.7 or 10.0.0.0/24") from None
