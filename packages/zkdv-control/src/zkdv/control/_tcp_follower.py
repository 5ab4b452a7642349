"""A follower's end of `tcp`: a connection for each round that waits at a time, kept for the next one."""

import secrets
import socket
import ssl
import threading
import time
from contextlib import suppress

from zkdv.control import _tcp_messages as messages
from zkdv.control._tcp_addresses import owner_address
from zkdv.control._tcp_messages import Claim
from zkdv.control._tcp_sockets import tune
from zkdv.errors import ZKDVError
from zkdv.framing import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    HEADER_BYTES,
    FrameSealer,
    FrameVerifier,
    FramingError,
    Initiator,
    socket_address,
)
from zkdv.transport import Membership

FAREWELL_SECONDS = 2.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 1.0


class TcpFollower:
    """A follower's transport (`zkdv.transport.Transport`).

    Args:
        membership: This rank's place in the run.
        tls: Settings of a TLS client; None: no TLS.
        server_name: Name in the owner's certificate; default: the host in the address.

    Raises:
        RuntimeError: The owner refuses this process, or is none.
        TimeoutError: No owner in time.
    """

    def __init__(self, membership: Membership, tls: ssl.SSLContext | None, server_name: str | None) -> None:
        if membership.address is None:
            raise ValueError(f"rank {membership.rank} is a follower and needs the owner's address")
        self.address = membership.address
        self._membership, self._tls = membership, tls
        self._endpoint = owner_address(membership.address)
        self._server_name = server_name or self._endpoint[0]
        self._claim = Claim(membership.rank, membership.size, secrets.token_bytes(16)).pack()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._closed = threading.Event()
        self._joined = False
        self._idle.append(self._connect(time.monotonic() + membership.timeout))

    def send(self, key: str, decision: bytes, timeout: float, /) -> None:
        """Raise: that is the owner's part."""
        del key, decision, timeout
        raise ZKDVError("a follower decides nothing")

    def receive(self, key: str, timeout: float, /) -> bytes:
        """Return the decision of a round (`zkdv.transport.Transport`)."""
        deadline = time.monotonic() + timeout
        with self._lock:
            connection = self._idle.pop() if self._idle and not self._closed.is_set() else None
        connection = connection or self._connect(deadline)
        try:
            with suppress(OSError):  # Why the owner has left may still be there to be read.
                connection.send(messages.WANT + key.encode(), deadline)
            kind, body = connection.next_message(deadline)
            if kind == messages.GOODBYE:
                raise ZKDVError(f"the owner, rank 0, is gone: {messages.text(body)}")
            if kind != messages.DECISION:
                raise FramingError("a message that does not belong here")
            connection.send(messages.TAKEN, deadline)
        except TimeoutError:
            raise TimeoutError(f"no decision from the owner, rank 0, in {timeout:g} s") from None
        except (OSError, EOFError) as error:
            if self._closed.is_set():
                raise ZKDVError(f"the control of rank {self._membership.rank} was closed meanwhile") from None
            raise ZKDVError(f"the owner, rank 0, is gone: its connection broke ({type(error).__name__})") from error
        with self._lock:
            self._idle.append(connection)
        return body

    def close(self, reason: str, /) -> None:
        """Leave the run (`zkdv.transport.Transport`)."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            connections, self._open = self._open, set()
            idle, self._idle = self._idle, []
        # A TLS connection is not for two threads at once: one that waits gets no farewell.
        for connection in idle if self._tls is not None else connections:
            with suppress(OSError):
                connection.send(messages.goodbye(reason), time.monotonic() + FAREWELL_SECONDS)
        for connection in connections:
            connection.close()

    def _connect(self, deadline: float) -> "_Connection":
        """Join, again and again until the owner is there or the time is over."""
        pause, last = FIRST_PAUSE_SECONDS, ""
        while not self._closed.is_set():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(
                    f"rank {self._membership.rank}: no owner at {self.address} in time{last}; the address is that of "
                    "the owner's control"
                )
            try:
                connection = self._shake_hands(min(remaining, messages.HANDSHAKE_SECONDS))
            except ssl.SSLError as error:
                raise ZKDVError(
                    f"rank {self._membership.rank}: no TLS with the owner at {self.address}: {error}"
                ) from error
            except FramingError as error:
                raise ZKDVError(f"rank {self._membership.rank} cannot join at {self.address}: {error}") from error
            except ConnectionRefusedError as error:
                if self._joined:
                    raise ZKDVError("the owner, rank 0, is gone: nothing listens at its address any more") from error
                last = f" ({error})"
            except (OSError, EOFError) as error:
                last = f" ({type(error).__name__}: {error})"
            else:
                return self._keep(connection)
            self._closed.wait(min(pause, max(remaining, 0.0)))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        raise ZKDVError(f"the control of rank {self._membership.rank} is closed")

    def _keep(self, connection: "_Connection") -> "_Connection":
        with self._lock:
            closed = self._closed.is_set()
            if not closed:
                self._open.add(connection)
                self._joined = True
        if closed:
            connection.close()
            raise ZKDVError(f"the control of rank {self._membership.rank} is closed")
        return connection

    def _shake_hands(self, seconds: float) -> "_Connection":
        deadline = time.monotonic() + seconds
        plain = socket.create_connection(self._endpoint, timeout=seconds)
        secured = plain
        try:
            address = socket_address(plain.getpeername())
            tune(plain)
            if self._tls is not None:
                secured = self._tls.wrap_socket(plain, server_hostname=self._server_name)
            initiator = Initiator(
                self._membership.token.encode(),
                address,
                self._claim,
                sends=messages.FROM_FOLLOWER_BYTES,
                reads=messages.FROM_OWNER_BYTES,
            )
            hello = initiator.hello(_read(secured, CHALLENGE_BYTES, deadline))
            _write(secured, hello, deadline)
            connection = _Connection(secured, *initiator.finish(_read(secured, ANSWER_BYTES, deadline)))
            _expect_welcome(*connection.next_message(deadline))
        except BaseException:
            plain.close()
            secured.close()
            raise
        return connection


def _expect_welcome(kind: bytes, body: bytes) -> None:
    if kind != messages.WELCOME:
        raise FramingError(messages.text(body))


class _Connection:
    """A socket with authenticated frames."""

    def __init__(self, connected: socket.socket, sealer: FrameSealer, verifier: FrameVerifier) -> None:
        self._socket, self._sealer, self._verifier = connected, sealer, verifier
        self._sending = threading.Lock()

    def send(self, payload: bytes, deadline: float) -> None:
        # Frames are numbered: sealed and sent under one lock.
        with self._sending:
            _write(self._socket, self._sealer.seal(payload), deadline)

    def next_message(self, deadline: float) -> tuple[bytes, bytes]:
        header = _read(self._socket, HEADER_BYTES, deadline)
        body = _read(self._socket, self._verifier.body_bytes(header), deadline)
        return messages.split(self._verifier.open(body))

    def close(self) -> None:
        # The shutdown ends a read that waits on another thread; closing alone would not.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()


def _read(connected: socket.socket, length: int, deadline: float) -> bytes:
    """Read exactly `length` bytes: each part takes from the same time."""
    parts = bytearray()
    while len(parts) < length:
        connected.settimeout(_remaining(deadline))
        part = connected.recv(length - len(parts))
        if not part:
            raise EOFError("the connection was closed")
        parts += part
    return bytes(parts)


def _write(connected: socket.socket, data: bytes, deadline: float) -> None:
    connected.settimeout(_remaining(deadline))
    connected.sendall(data)


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("the time is over")
    return remaining
