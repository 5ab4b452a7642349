"""Challenge and response and authenticated frames, without sockets."""

import hashlib
import hmac
import struct

import pytest

from zkdv.framing import (
    ACCEPTED,
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    HEADER_BYTES,
    HELLO_BYTES,
    REFUSED,
    TAG_BYTES,
    Acceptor,
    FrameSealer,
    FrameVerifier,
    FramingError,
    Initiator,
    socket_address,
)

SECRET, ADDRESS, CLAIM = b"a secret of enough bytes", "127.0.0.1:7000", b"rank 1 of 2".ljust(32, b"\0")
LIMITS = {"sends": 100, "reads": 100}


def joined(secret=SECRET, address=ADDRESS):
    """Both sides after a handshake: `((sealer, verifier) of the acceptor, those of the initiator)`."""
    acceptor, initiator = Acceptor(SECRET, ADDRESS, **LIMITS), Initiator(secret, address, CLAIM, **LIMITS)
    hello = initiator.hello(acceptor.challenge)
    claim, answer, sealer, verifier = acceptor.answer(hello)
    assert (claim, len(acceptor.challenge), len(hello), len(answer)) == (
        CLAIM,
        CHALLENGE_BYTES,
        HELLO_BYTES,
        ANSWER_BYTES,
    )
    return (sealer, verifier), initiator.finish(answer)


def opened(verifier, frame):
    assert verifier.body_bytes(frame[:HEADER_BYTES]) == len(frame) - HEADER_BYTES
    return verifier.open(frame[HEADER_BYTES:])


def test_frames_arrive_in_both_directions():
    (from_acceptor, at_acceptor), (from_initiator, at_initiator) = joined()
    for payload in (b"", b"one", b"x" * 100):
        assert opened(at_initiator, from_acceptor.seal(payload)) == payload
        assert opened(at_acceptor, from_initiator.seal(payload)) == payload


def test_keys_and_tags_are_those_of_the_description():
    """HMAC and HKDF written out a second time, from the module's own text."""
    acceptor, initiator = Acceptor(SECRET, ADDRESS, **LIMITS), Initiator(SECRET, ADDRESS, CLAIM, **LIMITS)
    hello = initiator.hello(acceptor.challenge)
    _, answer, sealer, _ = acceptor.answer(hello)
    root = hmac.new(b"zkdvctl1", SECRET, hashlib.sha256).digest()
    said = ADDRESS.encode() + b"\n" + acceptor.challenge + hello[:-32]
    context = b"\0" + hashlib.sha256(said).digest() + b"\x01"
    assert hello[-32:] == hmac.new(root, b"initiator proof" + context, hashlib.sha256).digest()
    assert answer == b"\x01" + hmac.new(root, b"acceptor proof" + context, hashlib.sha256).digest()
    key = hmac.new(root, b"acceptor frames" + context, hashlib.sha256).digest()
    for number, payload in enumerate((b"first", b"second")):
        tag = hmac.new(key, struct.pack(">QI", number, len(payload)) + payload, hashlib.sha256).digest()
        assert sealer.seal(payload) == struct.pack(">I", len(payload)) + payload + tag


@pytest.mark.parametrize("difference", [{"secret": SECRET + b"!"}, {"address": "127.0.0.1:7001"}])
def test_other_secret_or_address_is_refused(difference):
    with pytest.raises(FramingError, match="without knowledge of the secret"):
        joined(**difference)


def test_every_changed_bit_of_the_handshake_is_refused():
    acceptor, initiator = Acceptor(SECRET, ADDRESS, **LIMITS), Initiator(SECRET, ADDRESS, CLAIM, **LIMITS)
    hello = initiator.hello(acceptor.challenge)
    for bit in range(8 * len(hello)):
        with pytest.raises(FramingError):
            acceptor.answer(flipped(hello, bit))
    _, answer, _, _ = acceptor.answer(hello)
    for bit in range(8 * len(answer)):
        with pytest.raises(FramingError):
            initiator.finish(flipped(answer, bit))
    initiator.finish(answer)


def test_handshake_is_not_to_be_replayed_or_reflected():
    acceptor, initiator = Acceptor(SECRET, ADDRESS, **LIMITS), Initiator(SECRET, ADDRESS, CLAIM, **LIMITS)
    hello = initiator.hello(acceptor.challenge)
    _, answer, _, _ = acceptor.answer(hello)
    with pytest.raises(FramingError):  # To the next connection.
        Acceptor(SECRET, ADDRESS, **LIMITS).answer(hello)
    with pytest.raises(FramingError, match="does not know the token"):  # To who said it.
        initiator.finish(ACCEPTED + hello[-TAG_BYTES:])
    with pytest.raises(FramingError, match="refused"):
        initiator.finish(REFUSED + bytes(TAG_BYTES))
    other = Initiator(SECRET, ADDRESS, CLAIM, **LIMITS)
    other.hello(acceptor.challenge)
    with pytest.raises(FramingError, match="does not know the token"):  # To another who was asked the same.
        other.finish(answer)


@pytest.mark.parametrize(
    "challenge", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"zkdvctl2".ljust(CHALLENGE_BYTES, b"\0")]
)
def test_challenge_of_another_protocol_is_refused(challenge):
    with pytest.raises(FramingError, match="another protocol"):
        Initiator(SECRET, ADDRESS, CLAIM, **LIMITS).hello(challenge)


def test_replayed_reordered_left_out_and_reflected_frames_are_refused():
    key = bytes(range(32))
    sealer = FrameSealer(key, 100)
    first, second, third = (sealer.seal(b"%d" % number) for number in range(3))
    for good, bad in (([], second), ([first], first), ([first], third), ([first, second, third], first)):
        verifier = FrameVerifier(key, 100)
        for frame in good:
            opened(verifier, frame)
        with pytest.raises(FramingError, match="not authentic"):
            opened(verifier, bad)
    (from_acceptor, at_acceptor), _ = joined()
    with pytest.raises(FramingError, match="not authentic"):
        opened(at_acceptor, from_acceptor.seal(b"back"))


def test_every_changed_bit_of_a_frame_is_refused():
    key = bytes(range(32))
    frame = FrameSealer(key, 100).seal(b"decision")
    for bit in range(8 * HEADER_BYTES, 8 * len(frame)):
        with pytest.raises(FramingError, match="not authentic"):
            FrameVerifier(key, 100).open(flipped(frame, bit)[HEADER_BYTES:])
    for bit in range(8 * HEADER_BYTES):
        verifier, changed = FrameVerifier(key, 100), flipped(frame, bit)
        with pytest.raises(
            FramingError
        ):  # Another length: refused as too long, or with what is then taken for the frame.
            verifier.open(frame[HEADER_BYTES:].ljust(200, b"\0")[: verifier.body_bytes(changed[:HEADER_BYTES])])


@pytest.mark.parametrize("length", [101, 1 << 31, 0xFFFFFFFF])
def test_length_beyond_the_limit_is_refused_from_the_header(length):
    with pytest.raises(FramingError, match=f"{length} bytes; the limit is 100"):
        FrameVerifier(bytes(32), 100).body_bytes(struct.pack(">I", length))
    with pytest.raises(FramingError, match="101 bytes is longer than 100"):
        FrameSealer(bytes(32), 100).seal(b"x" * 101)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (("127.0.0.1", 7000), "127.0.0.1:7000"),
        (("::ffff:127.0.0.1", 7000, 0, 0), "127.0.0.1:7000"),
        (("0:0:0:0:0:0:0:1", 7000, 0, 0), "[::1]:7000"),
        (("fe80::1%eth0", 7000, 0, 2), "[fe80::1]:7000"),
    ],
)
def test_both_ends_of_a_socket_write_its_address_alike(address, expected):
    assert socket_address(address) == expected


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
