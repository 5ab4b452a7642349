"""The transport; imported, and Redis's client with it, when it is used."""

import os
from urllib.parse import urlsplit

import redis

from zkdv.control import StoreTransport

DEFAULT_ADDRESS = "redis://127.0.0.1:6379/0"
LIFETIME_SECONDS = 24 * 60 * 60  # What a run that crashed leaves behind is gone then.


class RedisStore:
    """One connection. A value is a list of one element, since Redis can wait for lists."""

    def __init__(self, address):
        password = os.environ.get("REDIS_PASSWORD")
        self._client = redis.Redis.from_url(
            address, password=password, socket_timeout=60, single_connection_client=True
        )

    def set(self, key, value):
        """Store a value."""
        with self._client.pipeline() as both:
            both.rpush(key, value).expire(key, LIFETIME_SECONDS).execute()

    def get(self, key, timeout):
        """Look at a value; waiting for it moves it from the list's one end to the other."""
        return self._client.blmove(key, key, timeout) if timeout > 0 else self._client.lindex(key, 0)

    def delete(self, key):
        """Remove a value."""
        self._client.delete(key)

    def close(self):
        """Give up the connection."""
        self._client.close()


def open_transport(membership):
    """Open one rank's end."""
    address = membership.address or DEFAULT_ADDRESS
    if urlsplit(address).password is not None:
        raise ValueError(
            "an address is no secret: give the server's password in the environment variable REDIS_PASSWORD"
        )
    return StoreTransport(membership, lambda: RedisStore(address), address=address)
