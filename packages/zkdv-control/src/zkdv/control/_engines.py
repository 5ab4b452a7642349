"""Which transport a control takes, and how ranks that a framework has brought together find each other."""

import json
import platform
import sys
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, cast

from zkdv.errors import ZKDVError
from zkdv.plugins import registry
from zkdv.transport import Engine, OpenTransport

if TYPE_CHECKING:
    from zkdv.control._host_control import HostControl

BACKENDS = {"jax": "jax-kv", "torch": "torch-store"}
"""The transport of each framework's own engine."""

TIMEOUT_SECONDS = 600.0
_calls = {backend: count() for backend in BACKENDS}


def opener(transport: str | OpenTransport) -> OpenTransport:
    """Return what opens a transport: by name, as it is, or that of the engine that this process has (`"auto"`)."""
    if not isinstance(transport, str):
        if not callable(transport):
            raise TypeError(f"transport is {transport!r}; it is a name, or a callable that opens a transport")
        return transport
    if transport != "auto":
        return cast("OpenTransport", registry().resolve("zkdv_transports", transport))
    for backend, name in BACKENDS.items():
        # A framework that is not imported has brought nothing together.
        if backend in sys.modules and name in registry().names("zkdv_transports") and _engine(backend) is not None:
            return opener(name)
    return opener("tcp")


def control_of_backend(
    control_class: "type[HostControl]", backend: str, transport: str, bind: str | None
) -> "HostControl | None":
    """`HostControl.for_backend`."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; it is one of: {', '.join(BACKENDS)}")
    if transport == "auto":
        transport = BACKENDS[backend]
    if bind is not None and transport != "tcp":
        raise ValueError(f"bind is {bind!r}, and the transport {transport!r} listens nowhere; only 'tcp' does")
    engine = _engine(backend)
    if engine is None or engine.size == 1:
        return None
    number = next(_calls[backend])
    try:
        if engine.rank == 0:
            return _lead(control_class, engine, transport, bind, f"zkdv/bootstrap/{number}")
        return _join(control_class, engine, transport, f"zkdv/bootstrap/{number}")
    finally:
        engine.store.close()


def _engine(backend: str) -> Engine | None:
    """The processes that `backend` has brought together; None where it has not."""
    if backend not in sys.modules and BACKENDS[backend] not in registry().names("zkdv_transports"):
        raise ZKDVError(f"no transport of {backend} is installed; add it with `uv add zkdv-{backend}`")
    running = getattr(registry().resolve("zkdv_transports", BACKENDS[backend]), "engine", None)
    return None if running is None else cast("Engine | None", running())


def _lead(
    control_class: "type[HostControl]", engine: Engine, transport: str, bind: str | None, prefix: str
) -> "HostControl":
    control = control_class(0, engine.size, address=bind, transport=transport)
    ranks = range(1, engine.size)
    try:
        invitation = {"address": control.address, "token": control.token, "host": platform.node()}
        engine.store.set(prefix, json.dumps(invitation).encode())
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for rank in ranks:
            _await_rank(rank, engine.store.get(f"{prefix}/{rank}", max(0.0, deadline - time.monotonic())))
    except BaseException:
        control.close()
        raise
    finally:
        with suppress(Exception):
            for key in (prefix, *(f"{prefix}/{rank}" for rank in ranks)):
                engine.store.delete(key)
    return control


def _await_rank(rank: int, joined: bytes | None) -> None:
    if joined is None:
        raise TimeoutError(f"rank {rank} did not join the control in {TIMEOUT_SECONDS:g} s")
    if joined:
        raise ZKDVError(f"rank {rank} could not join the control: {joined.decode(errors='replace')}")


def _join(control_class: "type[HostControl]", engine: Engine, transport: str, prefix: str) -> "HostControl":
    invitation = engine.store.get(prefix, TIMEOUT_SECONDS)
    if invitation is None:
        raise TimeoutError(f"rank {engine.rank}: the owner made no control in {TIMEOUT_SECONDS:g} s")
    try:
        said = json.loads(invitation)
        if transport == "tcp":
            _refuse_loopback_of_another_host(engine.rank, said["host"], said["address"])
        control = control_class(
            engine.rank, engine.size, address=said["address"], token=said["token"], transport=transport
        )
    except Exception as error:
        with suppress(Exception):
            engine.store.set(f"{prefix}/{engine.rank}", f"{type(error).__name__}: {error}".encode()[:2048])
        raise
    engine.store.set(f"{prefix}/{engine.rank}", b"")
    return control


def _refuse_loopback_of_another_host(rank: int, host: str, address: str) -> None:
    if host != platform.node() and address.startswith(("127.", "[::1]")):
        raise ValueError(
            f"rank {rank} is on another host than the owner, which listens on loopback; give for_backend(bind=ADDRESS) "
            "with the address of the owner's interface"
        )
