"""`zkdv.torch.ZKDV`: the proof of one training run in Torch."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from torch import nn
from torch.optim import Optimizer
from torch.profiler import record_function

from zkdv import overlap as policies
from zkdv.config import ZKDVConfig
from zkdv.driver import Driver
from zkdv.environment import installed_versions
from zkdv.errors import ZKDVError
from zkdv.flowcontrol import PipelineQueue
from zkdv.overlap import Policy
from zkdv.torch._pipeline import TorchPipeline
from zkdv.torch._run import Run
from zkdv.torch._transaction import Transaction
from zkdv.torch.optimizers import FunctionalOptimizer

__all__ = ["ZKDV"]

FRAMEWORK_DISTRIBUTIONS = ("torch", "numpy", "ml_dtypes")
RESULT_FLAGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)

Function = TypeVar("Function", bound=Callable[..., Any])


def device_kinds() -> Sequence[str]:
    """Return the kind of each device that training may use."""
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ["cpu"]


class _TorchBackend:
    """What the driver asks of this frontend."""

    prover = "whitebox-torch"
    flags: Sequence[str] = RESULT_FLAGS

    @property
    def framework(self) -> Mapping[str, str]:
        return installed_versions(FRAMEWORK_DISTRIBUTIONS)

    @property
    def devices(self) -> Sequence[str]:
        return device_kinds()

    def pipeline(self, driver: Driver, queue: PipelineQueue) -> TorchPipeline:
        return TorchPipeline(driver, queue)


class ZKDV(Driver):
    """The proof of one training run: a signed transcript of every update that is made in its transactions.

    Use it as a context manager, or call `close()` at the end. An exception inside the `with` block leaves the
    transcript open.

    Args:
        path: The proof folder; made where it does not exist. A folder that holds a transcript is refused.
        config: The configuration; the defaults of `zkdv.ZKDVConfig` where None.
        max_in_flight: Ceiling of unresolved updates, at least 1; 2 is what the overlap policies need.
        replay_snapshot_interval: A check replays at most this many updates; 1 copies the state at every update.
        resume: Go on with the transcript in `path`. Not in this version.

    Raises:
        TypeError: An argument of another type.
        ValueError: An argument out of range.
        ZKDVError: `resume` is asked for.

    Example:
        >>> with zkdv.torch.ZKDV("proof") as proof:  # doctest: +SKIP
        ...     proof.start(rolling_window=4)
        ...     model, optimizer = proof.prepare(model, optimizer)
    """

    def __init__(
        self,
        path: Path | str | os.PathLike[str],
        config: ZKDVConfig | None = None,
        *,
        max_in_flight: int = 2,
        replay_snapshot_interval: int = 12,
        resume: bool = False,
    ) -> None:
        if resume:
            raise ZKDVError("this version of ZKDV can't resume a run; give a path without a transcript and start anew")
        super().__init__(
            Path(path),
            config,
            backend=_TorchBackend(),
            annotation=record_function,
            max_in_flight=max_in_flight,
            replay_snapshot_interval=replay_snapshot_interval,
        )
        self._run = Run(self)

    def start(self, rolling_window: int = 32, *, probe_ratio: float = 0.01) -> None:
        """Open the transcript and write its root and environment records.

        Args:
            rolling_window: Words in one window of a batch row; at most the row's width.
            probe_ratio: The part of each leaf's last dimension that a probe keeps, above 0 and at most 1.

        Raises:
            TypeError: An argument of another type.
            ValueError: An argument out of range.
            ZKDVError: Training runs on several processes, which this version can't attest; the run was started before;
                the folder holds a transcript or can't be written; or the identity key can't be used. None of these
                poisons the proof.
        """
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            size = torch.distributed.get_world_size()
            if size > 1:
                raise ZKDVError(f"training runs on {size} processes; this version attests runs of one process")
        super().start(rolling_window, probe_ratio=probe_ratio)

    def prepare(self, *values: Any) -> Any:
        """Make modules, optimizers and learning-rate schedulers part of the run.

        Args:
            *values: Any number of values. A module brings its parameters and buffers, an optimizer its state and
                hyperparameters; values of other kinds are returned as they are.

        Returns:
            The values, which go on to behave as before: one argument gives that value, several a tuple.

        Raises:
            ZKDVError: An update was made already.
        """
        prepared = self._run.prepared
        for value in values:
            if not prepared.is_new(value):
                continue
            if self._pipeline is not None and self._pipeline.updates:
                raise ZKDVError("the run has made updates already; prepare everything before the first one")
            prepared.add(value)
            if isinstance(value, Optimizer):
                _watch(value, len(prepared.optimizers) - 1, weakref.ref(self._run))
        return values[0] if len(values) == 1 else values

    @overload
    def attest(self, function: Function, *, aot: bool | None = None) -> Function: ...

    @overload
    def attest(self, function: None = None, *, aot: bool | None = None) -> Callable[[Function], Function]: ...

    def attest(
        self, function: Function | None = None, *, aot: bool | None = None
    ) -> Function | Callable[[Function], Function]:
        """Declare the attested function: the update as a function of what was prepared and the batch.

        Args:
            function: Takes what was given to `prepare`, in that order (schedulers may be left out), and the batch. In
                it `proof.forward` and `proof.backward` stand for the call of a module and for `loss.backward()`. It is
                lowered at the first transaction, and again where a constant of it changes. Without it, a decorator is
                returned.
            aot: Whether a package that AOT Inductor compiles, in the background, is sealed beside the exported
                program. Default: yes, unless the environment variable `ZKDV_AOT` is `off`.

        Returns:
            The function, which can be called in a transaction as well.

        Raises:
            ZKDVError: There is one already, or it is no plain function.
        """
        if function is None:
            return lambda given: self.attest(given, aot=aot)
        if not hasattr(function, "__code__"):
            raise ZKDVError(f"{function!r} is no plain function; decorate a function that is written with def")
        if self._run.function is not None:
            raise ZKDVError(f"the run has an attested function already: {self._run.function.__qualname__}")
        self._run.function = function
        self._run.aot = aot
        return function

    def transaction(self, *, batch: Any, overlap: Policy = policies.UNCHECKED) -> Transaction:
        """Return the `with` block of one update.

        Args:
            batch: All inputs of the update, as the attested function takes them: tensors, NumPy arrays and floats in
                tuples, lists, mappings, named tuples and dataclasses. Integers, booleans and text are constants of the
                program. It is copied when the block is entered.
            overlap: The overlap policy of the update.

        Returns:
            A context manager. Open it before the forward pass. Where the block raises, the update is not recorded; what
            it changed all the same is an edit, which the next update records.

        Raises:
            ValueError: `overlap` is no policy.
        """
        return Transaction(self._run, batch, Policy(overlap))

    def forward(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a prepared module: `model(*args, **kwargs)`."""
        if self._run.lowering is not None:
            return self._run.lowering.forward(model, args, kwargs)
        return model(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a scalar loss to the parameters' `grad`: `loss.backward()`.

        Raises:
            ZKDVError: In a transaction, where a parameter has a gradient from before it, or the loss was computed from
                a stand-in that the attested function left behind when it was lowered.
        """
        if self._run.lowering is not None:
            self._run.lowering.backward(loss)
            return
        if self._run.transaction is not None:
            self._run.transaction.note_backward(loss)
        loss.backward()

    def register_functional_optimizer(self, cls: type[Optimizer], functional: FunctionalOptimizer) -> None:
        """Say how the steps of an optimizer class are lowered, for this run. Call it before `prepare`.

        Args:
            cls: The class, exactly.
            functional: Its functional form; it goes before one that a plugin declares.

        Raises:
            TypeError: `cls` is no optimizer class, or `functional` no functional form.
        """
        kind: object = cls
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            raise TypeError(f"{cls!r} is no class of optimizers")
        if not isinstance(functional, FunctionalOptimizer):
            raise TypeError(
                f"{functional!r} ({type(functional).__name__}) is no zkdv.torch.optimizers.FunctionalOptimizer"
            )
        self._run.prepared.registered[cls] = functional

    def join(self) -> None:
        """Wait until every update's commitment and check is on record. Never needed for each update.

        Raises:
            ZKDVPoisonedError: The proof has failed.
            ZKDVError: The proof is not running, or a transaction is open.
        """
        self._refuse_inside("join()")
        super().join()

    def close(self) -> None:
        """Wait for all commitments and checks, write the closing records and end the run. Closing twice does no harm.

        It waits for AOT Inductor too, and says so in the log (`zkdv.torch`).

        Raises:
            ZKDVPoisonedError: The proof failed, now or before; the transcript is closed as poisoned.
            ZKDVError: The closing records could not be written, the state is not what the last update left, or a
                transaction is open.
        """
        self._refuse_inside("close()")
        super().close()

    @property
    def torch_pipeline(self) -> TorchPipeline:
        """The pipeline of the running proof."""
        pipeline = self.pipeline
        if not isinstance(pipeline, TorchPipeline):
            raise ZKDVError("the proof was started with another frontend")
        return pipeline

    def _refuse_inside(self, call: str) -> None:
        if self._run.transaction is not None:
            raise ZKDVError(
                f"{call} was called inside of a transaction, which it would wait for; call it after the block"
            )


def _watch(optimizer: Optimizer, index: int, run: "weakref.ref[Run]") -> None:
    """Have an optimizer tell the open transaction of its steps."""

    def before_step(stepping: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        owner = run()
        # Copies of the optimizer may have copied the hook.
        if owner is None or stepping is not owner.prepared.optimizers[index]:
            return
        if owner.transaction is not None:
            owner.transaction.note_step(index)
        else:
            owner.note_step_outside(index)

    optimizer.register_step_pre_hook(before_step)
