"""The owner's end of `tcp`: one thread with an event loop serves every follower, so that none can hold up another."""

import asyncio
import concurrent.futures
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass

from zkdv.control import _tcp_messages as messages
from zkdv.control._rank_names import rank_names
from zkdv.control._tcp_messages import Claim
from zkdv.control._tcp_sockets import tune
from zkdv.errors import ZKDVError
from zkdv.framing import (
    ANSWER_BYTES,
    HEADER_BYTES,
    HELLO_BYTES,
    REFUSED,
    Acceptor,
    FrameSealer,
    FrameVerifier,
    FramingError,
    socket_address,
)
from zkdv.transport import Membership

STRANGERS = 256
"""Connections that have not shown the token yet; one more, and the oldest of them is dropped."""

CONNECTIONS_OF_RANK = 256
"""Rounds that one follower can wait for at a time."""

CLOSING_SECONDS = 5.0


@dataclass(eq=False)
class _Connection:
    """A follower's connection, once it has shown the token."""

    claim: Claim
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sealer: FrameSealer
    verifier: FrameVerifier
    wanted: str | None = None

    def send(self, payload: bytes) -> None:
        """Queue a frame; at most one decision is under way on a connection, which bounds the queue."""
        self.writer.write(self.sealer.seal(payload))


class _Round:
    """A decision on its way to every follower."""

    def __init__(self, key: str, decision: bytes, missing: set[int]) -> None:
        self.key, self.decision, self.missing = key, decision, missing
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def fail(self, message: str) -> None:
        if not self.done.done():
            self.done.set_exception(ZKDVError(message))


class TcpOwner:
    """The owner's transport (`zkdv.transport.Transport`).

    Args:
        membership: The owner's place in the run.
        listen: Numeric host and port to listen on.
        tls: Settings of a TLS server; None: no TLS.

    Raises:
        RuntimeError: The address cannot be listened on.
    """

    def __init__(self, membership: Membership, listen: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        self._membership, self._tls = membership, tls
        self._secret = membership.token.encode()
        self._socket = _listening_socket(listen)
        self.address = socket_address(self._socket.getsockname())
        # All below belongs to the loop's thread.
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._connections: set[_Connection] = set()
        self._instances: dict[int, bytes] = {}
        self._gone: dict[int, str] = {}
        self._wanted: dict[str, dict[int, _Connection]] = {}
        self._rounds: dict[str, _Round] = {}
        self._reason: str | None = None
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="zkdv-control", daemon=True)
        self._thread.start()

    def send(self, key: str, decision: bytes, timeout: float, /) -> None:
        """Give a decision to every follower (`zkdv.transport.Transport`)."""
        current = _Round(key, decision, set(range(1, self._membership.size)))
        self._call(self._begin, current)
        try:
            current.done.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"no answer from {rank_names(set(current.missing))} in {timeout:g} s") from None
        finally:
            with suppress(ZKDVError):
                self._call(self._rounds.pop, key, None)

    def receive(self, key: str, timeout: float, /) -> bytes:
        """Raise: that is a follower's part."""
        del key, timeout
        raise ZKDVError("the owner receives no decisions")

    def close(self, reason: str, /) -> None:
        """Leave the run (`zkdv.transport.Transport`)."""
        with self._closing:
            with suppress(ZKDVError):
                self._call(self._leave, reason)
            if threading.current_thread() is not self._thread:
                self._thread.join(CLOSING_SECONDS + 1)

    def _call(self, function: object, *arguments: object) -> None:
        """Have the loop's thread call a function."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]
        except RuntimeError:  # The loop has ended.
            raise ZKDVError("the owner's control was closed meanwhile") from None

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._fail_rounds("the owner's control was closed meanwhile")
            self._loop.close()
            self._socket.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._socket, limit=4096)
        await self._stop.wait()
        server.close()
        for stranger in list(self._strangers):
            stranger.transport.abort()
        for connection in self._connections:
            connection.writer.close()
        with suppress(Exception):
            async with asyncio.timeout(CLOSING_SECONDS):
                for connection in list(self._connections):
                    with suppress(OSError):
                        await connection.writer.wait_closed()
        for connection in self._connections:
            connection.writer.transport.abort()
        served = asyncio.all_tasks() - {asyncio.current_task()}
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)

    def _leave(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        for connection in self._connections:
            connection.send(messages.goodbye(reason))
        self._fail_rounds(f"the owner's control was closed meanwhile ({reason})")
        self._stop.set()

    def _fail_rounds(self, message: str) -> None:
        for current in self._rounds.values():
            current.fail(message)
        self._rounds.clear()

    def _begin(self, current: _Round) -> None:
        if self._reason is not None:
            current.fail(f"the owner's control is closed ({self._reason})")
            return
        for rank, reason in self._gone.items():
            current.fail(f"rank {rank} is gone: {reason}")
            return
        self._rounds[current.key] = current
        for connection in self._wanted.pop(current.key, {}).values():
            connection.send(messages.DECISION + current.decision)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its first byte to its last."""
        self._strangers[writer] = None
        if len(self._strangers) > STRANGERS:
            next(iter(self._strangers)).transport.abort()
            self._strangers.pop(next(iter(self._strangers)))
        try:
            try:
                async with asyncio.timeout(messages.HANDSHAKE_SECONDS):
                    connection = await self._shake_hands(reader, writer)
            finally:
                self._strangers.pop(writer, None)
            if connection is not None:
                await self._serve_connection(connection)
        except (OSError, EOFError, TimeoutError, FramingError):
            pass  # A stranger; a follower that is lost was noted where it was.
        finally:
            # Not abort: what was said last is still to be sent.
            writer.close()

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Connection | None:
        endpoint = socket_address(writer.get_extra_info("sockname"))
        tune(writer.get_extra_info("socket"))
        if self._tls is not None:
            await writer.start_tls(self._tls, ssl_handshake_timeout=messages.HANDSHAKE_SECONDS)
        acceptor = Acceptor(self._secret, endpoint, sends=messages.FROM_OWNER_BYTES, reads=messages.FROM_FOLLOWER_BYTES)
        writer.write(acceptor.challenge)
        hello = await reader.readexactly(HELLO_BYTES)
        try:
            claim_bytes, answer, sealer, verifier = acceptor.answer(hello)
        except FramingError:
            writer.write(REFUSED.ljust(ANSWER_BYTES, b"\0"))
            raise
        writer.write(answer)
        connection = _Connection(Claim.unpack(claim_bytes), reader, writer, sealer, verifier)
        refusal = self._refusal(connection.claim)
        connection.send(messages.WELCOME if refusal is None else messages.goodbye(refusal))
        return connection if refusal is None else None

    def _refusal(self, claim: Claim) -> str | None:
        """Why a process that knows the token may not take part; None where it may, and then it has its rank."""
        if self._reason is not None:
            return self._reason
        if claim.size != self._membership.size or not 1 <= claim.rank < self._membership.size:
            return f"the run has {self._membership.size} processes, not rank {claim.rank} of {claim.size}"
        if claim.rank in self._gone:
            return f"rank {claim.rank} has left the run"
        if self._instances.setdefault(claim.rank, claim.instance) != claim.instance:
            return f"rank {claim.rank} is taken by another process"
        if sum(connection.claim.rank == claim.rank for connection in self._connections) >= CONNECTIONS_OF_RANK:
            return f"rank {claim.rank} has {CONNECTIONS_OF_RANK} connections already"
        return None

    async def _serve_connection(self, connection: _Connection) -> None:
        self._connections.add(connection)
        reason = "its connection was closed"
        try:
            while (message := await _next_message(connection)) is not None:
                kind, body = message
                if kind == messages.GOODBYE:
                    reason = messages.text(body)
                    break
                self._handle(connection, kind, body)
        except (EOFError, OSError, TimeoutError) as error:
            reason = f"its connection broke ({type(error).__name__})"
        except FramingError as error:
            reason = str(error)
        finally:
            self._connections.discard(connection)
            if connection.wanted is not None:
                self._wanted.get(connection.wanted, {}).pop(connection.claim.rank, None)
                if not self._wanted.get(connection.wanted, True):
                    del self._wanted[connection.wanted]
            self._lose(connection.claim.rank, reason)

    def _handle(self, connection: _Connection, kind: bytes, body: bytes) -> None:
        rank = connection.claim.rank
        if kind == messages.WANT and connection.wanted is None:
            key = _key(body)
            connection.wanted = key
            if key in self._rounds:
                connection.send(messages.DECISION + self._rounds[key].decision)
            elif self._wanted.setdefault(key, {}).setdefault(rank, connection) is not connection:
                raise FramingError("two connections want one round")
        elif kind == messages.TAKEN and connection.wanted is not None:
            current = self._rounds.get(connection.wanted)
            connection.wanted = None
            if current is not None:
                current.missing.discard(rank)
                if not current.missing and not current.done.done():
                    current.done.set_result(None)
        else:
            raise FramingError("a message that does not belong here")

    def _lose(self, rank: int, reason: str) -> None:
        """A follower keeps its connections until it leaves: without one of them it is gone."""
        if self._reason is not None:
            return
        self._gone.setdefault(rank, reason)
        for current in list(self._rounds.values()):
            if rank in current.missing:
                current.fail(f"rank {rank} is gone: {self._gone[rank]}")


def _key(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise FramingError("a key that is no UTF-8") from None


async def _next_message(connection: _Connection) -> tuple[bytes, bytes] | None:
    """The next message; None where the follower has closed the connection between two."""
    # A follower may be silent for as long as it has nothing to ask; a frame that has begun must end.
    first = await connection.reader.read(1)
    if not first:
        return None
    async with asyncio.timeout(messages.FRAME_SECONDS):
        header = first + await connection.reader.readexactly(HEADER_BYTES - 1)
        body = await connection.reader.readexactly(connection.verifier.body_bytes(header))
    return messages.split(connection.verifier.open(body))


def _listening_socket(listen: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
    try:
        return socket.create_server(listen, family=family, backlog=1024)
    except OSError as error:
        raise ZKDVError(f"cannot listen on {listen[0]}, port {listen[1]}: {error}") from error
