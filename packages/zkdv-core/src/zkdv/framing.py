"""Authenticated frames over a byte stream, between two sides that share a secret which never crosses it.

The handshake is a mutual challenge and response: each side shows with HMAC-SHA-256 (RFC 2104) over everything said so
far, both nonces, its role and the acceptor's address among it, that it knows the secret. The keys of the frames, one
for each direction, are derived from the same (HKDF, RFC 5869). Nothing here reads or writes a socket.

    acceptor  -> initiator: challenge   MAGIC, nonce (32)
    initiator -> acceptor:  hello       MAGIC, nonce (32), claim (32), proof (32)
    acceptor  -> initiator: answer      ACCEPTED or REFUSED (1), proof (32)
    both directions:        frames      length of the payload (4), payload, tag (32)

A tag covers the number of the frame, which is not sent: a frame that is replayed, moved, left out or sent back to where
it came from has a wrong tag. Payloads are authenticated, not encrypted.
"""

import hashlib
import hmac
import ipaddress
import secrets
import struct

from zkdv.errors import ZKDVError

__all__ = [
    "ACCEPTED",
    "ANSWER_BYTES",
    "CHALLENGE_BYTES",
    "CLAIM_BYTES",
    "HEADER_BYTES",
    "HELLO_BYTES",
    "REFUSED",
    "TAG_BYTES",
    "Acceptor",
    "FrameSealer",
    "FrameVerifier",
    "FramingError",
    "Initiator",
    "socket_address",
]

MAGIC = b"zkdvctl1"
NONCE_BYTES = 32
CLAIM_BYTES = 32
TAG_BYTES = 32
HEADER_BYTES = 4
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES
HELLO_BYTES = len(MAGIC) + NONCE_BYTES + CLAIM_BYTES + TAG_BYTES
ANSWER_BYTES = 1 + TAG_BYTES
ACCEPTED, REFUSED = b"\x01", b"\x00"


class FramingError(ZKDVError):
    """What the other side sent is not what a side that knows the secret sends here."""


class FrameSealer:
    """Writes the frames of one direction.

    Args:
        key: Key of the direction, 32 bytes.
        limit: Most bytes of a payload.
    """

    def __init__(self, key: bytes, limit: int) -> None:
        self._key, self._limit, self._number = key, limit, 0

    def seal(self, payload: bytes) -> bytes:
        """Return the next frame, to be sent before any that is sealed later.

        Raises:
            FramingError: The payload is too long.
        """
        if len(payload) > self._limit:
            raise FramingError(f"a frame of {len(payload)} bytes is longer than {self._limit}")
        frame = struct.pack(">I", len(payload)) + payload + _tag(self._key, self._number, payload)
        self._number += 1
        return frame


class FrameVerifier:
    """Reads the frames of one direction.

    Args:
        key: Key of the direction, 32 bytes.
        limit: Most bytes of a payload.
    """

    def __init__(self, key: bytes, limit: int) -> None:
        self._key, self._limit, self._number = key, limit, 0

    def body_bytes(self, header: bytes) -> int:
        """Return how many bytes follow a header: to be asked before any memory is set aside for them.

        Args:
            header: The first `HEADER_BYTES` of a frame.

        Raises:
            FramingError: The frame is longer than the limit.
        """
        (length,) = struct.unpack(">I", header)
        if length > self._limit:
            raise FramingError(f"a frame says that it has {length} bytes; the limit is {self._limit}")
        return int(length) + TAG_BYTES

    def open(self, body: bytes) -> bytes:
        """Return the payload of the next frame.

        Args:
            body: What follows the header.

        Raises:
            FramingError: The frame was changed, or is not the next one of this direction and connection.
        """
        payload, tag = body[:-TAG_BYTES], body[-TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(self._key, self._number, payload)):
            raise FramingError("a frame is not authentic: changed, replayed, out of order or from elsewhere")
        self._number += 1
        return payload


class Acceptor:
    """The accepting side of one handshake.

    Args:
        secret: What both sides share, at least 16 bytes.
        address: Where the connection was accepted, by `socket_address`.
        sends: Most bytes of a payload that this side sends.
        reads: Most bytes of a payload that it reads.
    """

    def __init__(self, secret: bytes, address: str, *, sends: int, reads: int) -> None:
        self._secret, self._address, self._sends, self._reads = secret, address, sends, reads
        self.challenge = MAGIC + secrets.token_bytes(NONCE_BYTES)
        """The first message, `CHALLENGE_BYTES`."""

    def answer(self, hello: bytes) -> tuple[bytes, bytes, FrameSealer, FrameVerifier]:
        """Check a hello of `HELLO_BYTES`.

        Returns:
            `(claim, answer, sealer, verifier)`: what the initiator says it is, the message to send, and the two
            directions of the frames that follow.

        Raises:
            FramingError: The initiator does not know the secret, or was talking to another address or acceptor.
        """
        signed, proof = hello[:-TAG_BYTES], hello[-TAG_BYTES:]
        if len(hello) != HELLO_BYTES or signed[: len(MAGIC)] != MAGIC:
            raise FramingError("a hello of another protocol")
        keys = _Keys(self._secret, self._address, self.challenge + signed)
        if not hmac.compare_digest(proof, keys.initiator_proof):
            raise FramingError("a hello without knowledge of the secret")
        answer = ACCEPTED + keys.acceptor_proof
        sealer, verifier = FrameSealer(keys.from_acceptor, self._sends), FrameVerifier(keys.from_initiator, self._reads)
        return signed[-CLAIM_BYTES:], answer, sealer, verifier


class Initiator:
    """The connecting side of one handshake.

    Args:
        secret: What both sides share, at least 16 bytes.
        address: Where the connection leads, by `socket_address`.
        claim: What this side says it is, `CLAIM_BYTES`; authenticated with the rest.
        sends: Most bytes of a payload that this side sends.
        reads: Most bytes of a payload that it reads.
    """

    def __init__(self, secret: bytes, address: str, claim: bytes, *, sends: int, reads: int) -> None:
        self._secret, self._address, self._claim = secret, address, claim
        self._sends, self._reads = sends, reads
        self._keys: _Keys | None = None

    def hello(self, challenge: bytes) -> bytes:
        """Return the reply to a challenge of `CHALLENGE_BYTES`.

        Raises:
            FramingError: It is no challenge of this protocol.
        """
        if len(challenge) != CHALLENGE_BYTES or challenge[: len(MAGIC)] != MAGIC:
            raise FramingError("what listens there speaks another protocol")
        signed = MAGIC + secrets.token_bytes(NONCE_BYTES) + self._claim
        self._keys = _Keys(self._secret, self._address, challenge + signed)
        return signed + self._keys.initiator_proof

    def finish(self, answer: bytes) -> tuple[FrameSealer, FrameVerifier]:
        """Check the answer, `ANSWER_BYTES`, to the hello.

        Returns:
            The two directions of the frames that follow.

        Raises:
            FramingError: The acceptor refused, or does not know the secret itself.
        """
        if self._keys is None:
            raise FramingError("an answer before the hello")
        if answer[:1] != ACCEPTED:
            raise FramingError("what listens there refused this process: the tokens or the addresses differ")
        if not hmac.compare_digest(answer[1:], self._keys.acceptor_proof):
            raise FramingError("what listens there does not know the token")
        return (
            FrameSealer(self._keys.from_initiator, self._sends),
            FrameVerifier(self._keys.from_acceptor, self._reads),
        )


def socket_address(address: tuple[object, ...]) -> str:
    """Return the address of a socket, as both of its ends write it.

    Args:
        address: What `getsockname` says at the accepting end and `getpeername` at the other, for IPv4 or IPv6.
    """
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return f"[{host.compressed}]:{address[1]}" if host.version == 6 else f"{host}:{address[1]}"


class _Keys:
    """What both sides derive from the secret, the acceptor's address and the challenge and hello."""

    def __init__(self, secret: bytes, address: str, said: bytes) -> None:
        root = hmac.digest(MAGIC, secret, hashlib.sha256)
        transcript = hashlib.sha256(address.encode() + b"\n" + said).digest()
        self.initiator_proof = _expand(root, b"initiator proof", transcript)
        self.acceptor_proof = _expand(root, b"acceptor proof", transcript)
        self.from_initiator = _expand(root, b"initiator frames", transcript)
        self.from_acceptor = _expand(root, b"acceptor frames", transcript)


def _expand(root: bytes, purpose: bytes, transcript: bytes) -> bytes:
    """One block of HKDF-Expand (RFC 5869), with the purpose and the transcript as the context."""
    return hmac.digest(root, purpose + b"\0" + transcript + b"\x01", hashlib.sha256)


def _tag(key: bytes, number: int, payload: bytes) -> bytes:
    return hmac.digest(key, struct.pack(">QI", number, len(payload)) + payload, hashlib.sha256)
