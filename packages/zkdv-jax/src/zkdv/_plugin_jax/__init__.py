"""What the JAX frontend declares to the plugin registry; imports no framework."""

from zkdv.hooks import Declarations, hookimpl


@hookimpl
def zkdv_lowerings() -> Declarations:
    """The forms of the commit call, by the platform that takes them; `portable` is for every other."""
    return {
        "jax/commit/cpu": "zkdv.jax._lowering_cpu:commit",
        "jax/commit/portable": "zkdv.jax._lowering_portable:commit",
    }


@hookimpl
def zkdv_tensor_files() -> Declarations:
    """Checkpoints that Orbax wrote."""
    return {"orbax": "zkdv.jax._orbax_files:read"}


@hookimpl
def zkdv_transports() -> Declarations:
    """The key-value store of the coordination service."""
    return {"jax-kv": "zkdv.jax._coordination:JAX_KV"}


@hookimpl
def zkdv_frontends() -> Declarations:
    """What executes updates again that this frontend has recorded."""
    return {"whitebox-jax": "zkdv.jax._audit:JAXAudit"}
