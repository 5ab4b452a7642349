"""Deterministic CBOR (RFC 8949 §4.2.1) of unsigned integers, bytes, text, lists and maps with text as keys."""

from typing import Any

UNSIGNED, BYTES, TEXT, LIST, MAP = 0, 2, 3, 4, 5
MOST_NESTED = 16


def encode(value: Any) -> bytes:
    """Write a value."""
    match value:
        case bool():
            raise TypeError(value)
        case int():
            return _head(UNSIGNED, value)
        case bytes():
            return _head(BYTES, len(value)) + value
        case str():
            return _head(TEXT, len(value.encode())) + value.encode()
        case list():
            return _head(LIST, len(value)) + b"".join(map(encode, value))
        case dict():
            pairs = sorted((encode(key), encode(item)) for key, item in value.items())
            return _head(MAP, len(value)) + b"".join(key + item for key, item in pairs)
        case _:
            raise TypeError(value)


def decode(data: bytes) -> Any:
    """Read a value; `ValueError` where the bytes are not exactly what `encode` writes."""
    value, rest = _read(data, 0)
    if rest or encode(value) != data:
        raise ValueError("not the deterministic encoding")
    return value


def _head(kind: int, number: int) -> bytes:
    if not 0 <= number < 2**64:
        raise ValueError(number)
    if number < 24:
        return bytes([kind << 5 | number])
    size = next(size for size in (1, 2, 4, 8) if number < 256**size)
    return bytes([kind << 5 | 24 + size.bit_length() - 1]) + number.to_bytes(size, "big")


def _read(data: bytes, depth: int) -> tuple[Any, bytes]:
    if not data or depth > MOST_NESTED:
        raise ValueError("the bytes end, or are nested too deep")
    kind, number, data = data[0] >> 5, data[0] & 31, data[1:]
    if number >= 24:
        size = 1 << (number - 24)
        if number > 27 or len(data) < size:
            raise ValueError("no length")
        number, data = int.from_bytes(data[:size], "big"), data[size:]
    if kind == UNSIGNED:
        return number, data
    if kind in {BYTES, TEXT}:
        if len(data) < number:
            raise ValueError("the bytes end")
        content = data[:number]
        return content if kind == BYTES else content.decode(), data[number:]
    if kind == LIST:
        values = []
        for _ in range(number):
            value, data = _read(data, depth + 1)
            values.append(value)
        return values, data
    if kind == MAP:
        found: dict[str, Any] = {}
        for _ in range(number):
            key, data = _read(data, depth + 1)
            if not isinstance(key, str) or key in found:
                raise ValueError("no key, or one twice")
            found[key], data = _read(data, depth + 1)
        return found, data
    raise ValueError("a kind of item that proofs do not hold")
