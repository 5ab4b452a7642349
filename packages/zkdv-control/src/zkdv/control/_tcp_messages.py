"""What owner and follower say to each other in the frames of `tcp`, and what each says it is in the handshake."""

import struct
from typing import NamedTuple

from zkdv.framing import CLAIM_BYTES, FramingError
from zkdv.transport import DECISION_BYTES, KEY_BYTES

REASON_BYTES = 512
WELCOME, WANT, DECISION, TAKEN, GOODBYE = b"O", b"W", b"D", b"A", b"B"
"""Owner: you have joined. Follower: the key of a round. Owner: its decision. Follower: I have it. Both: why I leave."""

FROM_OWNER_BYTES = 1 + DECISION_BYTES
FROM_FOLLOWER_BYTES = 1 + max(KEY_BYTES, REASON_BYTES)

HANDSHAKE_SECONDS = 20.0
"""Until who connects has shown that it knows the token."""

FRAME_SECONDS = 20.0
"""From the first byte of a frame to its last."""

_CLAIM = struct.Struct(">II16s8x")


class Claim(NamedTuple):
    """Who a follower says it is.

    Attributes:
        rank: Its rank.
        size: Processes in its run.
        instance: 16 random bytes of the process's control: a second process with this rank has others.
    """

    rank: int
    size: int
    instance: bytes

    def pack(self) -> bytes:
        """As `CLAIM_BYTES` of the hello."""
        return _CLAIM.pack(*self)

    @classmethod
    def unpack(cls, claim: bytes) -> "Claim":
        """From `CLAIM_BYTES` of the hello."""
        return cls(*_CLAIM.unpack(claim[:CLAIM_BYTES]))


def goodbye(reason: str) -> bytes:
    """The message that this side leaves, and why."""
    return GOODBYE + reason.encode()[:REASON_BYTES]


def split(payload: bytes) -> tuple[bytes, bytes]:
    """The kind of a message and what it says."""
    if not payload:
        raise FramingError("a message without a kind")
    return payload[:1], payload[1:]


def text(body: bytes) -> str:
    """What a message says, in one printable line."""
    return "".join(sign if sign.isprintable() else "?" for sign in body.decode(errors="replace"))
