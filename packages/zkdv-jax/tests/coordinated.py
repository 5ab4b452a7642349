"""Brings processes together as JAX does, for the tests of `jax-kv`."""

import jax


def prepare(rank, size, rendezvous):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(rendezvous, size, rank)
