"""The transport `jax-kv`: rounds over the key-value store of JAX's coordination service.

JAX has no public interface to it. This module alone reaches for the private one; tested with jax 0.10.2 to 0.12.0, and
refused with a clear error where a version has another.
"""

from typing import Any

import jax

from zkdv.control import StoreTransport
from zkdv.errors import ZKDVError
from zkdv.transport import Engine, Membership, Transport

MILLISECOND = 1e-3
_CLIENT_METHODS = ("blocking_key_value_get_bytes", "key_value_set_bytes", "key_value_delete", "key_value_try_get_bytes")


class CoordinationStore:
    """The coordination service's key-value store (`zkdv.transport.Store`); its client serves any number of threads."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def set(self, key: str, value: bytes, /) -> None:
        """Store `value`."""
        self._client.key_value_set_bytes(key, value)

    def get(self, key: str, timeout: float, /) -> bytes | None:
        """Return the value of `key`; None where it is not there in time."""
        try:
            if timeout < MILLISECOND:
                return bytes(self._client.key_value_try_get_bytes(key))
            return bytes(self._client.blocking_key_value_get_bytes(key, int(timeout / MILLISECOND)))
        except jax.errors.JaxRuntimeError as error:
            # The only ways to tell: the status stands first in the message.
            if str(error).startswith(("NOT_FOUND", "DEADLINE_EXCEEDED")):
                return None
            raise

    def delete(self, key: str, /) -> None:
        """Remove `key`, if it is there."""
        self._client.key_value_delete(key)

    def close(self) -> None:
        """Do nothing: the client is JAX's own."""


class JaxKv:
    """Opens transports over the coordination service that `jax.distributed.initialize` has connected to."""

    def __call__(self, membership: Membership) -> Transport:
        """Open one rank's end.

        Raises:
            RuntimeError: `jax.distributed` is not initialised, or this version of JAX has no client that we know.
        """
        if not jax.distributed.is_initialized():
            raise ZKDVError("the transport 'jax-kv' needs several processes; call jax.distributed.initialize first")
        client = _client()
        return StoreTransport(membership, lambda: CoordinationStore(client), address="jax-kv")

    @staticmethod
    def engine() -> Engine | None:
        """The processes that `jax.distributed` has brought together; None where it has not."""
        if not jax.distributed.is_initialized():
            return None
        return Engine(jax.process_index(), jax.process_count(), CoordinationStore(_client()))


JAX_KV = JaxKv()
"""As the plugin registry names it."""


def _client() -> Any:
    try:
        from jax._src.distributed import global_state  # noqa: PLC0415 (see above)

        client = global_state.client
    except (ImportError, AttributeError):
        client = None
    if not all(hasattr(client, method) for method in _CLIENT_METHODS):
        raise ZKDVError(
            f"jax {jax.__version__} has no coordination client that this version of zkdv-jax knows; use "
            'HostControl.for_backend("jax", transport="tcp")'
        )
    return client
