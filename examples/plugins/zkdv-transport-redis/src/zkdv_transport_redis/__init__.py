"""Control over a Redis server: `HostControl(..., transport="redis", address="redis://HOST:PORT/0")`."""

from zkdv.hooks import Declarations, hookimpl


@hookimpl
def zkdv_transports() -> Declarations:
    """The transport by its name."""
    return {"redis": "zkdv_transport_redis.store:open_transport"}
