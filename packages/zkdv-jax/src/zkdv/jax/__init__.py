"""The JAX frontend of ZKDV."""
