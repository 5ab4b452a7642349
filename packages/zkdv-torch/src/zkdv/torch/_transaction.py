"""One update of a training loop: what happens when a transaction opens, and when it ends."""

import weakref
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from zkdv.errors import ZKDVError
from zkdv.overlap import Policy
from zkdv.submission import PendingUpdate, Submission
from zkdv.torch._framework import is_stand_in
from zkdv.torch._state import StateTensors, vector_of
from zkdv.torch._trees import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zkdv.torch._leaves import HeldLeaf
    from zkdv.torch._pipeline import TorchPipeline
    from zkdv.torch._run import Run

__all__ = ["Transaction"]


class Transaction:
    """What `ZKDV.transaction` returns: the `with` block around one update.

    Args:
        run: The run.
        batch: All inputs of the update.
        policy: Its overlap policy.
    """

    def __init__(self, run: "Run", batch: Any, policy: Policy) -> None:
        self._run = run
        self._batch = batch
        self._policy = policy
        self._steps = [0] * len(run.prepared.optimizers)
        self._zero_grads: tuple[bool, ...] | None = None
        self._opened = False

    def __enter__(self) -> Self:
        """Admit the update: note edits since the last one, take a snapshot where one is due, copy the batch."""
        run = self._run
        if self._opened:
            raise ZKDVError("a transaction is opened once; call proof.transaction(batch=...) for each update")
        self._open = run.opened(weakref.ref(self))
        try:
            next(self._open)
            self._pipeline: TorchPipeline = run.pipeline()
            self._flat = flatten(self._batch)
            self._tensors = run.prepared.tensors()
            _refuse_kept_casts(self._tensors)
            self._hyperparameters = vector_of(run.prepared.hyperparameters())
            self._variant = run.variant(self._tensors, self._flat)
            program = run.program(self._variant, self._tensors, self._flat)
            # A copy: loaders use their buffers again.
            self._words = run.pack(self._flat, self._hyperparameters)
            state = run.hold(self._tensors)
            self._index, self._submission, self._before = self._pipeline.begin(program, self._policy, state)
        except BaseException:
            self._open.close()
            raise
        self._opened = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit the update that was made, or forget it where the block raised."""
        try:
            if error is not None:
                self._pipeline.abandon(self._submission)
                return
            try:
                self._commit()
            except BaseException:
                self._pipeline.abandon(self._submission)
                raise
        finally:
            self._open.close()

    def _commit(self) -> None:
        run, pipeline = self._run, self._pipeline
        tensors = run.prepared.tensors()
        run.refuse_changed(tensors)
        variant = replace(
            self._variant,
            stepped=tuple(steps > 0 for steps in self._steps),
            zero_grads=self._zero_grads or self._variant.zero_grads,
        )
        submission: Submission = self._submission
        if variant != self._variant:
            submission = replace(submission, program=run.program(variant, tensors, self._flat))
        after: Sequence[HeldLeaf] = run.hold(tensors)
        with pipeline.queue.annotate("zkdv.digest"):
            evidence = pipeline.start_evidence(after, submission.due)
        cut = len(tensors.parameters)
        update = PendingUpdate(
            pipeline,
            self._index,
            submission,
            self._words,
            after[cut:],
            evidence,
            self._before,
            self._policy,
            after[:cut],
        )
        pipeline.submit(update, after)
        if pipeline.core.may_sample(self._index):
            # A check reads a leaf of the live state, which whoever comes next may write to.
            slot = submission.slot
            pipeline.queue.wait_until(lambda: slot.retired or (slot.drawn and (slot.held or not slot.sampled)))

    # What happens inside of the block.

    def note_step(self, optimizer: int) -> None:
        """Note that an optimizer is about to make its step."""
        stepping = self._run.prepared.optimizers[optimizer]
        if getattr(stepping, "found_inf", None) is not None:
            raise ZKDVError(
                f"a GradScaler leaves it to the fused {type(stepping).__name__} to skip the step, which can't be seen "
                "from outside; construct the optimizer with fused=False"
            )
        if self._steps[optimizer]:
            raise ZKDVError(
                "an optimizer made two steps in one transaction; an update is one step: open a transaction for each"
            )
        self._refuse_stand_ins()
        self._steps[optimizer] += 1
        self._run.prepared.bound[optimizer].check()
        hyperparameters = vector_of(self._run.prepared.hyperparameters())
        if hyperparameters.tobytes() != self._hyperparameters.tobytes():
            # They were changed inside of the block, before the step.
            self._hyperparameters = hyperparameters
            self._words = self._run.repack(self._words, hyperparameters)

    def note_backward(self, loss: torch.Tensor) -> None:
        """Note, before the first backward pass, which parameters have a gradient already: zeros, or it is refused."""
        if is_stand_in(loss):
            raise ZKDVError(_left_behind("the loss"))
        if self._zero_grads is not None:
            return
        zero: list[bool] = []
        for named in self._tensors.parameters:
            grad = named.tensor.grad if named.tensor.requires_grad else None
            if grad is not None and bool(torch.count_nonzero(grad)):
                raise ZKDVError(
                    f"{named.name} has a gradient from before this transaction, which is no input of the update; call "
                    "optimizer.zero_grad() before the first backward pass, and accumulate gradients inside of one "
                    "transaction"
                )
            zero.append(grad is not None)
        self._zero_grads = tuple(zero)

    def _refuse_stand_ins(self) -> None:
        for named in self._tensors.parameters:
            if named.tensor.requires_grad and is_stand_in(named.tensor.grad):
                raise ZKDVError(_left_behind(f"the gradient of {named.name}"))


def _left_behind(what: str) -> str:
    return (
        f"{what} was computed from a tensor that holds nothing: while the attested function was lowered, something "
        "that it calls kept such a stand-in (functools.cache, a global, an attribute of an object). Make what is kept "
        "before the first transaction, for one by a forward pass, or keep it as a buffer of the model"
    )


def _refuse_kept_casts(tensors: StateTensors) -> None:
    """Refuse autocast that is on around the transaction and keeps the casts of weights until it ends."""
    if not torch.is_autocast_cache_enabled():
        return
    for kind in {named.tensor.device.type for named in tensors.parameters}:
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            raise ZKDVError(
                f'torch.autocast("{kind}") is on where the transaction opens: it keeps what weights were cast to until '
                "it ends, so that later updates would go on with the weights of earlier ones; open it inside of the "
                "block, around the forward pass, or give it cache_enabled=False"
            )
