"""What zkdv-control declares to the plugin registry."""

from zkdv.hooks import Declarations, hookimpl


@hookimpl
def zkdv_transports() -> Declarations:
    """The transport with sockets of its own."""
    return {"tcp": "zkdv.control.tcp:TCP"}
