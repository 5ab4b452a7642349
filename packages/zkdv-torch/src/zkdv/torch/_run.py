"""What a run holds beside its transcript: the attested function, its programs, and the state that training updates."""

import itertools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from zkdv.batch import BatchLayout
from zkdv.errors import ZKDVError, calling_place, warn
from zkdv.schema import LeafSpec, Schema
from zkdv.torch._aot import is_wanted, refuse_missing_compiler
from zkdv.torch._leaves import (
    HeldLeaf,
    array_of,
    batch_dtype,
    dtype_name,
    layout_of,
    numpy_dtype,
    refuse_unreadable,
    tensor_like,
)
from zkdv.torch._lowering import Lowering, Variant, call_arguments, every_module
from zkdv.torch._pipeline import TorchPipeline, TorchProgram
from zkdv.torch._program_export import seal
from zkdv.torch._state import NamedTensor, PreparedState, StateTensors, vector_of
from zkdv.torch._transaction import Transaction
from zkdv.torch._trees import Batch

if TYPE_CHECKING:
    import weakref

    from zkdv.submission import SealedProgram
    from zkdv.torch._proof import ZKDV

__all__ = ["Run"]

CPU = torch.device("cpu")
HYPERPARAMETERS = "hyperparameters"
MANY_PROGRAMS = 8


class Run:
    """The training side of one proof.

    Args:
        proof: The proof.
    """

    def __init__(self, proof: "ZKDV") -> None:
        self.prepared = PreparedState()
        self.lowering: Lowering | None = None
        self.function: Callable[..., Any] | None = None
        self.aot: bool | None = None
        self._proof = proof
        self._open: weakref.ref[Transaction] | None = None
        self._programs: dict[Variant, TorchProgram] = {}
        self._held: list[HeldLeaf] = []
        self._signature: Any = None
        self._identities: list[int] = []
        self._stepped_outside = False

    @property
    def transaction(self) -> Transaction | None:
        """The transaction that is open."""
        return None if self._open is None else self._open()

    def opened(self, transaction: "weakref.ref[Transaction]") -> Generator[None, None, None]:
        """Have a transaction be the open one, from the first step of this generator until it is closed or dropped.

        Whoever opens it owns the generator, and this run the transaction not: an interrupt that comes before the
        transaction's own end then ends it all the same.

        Raises:
            ZKDVError: Another one is open, nothing was prepared, or there is no attested function.
        """
        if self.function is None:
            raise ZKDVError(
                "there is no attested function; write the update once more as a function of what was prepared and the "
                "batch, under @proof.attest, with proof.forward and proof.backward in it"
            )
        if not self.prepared.modules:
            raise ZKDVError("nothing was prepared; call model, optimizer = proof.prepare(model, optimizer) first")
        if self.transaction is not None:
            raise ZKDVError(
                "another transaction of this proof is open; one update ends before the next one opens, and all are "
                "made on one thread"
            )
        # No call stands between taking the lock and this block, or setting and unsetting: nothing is cut short there.
        with self._proof.update_lock:
            self._open = transaction
            try:
                yield
            finally:
                self._open = None

    def note_step_outside(self, optimizer: int) -> None:
        """Warn, once, of an optimizer's step between two updates; the next update records what it changed."""
        if self._signature is not None and not self._stepped_outside:
            self._stepped_outside = True
            name = type(self.prepared.optimizers[optimizer]).__name__
            # A hook of the optimizer leads here, so the line to quote is beyond Torch's.
            warn(
                f"{name}.step() was called outside of a transaction: the step is not attested. What it changed stands "
                "in the transcript as edits before the next update, and `zkdv verify` fails because of them unless it "
                "is given --allow-edits. Make the step inside of proof.transaction(...)",
                calling_place("torch"),
            )

    def pipeline(self) -> TorchPipeline:
        """Return the pipeline of the running proof."""
        return self._proof.torch_pipeline

    def hold(self, tensors: StateTensors) -> list[HeldLeaf]:
        """Return what holds each tensor now; the same objects as at the last call where nothing was written since."""
        everything = tensors.all()
        if len(self._held) != len(everything):
            self._held = [HeldLeaf(named.tensor) for named in everything]
        else:
            uncounted = self._written_statistics(everything)
            self._held = [
                held.at_this_moment(named.tensor, uncounted=named.name in uncounted)
                for held, named in zip(self._held, everything, strict=True)
            ]
        return self._held

    def _written_statistics(self, everything: Sequence[NamedTensor]) -> set[str]:
        """Return the names of statistics that batch norm wrote to; Torch does not count that, but batch norm does."""
        written: set[str] = set()
        for held, named in zip(self._held, everything, strict=True):
            module, dot, name = named.name.rpartition(".")
            if name == "num_batches_tracked" and held.is_deleted():
                written |= {f"{module}{dot}running_mean", f"{module}{dot}running_var"}
        return written

    def variant(self, tensors: StateTensors, batch: Batch) -> Variant:
        """Return the constants of the program for an update that makes a step of every optimizer."""
        return Variant(
            structure=batch.structure,
            stepped=(True,) * len(self.prepared.optimizers),
            zero_grads=(False,) * len(tensors.parameters),
            training=tuple(module.training for module in every_module(self.prepared)),
            wants_grad=tuple(named.tensor.requires_grad for named in tensors.parameters),
            layouts=(
                *(layout_of(named.tensor) for named in tensors.all()),
                *(layout_of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in batch.leaves),
                None,
            ),
        )

    def program(self, variant: Variant, tensors: StateTensors, batch: Batch) -> TorchProgram:
        """Return the program of a variant; the first use lowers and seals it. The schema is declared first."""
        self._declare(tensors, batch)
        program = self._programs.get(variant)
        if program is None:
            program = self._seal(variant, tensors, batch)
            self._programs[variant] = program
            if len(self._programs) == MANY_PROGRAMS:
                warn(
                    f"{MANY_PROGRAMS} programs were sealed in this run, and sealing takes seconds: integers, booleans "
                    "and text in the batch are constants of a program, so that each value makes another one; give "
                    "numbers that change as tensors"
                )
        return program

    def pack(self, batch: Batch, hyperparameters: NDArray[np.float64]) -> NDArray[np.uint32]:
        """Pack batch and hyperparameters into the matrix that is committed."""
        return self._schema().batch.pack([*map(array_of, batch.leaves), hyperparameters])

    def repack(self, words: NDArray[np.uint32], hyperparameters: NDArray[np.float64]) -> NDArray[np.uint32]:
        """Pack a batch once more, with other hyperparameters."""
        layout = self._schema().batch
        *arrays, _ = layout.unpack(words, [numpy_dtype(leaf.dtype) for leaf in layout.leaves])
        return layout.pack([*arrays, hyperparameters])

    def refuse_changed(self, tensors: StateTensors) -> None:
        """Refuse an update that changed names, shapes or dtypes of the state."""
        if _signature(tensors) != self._signature[0]:
            parameters, optimizer = _specs(tensors.parameters), _specs(tensors.optimizer)
            self.pipeline().declare(Schema(parameters, optimizer, self._schema().batch))

    # Pieces of the above.

    def _hold_present(self) -> list[HeldLeaf]:
        tensors = self.prepared.tensors()
        self.refuse_changed(tensors)
        return self.hold(tensors)

    def _declare(self, tensors: StateTensors, batch: Batch) -> None:
        """Check what the update starts from, as far as it is not what the last one started from."""
        identities = [id(named.tensor) for named in tensors.parameters]
        if identities != self._identities:
            for named in tensors.all():
                refuse_unreadable(named.tensor, named.name)
            self._refuse_unprepared_parameters(tensors)
            _refuse_overlap(tensors.parameters)
            self._identities = identities
        signature = (
            _signature(tensors),
            batch.names,
            tuple(
                (batch_dtype(leaf, name), np.shape(leaf)) for leaf, name in zip(batch.leaves, batch.names, strict=True)
            ),
        )
        if signature == self._signature:
            return
        if self._signature is not None:
            self._refuse_other_batch(batch)
        layout = BatchLayout.of(
            [*batch.names, HYPERPARAMETERS],
            [*(batch_dtype(leaf, name) for leaf, name in zip(batch.leaves, batch.names, strict=True)), "float64"],
            [*(tuple(np.shape(leaf)) for leaf in batch.leaves), (len(self.prepared.hyperparameters()),)],
        )
        self.pipeline().declare(Schema(_specs(tensors.parameters), _specs(tensors.optimizer), layout))
        self.pipeline().devices = [named.tensor.device for named in tensors.all()]
        self.pipeline().hold_present = self._hold_present
        self._signature = signature

    def _seal(self, variant: Variant, tensors: StateTensors, batch: Batch) -> TorchProgram:
        function = self.function
        if function is None:
            raise ZKDVError("there is no attested function")
        call_arguments(self.prepared, function)
        if is_wanted(self.aot):
            refuse_missing_compiler()
        given = self.prepared.hyperparameters()
        arguments = [
            *(named.tensor.detach().contiguous() for named in tensors.all()),
            *map(tensor_like, batch.leaves),
            torch.from_numpy(vector_of(given)),
        ]
        self.lowering = Lowering(
            self.prepared, function, variant=variant, tensors=tensors, batch=batch, hyperparameters=given
        )
        try:
            graph = self.lowering.trace(arguments)
        finally:
            self.lowering = None
        convention = "parameters, optimizer, batch, hyperparameters -> parameters, optimizer"
        sealed: Future[SealedProgram] = Future()
        sealed.set_result(seal(graph, arguments, f"{convention}; hyperparameters: {', '.join(given)}"))
        devices = tuple(leaf.device if isinstance(leaf, torch.Tensor) else CPU for leaf in batch.leaves)
        program = TorchProgram(sealed, batch_devices=(*devices, CPU))
        if is_wanted(self.aot):
            self.pipeline().compile_beside(program)
        return program

    def _schema(self) -> Schema:
        schema = self.pipeline().schema
        if schema is None:
            raise ZKDVError("the schema was asked for before the first update declared it")
        return schema

    def _refuse_other_batch(self, batch: Batch) -> None:
        known = {leaf.name: leaf for leaf in self._schema().batch.leaves}
        for leaf, name in zip(batch.leaves, batch.names, strict=True):
            was, shape = known.get(name), tuple(np.shape(leaf))
            if was is not None and (was.dtype, was.shape) != (batch_dtype(leaf, name), shape):
                smaller = was.shape[1:] == shape[1:] and shape[:1] < was.shape[:1]
                raise ZKDVError(
                    f"{name} was {was.dtype}{list(was.shape)} at the first update and is now "
                    f"{batch_dtype(leaf, name)}{list(shape)}; a run keeps shapes and dtypes of its first update"
                    + (
                        "; leave out or pad a last batch that is smaller (DataLoader(drop_last=True))"
                        if smaller
                        else ""
                    )
                )

    def _refuse_unprepared_parameters(self, tensors: StateTensors) -> None:
        known = {id(named.tensor) for named in tensors.parameters}
        for index, optimizer in enumerate(self.prepared.optimizers):
            for position, parameter in enumerate(self.prepared.bound[index].parameters):
                if id(parameter) not in known:
                    raise ZKDVError(
                        f"parameter {position} of {type(optimizer).__name__}, of shape {list(parameter.shape)}, "
                        "belongs to no prepared module; give its module to proof.prepare()"
                    )


def _signature(tensors: StateTensors) -> Any:
    return tuple((named.name, named.tensor.shape, named.tensor.dtype) for named in tensors.all())


def _specs(tensors: Sequence[NamedTensor]) -> tuple[LeafSpec, ...]:
    return tuple(
        LeafSpec(
            named.name,
            dtype_name(named.tensor.dtype, named.name),
            tuple(named.tensor.shape),
            aliases=named.aliases,
        )
        for named in tensors
    )


def _refuse_overlap(tensors: Sequence[NamedTensor]) -> None:
    """Refuse different tensors over the same memory, which a program would update one by one."""
    ranges = sorted(
        (
            (
                named.tensor.data_ptr(),
                named.tensor.data_ptr() + named.tensor.numel() * named.tensor.element_size(),
                named.name,
            )
            for named in tensors
            if named.tensor.numel()
        ),
    )
    for (_, end, name), (start, _, other) in itertools.pairwise(ranges):
        if start < end:
            raise ZKDVError(
                f"{name} and {other} are different tensors over the same memory; tie them by assigning one parameter"
            )
