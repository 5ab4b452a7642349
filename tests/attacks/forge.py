"""Records read, changed, chained and signed without zkdv: what it takes to make a transcript say something else.

CBOR, COSE and digests are made here and with `cbor2`, `cryptography` and `blake3`, so that a cheat and its finder share
no code.
"""

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import cbor2
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

RECORD_AAD, RECEIPT_AAD = b"zkdv 1 record", b"zkdv 1 receipt"
PROTECTED = bytes.fromhex("a10127")
SEQ, PREV, KIND, BODY = 1, 2, 3, 4
SIGNED_BY_IDENTITY = {"root", "resume"}


@dataclass(frozen=True)
class Record:
    """What a record says."""

    kind: str
    body: dict[str, Any]

    def but(self, **changes: Any) -> Self:
        """The same with other fields; a field that becomes `...` is left out. `_` stands for `-` in names."""
        body = self.body | {name.replace("_", "-"): value for name, value in changes.items()}
        return type(self)(self.kind, {name: value for name, value in body.items() if value is not ...})


def digest(record: bytes) -> bytes:
    return blake3(record).digest()


def key(name: str) -> Ed25519PrivateKey:
    """The key of this name."""
    return Ed25519PrivateKey.from_private_bytes(blake3(name.encode()).digest())


def public(private: Ed25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def split(data: bytes) -> list[bytes]:
    """The records of a file, as bytes."""
    stream, records = io.BytesIO(data), []
    decoder = cbor2.CBORDecoder(stream)
    while (start := stream.tell()) < len(data):
        decoder.decode()
        records.append(data[start : stream.tell()])
    return records


def payload(record: bytes) -> bytes:
    return cbor2.loads(record).value[2]


def read(record: bytes) -> Record:
    fields = cbor2.loads(payload(record))
    return Record(fields[KIND], fields[BODY])


def seal(content: bytes, signer: Ed25519PrivateKey, aad: bytes = RECORD_AAD) -> bytes:
    """A `COSE_Sign1` (RFC 9052) with the fixed headers."""
    signature = signer.sign(encode(["Signature1", PROTECTED, aad, content]))
    return b"\xd2" + encode([PROTECTED, {}, content, signature])


@dataclass(frozen=True)
class Style:
    """Ways to encode the same value otherwise than RFC 8949, section 4.2.1, asks for."""

    long_integers: bool = False
    long_lengths: bool = False
    long_floats: bool = False
    integers_as_floats: bool = False
    other_nan: bool = False
    backwards: bool = False
    indefinite: bool = False
    tagged_text: bool = False
    first_key_twice: bool = False


DETERMINISTIC = Style()


def encode(value: Any, style: Style = DETERMINISTIC) -> bytes:
    """CBOR: deterministic, unless a style asks for something else."""
    return b"".join(_encode(value, style))


def _encode(value: Any, style: Style) -> Iterator[bytes]:  # noqa: PLR0912 (one case for each type)
    match value:
        case bool() | None:
            yield {False: b"\xf4", True: b"\xf5", None: b"\xf6"}[value]
        case int() if style.integers_as_floats:
            yield from _encode(float(value), style)
        case int():
            yield (
                _head(1, -1 - value, longer=style.long_integers)
                if value < 0
                else _head(0, value, longer=style.long_integers)
            )
        case float():
            yield _float(value, style)
        case bytes():
            yield from _string(2, value, style)
        case str():
            if style.tagged_text:
                yield b"\xc1"
            yield from _string(3, value.encode(), style)
        case list() | tuple():
            yield b"\x9f" if style.indefinite else _head(4, len(value), longer=style.long_lengths)
            for item in value:
                yield from _encode(item, style)
            yield b"\xff" * style.indefinite
        case dict():
            entries = sorted((encode(name, style), encode(item, style)) for name, item in value.items())
            if style.first_key_twice:
                entries = entries[:1] + entries
            yield b"\xbf" if style.indefinite else _head(5, len(entries), longer=style.long_lengths)
            for name, item in reversed(entries) if style.backwards else entries:
                yield name + item
            yield b"\xff" * style.indefinite
        case _:
            raise TypeError(f"{value!r} has no CBOR here")


def _string(major: int, text: bytes, style: Style) -> Iterator[bytes]:
    if style.indefinite and text:
        yield bytes([major << 5 | 31]) + _head(major, len(text)) + text + b"\xff"
    else:
        yield _head(major, len(text), longer=style.long_lengths) + text


def _head(major: int, argument: int, *, longer: bool = False) -> bytes:
    sizes = [(24, 0), (2**8, 1), (2**16, 2), (2**32, 4), (2**64, 8)]
    width = next(width for bound, width in sizes if argument < bound)
    if longer:
        width = {0: 1, 1: 2, 2: 4}.get(width, 8)
    if width == 0:
        return bytes([major << 5 | argument])
    return bytes([major << 5 | 24 + (1, 2, 4, 8).index(width)]) + argument.to_bytes(width, "big")


def _float(value: float, style: Style) -> bytes:
    if value != value:  # noqa: PLR0124 (NaN)
        return b"\xf9\x7e\x01" if style.other_nan else b"\xf9\x7e\x00"
    if not style.long_floats:
        for head, form in ((b"\xf9", ">e"), (b"\xfa", ">f")):
            try:
                packed = struct.pack(form, value)
            except OverflowError:
                continue
            if struct.unpack(form, packed)[0] == value:
                return head + packed
    return b"\xfb" + struct.pack(">d", value)


class Forge:
    """Chains and signs whatever it is given.

    Args:
        identity: Signs roots and resumes.
        name: What the session keys follow from.
    """

    def __init__(self, identity: Ed25519PrivateKey, name: str = "forge") -> None:
        self.identity = identity
        self.session = key(f"{name} 0")
        self.records: list[bytes] = []
        self.prev = bytes(32)
        self._name = name
        self._rotations = 0

    @property
    def seq(self) -> int:
        """Number of the next record."""
        return len(self.records)

    @property
    def offset(self) -> int:
        """Offset in the file of the next record."""
        return sum(map(len, self.records))

    def push(self, record: Record, style: Style = DETERMINISTIC) -> bytes:
        """Append what a record says, with the forge's own keys in place of those that it names; give its digest."""
        following = key(f"{self._name} {self._rotations + 1}")
        kind, body = record.kind, dict(record.body)
        if kind == "root":
            body |= {"identity": public(self.identity), "session-key": public(self.session)}
        names_key = {"resume": "session-key", "update": "next-key"}.get(kind)
        if names_key in body:
            body[names_key] = public(following)
        signer = self.identity if kind in SIGNED_BY_IDENTITY else self.session
        pushed = self.push_payload(encode({SEQ: self.seq, PREV: self.prev, KIND: kind, BODY: body}, style), signer)
        if names_key in body:
            self.session = following
            self._rotations += 1
        return pushed

    def push_body(self, kind: str, body: bytes) -> bytes:
        """Append a record whose body is given as it is encoded."""
        head = encode({SEQ: self.seq, PREV: self.prev, KIND: kind, BODY: 0})
        return self.push_payload(head[:-1] + body, self.session)

    def push_payload(self, content: bytes, signer: Ed25519PrivateKey) -> bytes:
        """Append any bytes as a payload."""
        return self.push_bytes(seal(content, signer))

    def push_bytes(self, record: bytes) -> bytes:
        """Append any bytes as a record."""
        self.records.append(record)
        self.prev = digest(record)
        return self.prev
