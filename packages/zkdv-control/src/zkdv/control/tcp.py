"""The transport `tcp`: sockets of its own between the owner and each follower.

The owner listens; followers connect, one connection for each round that waits at a time. Both sides show that they know
the token without sending it, and every frame is authenticated (`zkdv.framing`): what others on the network can do is
read decisions, unless TLS hides them, and keep them from arriving.
"""

import ssl
from dataclasses import dataclass

from zkdv.control._tcp_addresses import listening_address
from zkdv.control._tcp_follower import TcpFollower
from zkdv.control._tcp_owner import TcpOwner
from zkdv.transport import Membership, Transport

__all__ = ["Tcp"]


@dataclass(frozen=True)
class Tcp:
    """Opens transports over sockets of their own: `HostControl(..., transport=Tcp(tls=context))`.

    Attributes:
        tls: The owner's or a follower's TLS settings, `ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)` with a certificate or
            `ssl.create_default_context(cafile=...)`; None: frames are authenticated, and not encrypted.
        server_name: The name in the owner's certificate, for followers; default: the host in the address.
    """

    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    def __call__(self, membership: Membership) -> Transport:
        """Open one rank's end: listen on the owner, join on a follower."""
        if membership.rank == 0:
            return TcpOwner(membership, listening_address(membership.address), self.tls)
        return TcpFollower(membership, self.tls, self.server_name)


TCP = Tcp()
"""The transport without TLS, as the plugin registry names it."""
