"""The transport `torch-store`: rounds over the c10d store of the default process group.

Public interfaces of torch 2.13 only: `ProcessGroup.get_group_store` and the methods of `Store`.
"""

import datetime as dt
import time

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from zkdv.control import StoreTransport
from zkdv.errors import ZKDVError
from zkdv.transport import Engine, Membership, Transport

OPERATION_SECONDS = 30.0
"""Until a store that does not answer counts as gone."""

LATE_PART = 0.2
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.0002, 0.1


class TorchStore:
    """A connection of its own to a c10d store (`zkdv.transport.Store`).

    Args:
        store: The store to connect to once more; its own timeout bounds that.
    """

    def __init__(self, store: Store) -> None:
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._store.set_timeout(dt.timedelta(seconds=OPERATION_SECONDS))

    def set(self, key: str, value: bytes, /) -> None:
        """Store `value`."""
        self._store.set(key, value)  # type: ignore[arg-type]

    def get(self, key: str, timeout: float, /) -> bytes | None:
        """Return the value of `key`; None where it is not there in time.

        `Store.wait` writes two lines to the standard error whenever a time is over: so this looks again and again, the
        more rarely the longer it has waited, and what it adds to a wait stays a small part of it.
        """
        began = time.monotonic()
        while not self._store.check([key]):
            waited = time.monotonic() - began
            if waited >= timeout:
                return None
            time.sleep(min(max(FIRST_PAUSE_SECONDS, waited * LATE_PART), LONGEST_PAUSE_SECONDS, timeout - waited))
        return bytes(self._store.get(key))

    def delete(self, key: str, /) -> None:
        """Remove `key`, if it is there."""
        self._store.delete_key(key)

    def close(self) -> None:
        """Do nothing: the connection ends with the object."""


class TorchStoreTransport:
    """Opens transports over the store of the process group that this process has."""

    def __call__(self, membership: Membership) -> Transport:
        """Open one rank's end.

        Raises:
            RuntimeError: There is no process group.
        """
        store = _group_store()
        if store is None:
            raise ZKDVError(
                "the transport 'torch-store' needs a process group; call torch.distributed.init_process_group first"
            )
        # Who connects to a store that is gone tries for as long as the store's timeout says; the group's is the user's.
        bounded: Store = store.clone()  # type: ignore[attr-defined]
        bounded.set_timeout(dt.timedelta(seconds=OPERATION_SECONDS))
        return StoreTransport(membership, lambda: TorchStore(bounded), address="torch-store")

    @staticmethod
    def engine() -> Engine | None:
        """The default process group; None where there is none."""
        store = _group_store()
        return None if store is None else Engine(dist.get_rank(), dist.get_world_size(), TorchStore(store))


TORCH_STORE = TorchStoreTransport()
"""As the plugin registry names it."""


def _group_store() -> Store | None:
    if not dist.is_available() or not dist.is_initialized():
        return None
    group = dist.group.WORLD
    return None if group is None else group.get_group_store()
