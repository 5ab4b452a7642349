"""The hooks that a plugin can implement: what each is asked for, and what it answers.

A plugin is a module that an entry point in the group `zkdv` names. Its hooks return *names of objects*,
`{"name": "package.module:object"}`, which `zkdv.plugins` resolves when the object is used: so that looking at a plugin
imports neither a framework nor the plugin's own machinery. Keep the module itself just as light.

    from zkdv.hooks import hookimpl

    @hookimpl
    def zkdv_signers():
        return {"vault": "acme_zkdv_vault.signing:open_signer"}

docs/guides/plugins.md has a complete example of each.
"""

from typing import Protocol

import pluggy

__all__ = [
    "HOOKS",
    "PROJECT",
    "Declarations",
    "Signer",
    "hookimpl",
    "zkdv_challengers",
    "zkdv_frontends",
    "zkdv_lowerings",
    "zkdv_optimizers",
    "zkdv_signers",
    "zkdv_tensor_files",
    "zkdv_transports",
]

PROJECT = "zkdv"
"""Name of the entry-point group, and of the project to pluggy."""

HOOKS = (
    "zkdv_challengers",
    "zkdv_frontends",
    "zkdv_lowerings",
    "zkdv_optimizers",
    "zkdv_signers",
    "zkdv_tensor_files",
    "zkdv_transports",
)
"""Every hook, in the order that they are listed."""

Declarations = dict[str, str]
"""What a hook returns: object names (`package.module:object`) by the name that a user or a frontend asks for."""

hookimpl = pluggy.HookimplMarker(PROJECT)
_hookspec = pluggy.HookspecMarker(PROJECT)


class Signer(Protocol):
    """An identity key that stays where it is: in a hardware token, an agent, a key service."""

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, 32 bytes (RFC 8032)."""

    def sign(self, message: bytes, /) -> bytes:
        """Sign `message` with Ed25519 as it is, not a digest of it, and return the 64 bytes (RFC 8032)."""


@_hookspec
def zkdv_signers() -> Declarations:
    """Keepers of identity keys, by the name before the colon in `identity="name:argument"` and `ZKDV_IDENTITY`.

    Returns:
        Names of callables `(argument: str) -> Signer`. `argument` is the text after the colon; it may stand in shell
        histories and process lists, so it names a key and is never a secret. A callable that cannot open the key raises
        an exception whose message says what to do.
    """
    return {}  # Never called: pluggy reads the signature.


@_hookspec
def zkdv_lowerings() -> Declarations:
    """How a framework's operator, or an operation of ours, is computed on one platform.

    Returns:
        Names of objects by `framework/operation/platform`, for one `jax/commit/cpu`. What kind of object an operation
        takes is the frontend's to say (docs/guides/plugins.md).
    """
    return {}  # Never called: pluggy reads the signature.


@_hookspec
def zkdv_optimizers() -> Declarations:
    """How the steps of Torch optimizer classes are lowered into exported programs.

    Returns:
        Names of `zkdv.torch.optimizers.FunctionalOptimizer` objects by the full name of the class that each is for,
        `cls.__module__` and `cls.__qualname__` joined by a dot, for one `torch.optim.adamw.AdamW`.
    """
    return {}  # Never called: pluggy reads the signature.


@_hookspec
def zkdv_tensor_files() -> Declarations:
    """Readers of files that hold tensors, by the name in `zkdv match --reader`.

    `orbax` and `torch` are also asked for by what a file holds.

    Returns:
        Names of callables `(path: pathlib.Path) -> zkdv.tensor_files.Tensors`. A reader converts nothing, runs no code
        out of the file and raises an exception whose message says what is wrong with it.
    """
    return {}  # Never called: pluggy reads the signature.


@_hookspec
def zkdv_transports() -> Declarations:
    """What carries the owner's decisions to followers, by the name in `HostControl(transport=...)`.

    Returns:
        Names of callables `(membership: zkdv.transport.Membership) -> zkdv.transport.Transport`
        (docs/guides/transports.md).
    """
    return {}  # Never called: pluggy reads the signature.


@_hookspec
def zkdv_challengers() -> Declarations:
    """Sources of the randomness that decides what is checked, by the name in `ZKDVConfig(challenger="name:argument")`.

    Returns:
        Names of callables `(argument: str) -> zkdv.Challenger`.

    This version of ZKDV lists challengers and refuses to run with them (`ZKDVConfig.refuse_unavailable`).
    """
    return {}  # Never called: pluggy reads the signature.


@_hookspec
def zkdv_frontends() -> Declarations:
    """What executes the updates of a prover again in an audit, by the prover's name in a transcript's first record.

    Returns:
        Names of callables `() -> zkdv.auditing.frontend.AuditFrontend`, for one by `whitebox-jax`. An audit calls them
        in a process of its own.
    """
    return {}  # Never called: pluggy reads the signature.
