"""`zkdv.jax.ZKDV`: the proof of one training run in JAX."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, overload

import jax

from zkdv.config import ZKDVConfig
from zkdv.control import HostControl
from zkdv.driver import Driver
from zkdv.environment import installed_versions
from zkdv.errors import ZKDVError
from zkdv.flowcontrol import PipelineQueue
from zkdv.jax._attest import AttestFunction
from zkdv.jax._function import JitFunction
from zkdv.jax._pipeline import JAXPipeline
from zkdv.jax._staging import StagedFunction
from zkdv.submission import Program, SealedProgram
from zkdv.transport import Control

__all__ = ["ZKDV"]

FRAMEWORK_DISTRIBUTIONS = ("jax", "jaxlib", "flax", "optax", "ml_dtypes")
RESULT_FLAGS = ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES")


class _JAXBackend:
    """What the driver asks of this frontend."""

    prover = "whitebox-jax"
    flags: Sequence[str] = RESULT_FLAGS

    @property
    def framework(self) -> Mapping[str, str]:
        return installed_versions(FRAMEWORK_DISTRIBUTIONS)

    @property
    def devices(self) -> Sequence[str]:
        return [device.device_kind for device in jax.devices()]

    def pipeline(self, driver: Driver, queue: PipelineQueue) -> JAXPipeline:
        return JAXPipeline(driver, queue)


class ZKDV(Driver):
    """The proof of one training run: a signed transcript of every update that its jitted functions make.

    Use it as a context manager, or call `close()` at the end. An exception inside the `with` block leaves the
    transcript open.

    Args:
        path: The proof folder; made where it does not exist. A folder that holds a transcript is refused.
        config: The configuration; the defaults of `zkdv.ZKDVConfig` where None.
        max_in_flight: Ceiling of unresolved updates, at least 1; 2 is what the overlap policies need.
        replay_snapshot_interval: A check replays at most this many updates; 1 copies the state at every update. Host
            memory holds one copy of the state, two where updates run under `zkdv.overlap.ALWAYS`, and none where no
            update can be sampled, whatever the interval is.
        resume: Go on with the transcript in `path`. Not in this version.
        control: What carries the owner's decisions where the run has several processes, a `zkdv.control.HostControl`;
            the proof closes it. By default `start()` makes one over JAX's own coordination service. Every rank makes
            the proof; the owner, process 0, holds the transcript, and `path` is of no interest on the others.

    Raises:
        TypeError: An argument of another type.
        ValueError: An argument out of range; a control of other processes than those of JAX.
        ZKDVError: `resume` is asked for.

    Example:
        >>> with zkdv.jax.ZKDV("proof") as proof:  # doctest: +SKIP
        ...     proof.start(rolling_window=4)
        ...     train_step = proof.jit(train_step, donate_argnums=(0,))
    """

    def __init__(
        self,
        path: Path | str | os.PathLike[str],
        config: ZKDVConfig | None = None,
        *,
        max_in_flight: int = 2,
        replay_snapshot_interval: int = 12,
        resume: bool = False,
        control: Control | None = None,
    ) -> None:
        if resume:
            raise ZKDVError("this version of ZKDV can't resume a run; give a path without a transcript and start anew")
        self._location = os.path.abspath(path)  # noqa: PTH100 (resolves no link, as a user reads it)
        super().__init__(
            Path(path),
            config,
            backend=_JAXBackend(),
            annotation=jax.profiler.TraceAnnotation,
            max_in_flight=max_in_flight,
            replay_snapshot_interval=replay_snapshot_interval,
            open_control=lambda: HostControl.for_backend("jax") if control is None else control,
        )
        if control is not None and (control.rank, control.size) != (jax.process_index(), jax.process_count()):
            raise ValueError(
                f"the control is of rank {control.rank} of {control.size}, and this is process "
                f"{jax.process_index()} of {jax.process_count()} in JAX; make it with HostControl.for_backend('jax')"
            )
        self._attest_function: AttestFunction | None = None

    @property
    def location(self) -> str:
        """The proof folder, absolute: by it a training state names the proof that it was created for."""
        return self._location

    @overload
    def jit(self, fun: Callable[..., Any], **jax_jit_options: Any) -> JitFunction: ...

    @overload
    def jit(self, fun: None = None, **jax_jit_options: Any) -> Callable[[Callable[..., Any]], JitFunction]: ...

    def jit(
        self, fun: Callable[..., Any] | None = None, **jax_jit_options: Any
    ) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
        """Compile a training function like `jax.jit`, so that each call commits one update.

        Args:
            fun: A function of pytrees that makes exactly one update, with `contrib.TrainState.apply_gradients`; it
                takes no `*args` or `**kwargs`. Without it, a decorator is returned.
            **jax_jit_options: What `jax.jit` takes.

        Returns:
            A function with the arguments and results of `fun`.

        Raises:
            TypeError: `fun` takes `*args` or `**kwargs`.
            ValueError: An option names an argument that `fun` does not have.
        """
        if fun is None:
            return lambda function: JitFunction(self, function, dict(jax_jit_options))
        return JitFunction(self, fun, dict(jax_jit_options))

    @overload
    def attest(self, fun: Callable[..., Any], **jax_jit_options: Any) -> AttestFunction: ...

    @overload
    def attest(self, fun: None = None, **jax_jit_options: Any) -> Callable[[Callable[..., Any]], AttestFunction]: ...

    def attest(
        self, fun: Callable[..., Any] | None = None, **jax_jit_options: Any
    ) -> AttestFunction | Callable[[Callable[..., Any]], AttestFunction]:
        """Declare the attest program: a slower, more portable statement of the update that every transaction makes.

        It is sealed with the first update. At each check it runs on the state before the update, and what it gives for
        the two drawn coordinates must be what training committed; a difference beyond tolerance fails the check.

        Args:
            fun: `fun(params_before, opt_state_before, batch, parameter_index, optimizer_state_index) ->
                (selected_delta, selected_post_state)`: what is added to the parameter at the first index, and the
                element of the optimizer state after the update at the second, both scalars of a floating-point dtype.
                The indices are scalars of dtype uint64, also where 64-bit types are off; `zkdv.jax.index` takes them.
                State and batch have the structure that they have in the transaction. With `contrib.TrainState`,
                `opt_state_before` is a dictionary of all fields but `params`; where the transaction names no batch, the
                batch is a dictionary of the training function's other arguments. Without `fun`, a decorator is
                returned.
            **jax_jit_options: What `jax.jit` takes, but static arguments. `out_shardings` is ignored with a warning,
                nothing is donated, and `in_shardings` holds for direct calls alone: the sealed program takes what a
                check rebuilt.

        Returns:
            A function with the arguments and results of `fun`, compiled, to be called by itself.

        Raises:
            TypeError: `fun` has other arguments, or takes `*args` or `**kwargs`.
            ValueError: An option makes an argument static.
            ZKDVError: The proof has an attest program, has made an update, or is closed.
        """
        if fun is None:
            return lambda function: self._declare_attest_program(function, jax_jit_options)
        return self._declare_attest_program(fun, jax_jit_options)

    def _declare_attest_program(self, function: Callable[..., Any], options: Mapping[str, Any]) -> AttestFunction:
        with self.update_lock:
            if self._attest_function is not None:
                raise ZKDVError(
                    f"the proof in {self.path} has an attest program, {self._attest_function.name}; a run has one, for "
                    "all of its training functions"
                )
            if self.state == "closed" or (self.state == "running" and self.pipeline.updates):
                late = "is closed" if self.state == "closed" else "has made its first update"
                raise ZKDVError(
                    f"the proof in {self.path} {late}; declare the attest program before, so that it is committed "
                    "before anything that it speaks of"
                )
            self._attest_function = AttestFunction(function, options)
            return self._attest_function

    def seal_attest_program(self, staged: StagedFunction, inputs: Sequence[Any]) -> None:
        """Export the attest program, where there is one, before the first update.

        Args:
            staged: The function that makes the first update.
            inputs: Its state leaves, parameters first, and batch leaves.

        Raises:
            ZKDVError: It returns something else than two scalar floats, declares an update itself, or can't be
                exported.
        """
        pipeline = self.jax_pipeline
        if pipeline.attest_program is not None:
            return
        if self._attest_function is None:
            self.session.agree("the attest program", {"text": "none"})
            return
        sealed: Future[SealedProgram] = Future()
        program = self._attest_function.seal(staged, inputs)
        self.session.agree("the attest program", {"text": program.text.decode()})
        sealed.set_result(program)
        pipeline.attest_program = Program(sealed)

    @property
    def jax_pipeline(self) -> JAXPipeline:
        """The pipeline of the running proof."""
        pipeline = self.pipeline
        if not isinstance(pipeline, JAXPipeline):
            raise ZKDVError("the proof was started with another frontend")
        return pipeline
