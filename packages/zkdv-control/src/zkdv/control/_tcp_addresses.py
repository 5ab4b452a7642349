"""Addresses of `tcp` as users write them: `10.0.0.5`, `10.0.0.5:7000`, `[::1]:7000`, `host.example:7000`."""

import ipaddress
import socket

LOOPBACK = "127.0.0.1"


def listening_address(address: str | None) -> tuple[str, int]:
    """Return host (numeric) and port to listen on; without an address loopback, without a port any free one.

    Raises:
        ValueError: It is no address, or that of every interface.
    """
    if address is None:
        return LOOPBACK, 0
    host, port = _split(address)
    try:
        found = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise ValueError(f"address is {address!r}; that cannot be looked up: {error}") from error
    if ipaddress.ip_address(str(found).partition("%")[0]).is_unspecified:
        raise ValueError(f"address is {address!r}, every interface of this host; give the one that followers reach")
    return str(found), port or 0


def owner_address(address: str) -> tuple[str, int]:
    """Return host and port to connect to.

    Raises:
        ValueError: It is no address with a port.
    """
    host, port = _split(address)
    if not port:
        raise ValueError(f"address is {address!r}; a follower needs the owner's address with its port, HOST:PORT")
    return host, port


def _split(address: str) -> tuple[str, int | None]:
    host, colon, port = address.rpartition(":")
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if "]" not in address or (rest and colon != ":"):
            raise ValueError(f"address is {address!r}; it is HOST, HOST:PORT or [IPv6]:PORT")
    elif not colon or address.count(":") > 1:  # No port, or an IPv6 address without brackets.
        host, colon, port = address, "", ""
    if not host or (colon and not (port.isascii() and port.isdigit() and int(port) <= 65535)):
        raise ValueError(f"address is {address!r}; it is HOST, HOST:PORT or [IPv6]:PORT")
    return host, int(port) if colon else None
