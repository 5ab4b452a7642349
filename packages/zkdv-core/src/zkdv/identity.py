"""Identity keys: where a run's signing key comes from, and how a verifier names the key that it expects.

An identity is a long-lived Ed25519 key that signs a run's first record. It is a PKCS#8 PEM file that only its owner can
read, or stays with a signer plugin. Which one is used, first match first:

1. `ZKDVConfig(identity=…)`, or the argument of `zkdv key show`;
2. the environment variable `ZKDV_IDENTITY`;
3. `identity.pem` in the user configuration folder, which is created on first use.

The first two name a file, or a signer plugin's key as `name:argument`; a file whose name looks like that is given with
a folder before it (`./name:argument`).
"""

import base64
import binascii
import os
import re
import sys
from pathlib import Path

import platformdirs

from zkdv._native import Identity
from zkdv._native_errors import native_errors
from zkdv.errors import ZKDVError

__all__ = ["ENVIRONMENT_VARIABLE", "create", "default_path", "load", "named_by_environment", "parse_public_key"]

ENVIRONMENT_VARIABLE = "ZKDV_IDENTITY"

PUBLIC_KEY_BYTES = 32

_PEM_LIMIT_BYTES = 64 * 1024
# One letter before a colon is a drive, not a plugin.
_SIGNER_REFERENCE = re.compile(r"(?P<signer>[A-Za-z][A-Za-z0-9._-]+):(?P<argument>.*)", re.DOTALL)
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s+(.*?)\s*-----END \1-----", re.DOTALL)
# RFC 8410: SubjectPublicKeyInfo of an Ed25519 key, up to the key itself.
_ED25519_PUBLIC_KEY_INFO = bytes.fromhex("302a300506032b6570032100")


def default_path() -> Path:
    """Your own key's file, `identity.pem` in the platform's user configuration folder; it need not exist."""
    return platformdirs.user_config_path("zkdv") / "identity.pem"


def named_by_environment() -> str | None:
    """What the environment variable `ZKDV_IDENTITY` names; None where it is unset or empty."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or None


def load(source: Path | str | None = None) -> Identity:
    """Load an identity key; create your own, with a line on standard error that says so, where none is named.

    Args:
        source: A PKCS#8 PEM file, or `"signer-plugin:argument"`; None: the environment variable `ZKDV_IDENTITY`, else
            the file of `default_path`, created where it does not exist.

    Returns:
        The identity.

    Raises:
        ZKDVError: The file does not exist, is no key, or others can read it; or the signer plugin does not give it.
    """
    origin = ""
    if source is None and (named := named_by_environment()):
        source, origin = named, f" ({ENVIRONMENT_VARIABLE} names it)"
    if source is None:
        path = default_path()
        return _load_file(path, "") if path.exists() else _create_with_notice(path)
    if isinstance(source, str) and (reference := _SIGNER_REFERENCE.fullmatch(source)):
        return _from_signer(reference["signer"], reference["argument"])
    return _load_file(Path(source).expanduser(), origin)


def create(path: Path | None = None) -> Identity:
    """Create an identity key in a new file that only its owner can read.

    Args:
        path: Where to; default: `default_path`. Missing folders are created.

    Returns:
        The identity.

    Raises:
        ZKDVError: There is a file already, which is left as it is; or it cannot be written.
    """
    with native_errors():
        return Identity.generate(default_path() if path is None else path)


def parse_public_key(key: Path | str | bytes) -> bytes:
    """Read an Ed25519 public key.

    Args:
        key: 64 hexadecimal digits, or a PEM file with a `PUBLIC KEY` block, or the 32 bytes themselves.

    Returns:
        The key, 32 bytes (RFC 8032).

    Raises:
        ValueError: It is none of them, the file cannot be read, or holds another kind of key.
    """
    if isinstance(key, bytes):
        if len(key) != PUBLIC_KEY_BYTES:
            raise ValueError(f"a public key of {len(key)} bytes; an Ed25519 public key has {PUBLIC_KEY_BYTES}")
        return key
    if isinstance(key, str) and re.fullmatch(r"[0-9A-Fa-f]{64}", key):
        return bytes.fromhex(key)
    path = Path(key)
    try:
        with path.open("rb") as file:
            text = file.read(_PEM_LIMIT_BYTES).decode("ascii", errors="replace")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(
            f"{str(key)!r} is no public key: neither 64 hexadecimal digits nor a readable PEM file ({reason})"
        ) from None
    block = _PEM_BLOCK.search(text)
    if block is None:
        raise ValueError(f"{path} holds no PEM block; a public key file begins with -----BEGIN PUBLIC KEY-----")
    if block[1] != "PUBLIC KEY":
        hint = "; `zkdv key show` prints the public key of a private one" if "PRIVATE KEY" in block[1] else ""
        raise ValueError(f"{path} holds a {block[1]} block, not a PUBLIC KEY{hint}")
    try:
        encoded = base64.b64decode("".join(block[2].split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{path}: the PUBLIC KEY block is not base64 ({error})") from None
    if not encoded.startswith(_ED25519_PUBLIC_KEY_INFO) or len(encoded) != len(_ED25519_PUBLIC_KEY_INFO) + 32:
        raise ValueError(f"{path} holds a public key of another kind; transcripts are signed with Ed25519 (RFC 8410)")
    return encoded[len(_ED25519_PUBLIC_KEY_INFO) :]


def _create_with_notice(path: Path) -> Identity:
    try:
        identity = create(path)
    except ZKDVError as error:
        # Where another process was first, its key is ours too.
        if path.exists():
            return _load_file(path, "")
        raise ZKDVError(
            f"{error}; `zkdv key new PATH` creates one elsewhere, for {ENVIRONMENT_VARIABLE}"
        ) from error.__cause__
    print(  # noqa: T201 (the one thing that is told unasked: a key came to be)
        f"zkdv: created your identity key {path} (public key {identity.public_key.hex()}); "
        "keep it private, and a copy of it safe",
        file=sys.stderr,
    )
    return identity


def _load_file(path: Path, origin: str) -> Identity:
    hint = "" if path.exists() else "; `zkdv key new PATH` creates one"
    with native_errors(f"{origin}{hint}"):
        return Identity.load(path)


def _from_signer(signer: str, argument: str) -> Identity:
    from zkdv import plugins  # noqa: PLC0415 (a key in a file needs no registry)

    opened = plugins.registry().resolve("zkdv_signers", signer)
    distribution = plugins.registry().find("zkdv_signers", signer).distribution
    if not callable(opened):
        raise plugins.PluginError(f"the signer {signer!r} of {distribution} is {opened!r}, which is not callable")
    try:
        key = opened(argument)
        public_key = bytes(key.public_key)
        return Identity.external(public_key, key.sign)
    except Exception as error:
        raise ZKDVError(
            f"the signer {signer!r} of {distribution} does not give the key {argument!r}: {error}"
        ) from error
