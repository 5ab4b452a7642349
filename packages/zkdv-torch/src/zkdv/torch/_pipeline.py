"""The Torch side of `zkdv.pipeline`: commitments, copies and replays of tensors that training updates in place."""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zkdv import _native
from zkdv.errors import ZKDVError
from zkdv.pipeline import PendingUpdate, Pipeline
from zkdv.schema import TREES, Due, LeafEvidence, Schema, TreeName
from zkdv.sharding import leaf_digest, probe_signs
from zkdv.submission import Program
from zkdv.torch._aot import SWITCH, SealedPackage, compile_package, largest_distance, load_package
from zkdv.torch._leaves import HeldLeaf, host_array, host_data, numpy_dtype, tensor_of, torch_dtype
from zkdv.torch._program_export import SealedUpdate

__all__ = ["TorchPipeline"]

NAMES_SAID = 5
LOG = logging.getLogger("zkdv.torch")


@dataclass(eq=False)
class TorchProgram(Program):
    """A replay program of the attested function.

    Attributes:
        batch_devices: The device of each batch leaf.
    """

    batch_devices: tuple[torch.device, ...] = ()


@dataclass
class TorchPipeline(Pipeline):
    """Commits and checks updates whose state leaves are tensors.

    Leaves of the running state are `HeldLeaf`s, those of snapshots and replays tensors that nothing else writes to.

    Attributes:
        devices: The device of each state leaf.
        hold_present: Returns what holds each state leaf at the moment of the call; the object of the last call where
            Torch counted no write since.
    """

    devices: Sequence[torch.device] = ()
    hold_present: Callable[[], Sequence[HeldLeaf]] = tuple
    _packages: list[tuple[TorchProgram, Future[bytes | None]]] = field(default_factory=list)
    _signs: dict[TreeName, NDArray[np.uint32]] = field(default_factory=dict)

    def declare(self, schema: Schema) -> None:
        """Set the schema at the first update, and prepare the probes of its leaves."""
        super().declare(schema)
        if not self._signs:
            for tree in TREES:
                signs = [
                    probe_signs(self.core.root_digest, tree, index, leaf.shape, leaf.dtype)
                    for index, leaf in enumerate(schema.tree(tree))
                ]
                self._signs[tree] = np.concatenate([np.zeros(0, np.uint32), *signs])

    def launch_snapshot(self, state: Sequence[Any], over: Sequence[Any] | None) -> Sequence[Any]:
        """Copy state leaves to host memory, in C order.

        On the CPU the copy is made on return. From a GPU it goes into pinned memory in the order of the current stream,
        so that kernels that are launched later write to a leaf only after it was read.
        """
        leaves = [leaf.tensor.detach() for leaf in state]
        copies = _host_buffers(leaves) if over is None else over
        for copy, leaf in zip(copies, leaves, strict=True):
            copy.copy_(leaf, non_blocking=True)
        return copies

    def await_snapshot(self, copy: Sequence[Any]) -> None:
        """Wait until a launched copy is in host memory."""
        del copy
        _synchronize(self.devices)

    def read_snapshot(self, copy: Sequence[Any], *, own: bool) -> Sequence[NDArray[Any]]:
        """Return a copy that is in host memory as arrays; without `own` they may show its memory."""
        return [np.array(host_array(leaf)) if own else host_array(leaf) for leaf in copy]

    def restore(self, copy: Sequence[Any]) -> Sequence[Any]:
        """Return a snapshot's leaves on the devices of the program; the program leaves its inputs as they are."""
        return [leaf.to(device) for leaf, device in zip(copy, self.devices, strict=True)]

    def keep(self, state: Sequence[Any], copy: Sequence[Any]) -> Sequence[Any]:
        """Copy the state after replays over a snapshot's leaves; done on return."""
        for target, leaf in zip(copy, state, strict=True):
            target.copy_(leaf)
        return copy

    def start_evidence(self, state: Sequence[Any], due: Due) -> LeafEvidence:
        """Commit to state leaves; done on return, so that training may write to them again."""
        schema = self._schema()
        data = self._host_data(state, due)
        digests: dict[TreeName, list[bytes]] = {}
        probe_digests: dict[TreeName, list[bytes]] = {}
        probes: dict[TreeName, list[NDArray[np.float32] | NDArray[np.float64] | None]] = {}
        start = 0
        for tree in TREES:
            specs = schema.tree(tree)
            if tree in due.trees:
                leaves = [(data[place], spec.dtype, spec.shape) for place, spec in enumerate(specs, start)]
                digests[tree], probe_digests[tree], probes[tree] = _native.commit_leaves(
                    leaves, self.core.probe_ratio, self._signs[tree]
                )
            start += len(specs)
        return LeafEvidence(
            digests=digests,
            probe_digests=probe_digests,
            read_probes=lambda: probes,
            holds_nan=any(
                probe is not None and bool(np.isnan(probe).any()) for held in probes.values() for probe in held
            ),
        )

    def read_evidence(self, results: Any, due: Due) -> LeafEvidence:
        """Return the results of a commitment, which is done."""
        del due
        if not isinstance(results, LeafEvidence):
            raise ZKDVError("the evidence of an update was not made by this frontend")
        return results

    def read_leaf(self, leaf: Any) -> NDArray[Any] | None:
        """Return a host copy of one leaf, or None where it was written to since."""
        if not isinstance(leaf, HeldLeaf):
            return np.array(host_array(leaf))
        if leaf.is_deleted():
            return None
        array = np.array(host_array(leaf.tensor))
        # Whoever wrote to it while it was copied has moved its counter.
        return None if leaf.is_deleted() else array

    def replay(self, update: PendingUpdate, state: Sequence[Any]) -> Sequence[Any]:
        """Run an update's sealed program on the state before it and return the state leaves after it."""
        program = update.submission.program
        sealed = program.sealed.result()
        if not isinstance(sealed, SealedUpdate) or not isinstance(program, TorchProgram):
            raise ZKDVError(f"the program of update {update.index} was not sealed by this frontend")
        try:
            return list(sealed.run(*state, *self._batch_tensors(update, program)))
        except RuntimeError as error:
            raise ZKDVError(
                f"update {update.index} can't be replayed, its sealed program ends with: {error}"
            ) from error

    def compile_beside(self, program: TorchProgram) -> None:
        """Compile a program with AOT Inductor, in the background."""
        self._packages.append((program, self.queue.submit("start", self._compile, program)))

    def finish(self) -> None:
        """Write what closes the run: the compiled packages, and the final state. Runs after all updates."""
        self._refuse_changed()
        with self.queue.annotate("zkdv.aot"):
            self._seal_packages()
        super().finish()

    def _refuse_changed(self) -> None:
        """Hold the final state as it is now, and refuse one that is not what the last update left.

        A leaf that is committed is compared with its digest, which finds writes that Torch did not count too. One that
        is not must not have been written to; another tensor in its place is compared with it.
        """
        if not self._handed_over:
            return
        last, digests = self._handed_over[-1], {} if self._evidence is None else self._evidence.digests
        present, changed = self.hold_present(), []
        for position, (was, now) in enumerate(zip(last.after, present, strict=True)):
            tree, number = self._schema().tree_leaf(position)
            if tree in digests:
                same = leaf_digest(host_array(now.tensor)) == digests[tree][number]
            else:
                same = now is was or (not was.is_deleted() and bool(np.array_equal(now.data(), was.data())))
            if not same:
                changed.append(self._schema().tree(tree)[number].name)
        if changed:
            more = f" and {len(changed) - NAMES_SAID} more" if len(changed) > NAMES_SAID else ""
            raise ZKDVError(
                f"the run's final state can't be committed, since it is not what the last update left: "
                f"{', '.join(changed[:NAMES_SAID])}{more} changed after it; close the proof before the state is changed"
            )
        self._handed_over[-1] = replace(last, after=present)

    def _compile(self, program: TorchProgram) -> bytes | None:
        try:
            return compile_package(program.sealed.result().blob, lambda: self.queue.cancelled)
        except ZKDVError as error:
            # The run is worth as much without it.
            self._warnings.append(str(error))
            return None

    def _seal_packages(self) -> None:
        """Commit to the packages, each with its distance from its program on the run's last state and batch."""
        packages, self._packages = self._packages, []
        compiling = [compiled for _, compiled in packages if not compiled.done()]
        if compiling:
            # Something that is seen without a configuration of logging, and that is no ground to stop.
            LOG.warning(
                "closing %s: waiting for AOT Inductor to compile the update, which takes a minute or so for each of %d "
                "program(s) the first time; @proof.attest(aot=False) or %s=off leaves the compiled package out",
                self.core.path,
                len(compiling),
                SWITCH,
            )
        for program, compiled in packages:
            package, sealed = compiled.result(), program.sealed.result()
            if package is None or program.seq is None or not isinstance(sealed, SealedUpdate):
                continue
            last = self._handed_over[-1]
            state = [leaf.tensor.detach().contiguous() for leaf in last.after]
            inputs = [*state, *self._batch_tensors(last.update, program)]
            try:
                with torch.no_grad():
                    compiled_results = load_package(package)(*inputs)
            except RuntimeError as error:
                # As with one that can't be compiled. Torch's own faults come with a stack of C++ behind the first line.
                self._warnings.append(
                    f"what AOT Inductor compiled of the update can't be executed, and is left out: "
                    f"{str(error).partition(chr(10))[0]}; the portable program is sealed all the same; "
                    f"@proof.attest(aot=False) or {SWITCH}=off does without the package"
                )
                continue
            distance = largest_distance(compiled_results, sealed.run(*inputs))
            convention = (
                f"{sealed.convention}; compiled from the program of record {program.seq}, from whose results it was at "
                f"most {distance:.3g} apart on the run's last state and batch"
            )
            aot = Program(Future())
            aot.sealed.set_result(SealedPackage(package, sealed.text, sealed.platforms, convention))
            self._program_seq(aot)

    def _host_data(self, state: Sequence[Any], due: Due) -> dict[int, NDArray[np.uint8]]:
        """Return the bytes of the leaves that are due, by position: CPU tensors where they lie, others copied."""
        parameters = len(self._schema().parameters)
        due_places = [
            place for place in range(len(state)) if ("parameters" if place < parameters else "optimizer") in due.trees
        ]
        on_gpu = [place for place in due_places if _tensor_of(state[place]).is_cuda]
        copies: dict[int, torch.Tensor] = {}
        if on_gpu:
            # All copies are launched before the one wait for them.
            leaves = [_tensor_of(state[place]).detach() for place in on_gpu]
            copies = dict(zip(on_gpu, _host_buffers(leaves), strict=True))
            for copy, leaf in zip(copies.values(), leaves, strict=True):
                copy.copy_(leaf, non_blocking=True)
            _synchronize(leaf.device for leaf in leaves)
        return {
            place: host_data(copies[place])
            if place in copies
            else state[place].data()
            if isinstance(state[place], HeldLeaf)
            else host_data(state[place])
            for place in due_places
        }

    def _batch_tensors(self, update: PendingUpdate, program: TorchProgram) -> list[torch.Tensor]:
        """Return an update's batch as the program takes it."""
        layout = self._schema().batch
        arrays = layout.unpack(update.batch, [numpy_dtype(leaf.dtype) for leaf in layout.leaves])
        return [
            tensor_of(array, torch_dtype(leaf.dtype), device)
            for array, leaf, device in zip(arrays, layout.leaves, program.batch_devices, strict=True)
        ]


def _host_buffers(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors in host memory with shapes and dtypes of `leaves`, pinned where they are on a GPU."""
    return [
        # The device is said, for there may be another default.
        torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu", pin_memory=leaf.is_cuda)
        for leaf in leaves
    ]


def _synchronize(devices: Iterable[torch.device]) -> None:
    """Wait for all work on the GPUs among `devices`; the current one, for which Torch waits else, may be another."""
    for device in sorted({device for device in devices if device.type == "cuda"}, key=str):
        torch.cuda.synchronize(device)


def _tensor_of(leaf: Any) -> torch.Tensor:
    tensor: torch.Tensor = leaf.tensor if isinstance(leaf, HeldLeaf) else leaf
    return tensor
