"""The attest program of a run: the user's own, more portable statement of the update that each transaction makes."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zkdv.errors import ZKDVError, warn
from zkdv.jax import _replay_export
from zkdv.jax._committed_leaves import CommittedLeaves
from zkdv.jax._staging import StagedFunction, holds_transition
from zkdv.jax._transaction import open_transactions
from zkdv.signature import FunctionSignature

__all__ = ["AttestFunction", "SealedAttest"]

API = "ZKDV.attest"
ARGUMENTS = ("params_before", "opt_state_before", "batch", "parameter_index", "optimizer_state_index")
RESULTS = ("selected_delta", "selected_post_state")


@dataclass(frozen=True)
class SealedAttest:
    """An attest program, exported: takes parameter, optimizer and batch leaves and two uint64 indices.

    Attributes:
        exported: The serialized program and its text.
        compiler_options: Options for compiling it.
    """

    exported: _replay_export.SealedProgram
    compiler_options: dict[str, Any] | None

    @property
    def blob(self) -> bytes:
        """The serialized program."""
        return self.exported.blob

    @property
    def text(self) -> bytes:
        """Its StableHLO text without locations."""
        return self.exported.text

    def record(self) -> dict[str, Any]:
        """Return what the program record says beside the digests."""
        return self.exported.record(
            "attest", "parameters, optimizer, batch, parameter index, optimizer index -> delta, optimizer element"
        )

    def run(self, leaves: Sequence[Any], parameter_index: int, optimizer_state_index: int) -> tuple[float, float]:
        """Run the sealed bytes.

        Args:
            leaves: State leaves before the update, parameters first, and batch leaves, as committed.
            parameter_index: The drawn coordinate; 0 where there are no parameters.
            optimizer_state_index: The drawn coordinate; 0 where there is no optimizer state.

        Returns:
            Delta and optimizer element, exactly as binary64.
        """
        # Without it JAX cuts 64-bit indices to 32 bits.
        with jax.enable_x64(True):  # noqa: FBT003 (its parameter is positional)
            delta, element = self._compiled(*leaves, np.uint64(parameter_index), np.uint64(optimizer_state_index))
        return float(delta), float(element)

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        return jax.jit(_replay_export.load(self.blob).call, compiler_options=self.compiler_options)


class AttestFunction:
    """What `ZKDV.attest` returns: a call runs the function by itself, compiled, on two indices of 64 bits.

    Args:
        function: The user's function.
        options: Options of `jax.jit`.

    Raises:
        TypeError: The function takes other arguments than an attest program.
        ValueError: An option makes an argument static.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        signature = FunctionSignature(function, API)
        self.name = signature.name
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        _refuse_other_arguments(function, signature)
        self._function = function
        self._options = _checked_options(dict(options), self.name)
        self._compiler_options = self._options.pop("compiler_options", None)
        # By whether 64-bit types are on.
        self._direct: dict[bool, Callable[..., Any]] = {}

    def __call__(
        self,
        params_before: Any,
        opt_state_before: Any,
        batch: Any,
        parameter_index: Any,
        optimizer_state_index: Any,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the delta of one parameter and one element of the optimizer state after the update.

        Args:
            params_before: The parameters before the update.
            opt_state_before: All other state before the update.
            batch: The batch.
            parameter_index: Which element of all parameters, a scalar integer.
            optimizer_state_index: Which element of all other state, a scalar integer.

        Raises:
            ZKDVError: The function returns something else than two scalar floats.
        """
        setting = _has_64_bit_types()
        if setting not in self._direct:
            program = self._with_own_types(self._results)
            self._direct[setting] = jax.jit(program, compiler_options=self._compiler_options, **self._options)
        with jax.enable_x64(True):  # noqa: FBT003 (its parameter is positional)
            indices = (jnp.asarray(index, np.uint64) for index in (parameter_index, optimizer_state_index))
            delta, element = self._direct[setting](params_before, opt_state_before, batch, *indices)
        return delta, element

    def seal(self, staged: StagedFunction, inputs: Sequence[Any]) -> SealedAttest:
        """Export the function for the state and batch of a training function.

        Args:
            staged: The training function.
            inputs: Its state leaves, parameters first, and batch leaves; only shapes and dtypes matter.

        Raises:
            ZKDVError: The function returns something else than two scalar floats, declares an update itself, or
                can't be exported.
        """
        leaves = CommittedLeaves.of(inputs)
        index = jax.ShapeDtypeStruct((), np.uint64)
        program = self._with_own_types(self._over_leaves(staged, leaves))
        with jax.enable_x64(True):  # noqa: FBT003 (its parameter is positional)
            with open_transactions(self.name) as opened:
                jaxpr = jax.make_jaxpr(program)(*leaves.abstract, index, index)
                if opened or holds_transition(jaxpr.jaxpr):
                    raise ZKDVError(
                        f"{API}: {self.name} declares an update itself; it computes the update with plain functions "
                        "(with Optax, tx.update and optax.apply_updates), without a Transaction or apply_gradients"
                    )
            sealed = _replay_export.seal(program, [*leaves.abstract, index, index], f"attest ({self.name})")
        return SealedAttest(sealed, self._compiler_options)

    def _over_leaves(self, staged: StagedFunction, leaves: CommittedLeaves) -> Callable[..., Any]:
        """Return the function over flat leaves in their committed form."""
        options = {name: value for name, value in self._options.items() if name != "in_shardings"}
        compiled = jax.jit(self._results, **options)

        def attest(*flat: Any) -> Any:
            *given, parameter_index, optimizer_state_index = flat
            arguments = staged.state_and_batch(leaves.restore(given))
            return compiled(*arguments, parameter_index, optimizer_state_index)

        return attest

    def _results(self, *values: Any) -> tuple[Any, Any]:
        """Call the function and refuse results that are not two scalar floats."""
        by_keyword = {
            name
            for name, parameter in inspect.signature(self._function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        named = dict(zip(ARGUMENTS, values, strict=True))
        results = self._function(
            *(value for name, value in named.items() if name not in by_keyword),
            **{name: value for name, value in named.items() if name in by_keyword},
        )
        if not isinstance(results, (tuple, list)) or len(results) != len(RESULTS):
            raise ZKDVError(f"{API}: {self.name} returns {_described(results)}; it returns ({', '.join(RESULTS)})")
        return self._scalar(RESULTS[0], results[0]), self._scalar(RESULTS[1], results[1])

    def _scalar(self, name: str, value: Any) -> jax.Array:
        try:
            aval = jax.typeof(value)
        except TypeError:
            aval = None
        if aval is None or aval.shape or not jnp.issubdtype(aval.dtype, jnp.floating):
            raise ZKDVError(
                f"{API}: {self.name} returns {_described(value)} as {name}; it is a scalar of a floating-point dtype, "
                "for one zkdv.jax.index(tree, i)"
            )
        return jnp.asarray(value)

    def _with_own_types(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, to be traced where 64-bit types are on, as it is traced under the user's setting."""
        setting = _has_64_bit_types()

        def traced(*values: Any) -> Any:
            with jax.enable_x64(setting):
                return call(*values)

        return traced


def _has_64_bit_types() -> bool:
    """Return whether 64-bit types are on where this is called."""
    return jax.dtypes.canonicalize_dtype(np.uint64) == np.uint64


def _refuse_other_arguments(function: Callable[..., Any], signature: FunctionSignature) -> None:
    # What a partial has bound, or a default stands for, is the user's own.
    parameters = inspect.signature(function).parameters
    taken = tuple(
        name for name in signature.names if name in ARGUMENTS or parameters[name].default is inspect.Parameter.empty
    )
    if taken != ARGUMENTS:
        raise TypeError(
            f"{API}: {signature.name} takes ({', '.join(taken)}); an attest program takes ({', '.join(ARGUMENTS)}), in "
            "this order"
        )


def _checked_options(options: dict[str, Any], name: str) -> dict[str, Any]:
    for option in ("static_argnums", "static_argnames"):
        given = options.pop(option, None)
        if given is not None and given not in ((), [], ""):
            raise ValueError(
                f"{API}: {option} is {given!r}, and no argument of {name} is static; bind what is constant with "
                "functools.partial"
            )
    if options.pop("out_shardings", None) is not None:
        warn(f"{API}: out_shardings of {name} is ignored; its results are two scalars, which are read on the host")
    # A check replays from the same state, which is therefore never given away.
    options.pop("donate_argnums", None)
    options.pop("donate_argnames", None)
    return options


def _described(value: Any) -> str:
    try:
        return str(jax.typeof(value).str_short())
    except TypeError:
        return f"{type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__
