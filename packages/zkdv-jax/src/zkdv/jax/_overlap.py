"""What travels with a state: an overlap policy that is no part of its trace, and the proof it was created for."""

from collections.abc import Iterator
from typing import Any, Self

import jax

from zkdv import overlap

__all__ = ["UntracedPolicy", "carry_policy", "policy_of", "proofs_of"]


class UntracedPolicy(int):
    """A policy that compares equal to any other of its kind.

    As static data of a pytree it would otherwise make every policy a program of its own: JAX compares static data to
    find a compiled program again. Compared with a `zkdv.overlap.Policy` it is that policy or not.

    Args:
        policy: The policy, or its number.

    Raises:
        ValueError: It is none.
    """

    def __new__(cls, policy: int) -> Self:
        """Make it of a policy or its number."""
        return super().__new__(cls, overlap.Policy(int(policy)))

    @property
    def policy(self) -> overlap.Policy:
        """The policy itself."""
        return overlap.Policy(int(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntracedPolicy) or int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(UntracedPolicy)

    def __repr__(self) -> str:
        return repr(self.policy)


def policy_of(values: Any) -> overlap.Policy | None:
    """Return the policy of the first value that carries one."""
    for value in values:
        carried = getattr(value, "zkdv_overlap", None)
        if isinstance(carried, UntracedPolicy):
            return carried.policy
    return None


def proofs_of(values: Any) -> Iterator[str]:
    """Return the folder of the proof that each state among `values` was created for, where one is named."""

    def names_proof(value: Any) -> bool:
        return isinstance(getattr(value, "zkdv_proof", None), str)

    for value in jax.tree.leaves(values, is_leaf=names_proof):
        if names_proof(value):
            yield value.zkdv_proof


def carry_policy(result: Any, policy: overlap.Policy) -> Any:
    """Return a function's result with `policy` in every state that carries one."""

    def carries(value: Any) -> bool:
        return isinstance(getattr(value, "zkdv_overlap", None), UntracedPolicy)

    def carry(value: Any) -> Any:
        return value.replace(zkdv_overlap=policy) if carries(value) else value

    return jax.tree.map(carry, result, is_leaf=carries)
