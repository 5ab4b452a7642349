"""The process in which an audit executes updates again; `zkdv.auditing._process` starts it and asks it.

Requests come on standard input, answers go to what was standard output, each as one line of JSON. What it answers is
compared by the process that asks.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.auditing.frontend import AuditFrontend, LoadedProgram, SealedFiles
from zkdv.check import array_distance
from zkdv.config import FloatTolerance
from zkdv.dtypes import named_dtype
from zkdv.environment import platform_facts
from zkdv.errors import ZKDVError
from zkdv.evidence_files import read_state, read_words
from zkdv.plugins import registry
from zkdv.schema import TREES, LeafSpec, Schema, TreeName
from zkdv.sharding import leaf_digest, probe_signs, shard_arrays


class _Session:
    """One audit of one run."""

    def __init__(self) -> None:
        self._frontend: AuditFrontend | None = None
        self._schema: Schema | None = None
        self._root = b""
        self._probe_ratio = 1.0
        self._programs: dict[int, LoadedProgram] = {}
        self._stored: Sequence[NDArray[Any]] | None = None
        self._state: Sequence[Any] = ()
        self._last: LoadedProgram | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked for."""
        asked: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "open": self._open,
            "load": self._load,
            "start": self._start,
            "edit": self._edit,
            "step": self._step,
            "probes": self._probes,
            "distances": self._distances,
        }
        return asked[request["do"]](request)

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        made = registry().resolve("zkdv_frontends", request["prover"])
        self._frontend = cast("Callable[[], AuditFrontend]", made)()
        devices = self._frontend.prepare(request["devices"])
        self._schema = Schema.from_record(request["schema"])
        self._root, self._probe_ratio = bytes.fromhex(request["root"]), float(request["probe_ratio"])
        facts = platform_facts(framework=self._frontend.framework, devices=devices, flags=self._frontend.flags)
        return {"platform": facts}

    def _load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        frontend, schema = self._opened()
        files = SealedFiles(
            None if request["blob"] is None else Path(request["blob"]).read_bytes(),
            None if request["text"] is None else Path(request["text"]).read_bytes(),
            request["format"],
            tuple(request["platforms"]),
        )
        program = self._programs[request["seq"]] = frontend.load(files, schema)
        return {"source": program.source, "notes": list(program.notes)}

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _, schema = self._opened()
        self._stored, self._state, self._last = read_state(Path(request["path"]), schema), (), None
        return {"digests": self._digests(TREES)}

    def _edit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _, schema = self._opened()
        tree: TreeName = request["tree"]
        spec = schema.tree(tree)[request["leaf"]]
        value = np.frombuffer(bytes.fromhex(request["value"]), named_dtype(spec.dtype)).reshape(spec.shape)
        state = list(self._host_state())
        state[self._position(tree, request["leaf"])] = value
        self._stored, self._state = state, ()
        return {}

    def _step(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _, schema = self._opened()
        program, layout = self._programs[request["seq"]], schema.batch
        words = read_words(Path(request["batch"]), layout.rows, layout.width)
        batch = layout.unpack(words, [named_dtype(leaf.dtype) for leaf in layout.leaves])
        if self._stored is not None:
            self._state, self._stored = program.place(self._stored), None
        self._state, self._last = program.run(self._state, batch), program
        return {"digests": self._digests(request["trees"])}

    def _probes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        tree: TreeName = request["tree"]
        probes = [self._probe(tree, index, spec) for index, spec in enumerate(self._opened()[1].tree(tree))]
        return {
            "probes": [
                None if probe is None else {"dtype": probe.dtype.name, "data": probe.tobytes().hex()}
                for probe in probes
            ]
        }

    def _distances(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _, schema = self._opened()
        tolerance = FloatTolerance(request["absolute"], request["relative"])
        committed = read_state(Path(request["path"]), schema)
        found = [array_distance(self._leaf(position), leaf, tolerance) for position, leaf in enumerate(committed)]
        return {"leaves": [{"distance": repr(distance), "within": within} for distance, within in found]}

    # Pieces of the above.

    def _opened(self) -> tuple[AuditFrontend, Schema]:
        if self._frontend is None or self._schema is None:
            raise ZKDVError("the audit was not opened")
        return self._frontend, self._schema

    def _position(self, tree: TreeName, leaf: int) -> int:
        return leaf if tree == "parameters" else len(self._opened()[1].parameters) + leaf

    def _leaf(self, position: int) -> NDArray[Any]:
        if self._stored is not None:
            return self._stored[position]
        if self._last is None:
            raise ZKDVError("there is no state yet")
        return self._last.read(self._state[position])

    def _host_state(self) -> list[NDArray[Any]]:
        schema = self._opened()[1]
        return [self._leaf(position) for position in range(len(schema.parameters) + len(schema.optimizer))]

    def _digests(self, trees: Sequence[TreeName]) -> dict[str, list[str]]:
        schema = self._opened()[1]
        return {
            tree: [
                leaf_digest(self._leaf(self._position(tree, index)), spec.sharding).hex()
                for index, spec in enumerate(schema.tree(tree))
            ]
            for tree in trees
        }

    def _probe(self, tree: TreeName, index: int, spec: LeafSpec) -> NDArray[Any] | None:
        array = self._leaf(self._position(tree, index))
        pieces = [array] if spec.sharding is None else shard_arrays(array, spec.sharding)
        vectors: list[NDArray[Any]] = []
        for piece in pieces:
            signs = probe_signs(self._root, tree, index, piece.shape, spec.dtype)
            data = np.ascontiguousarray(piece).reshape(-1)
            _, vector = _native.commit_leaf(data, spec.dtype, list(piece.shape), self._probe_ratio, signs)
            if vector is not None:
                vectors.append(vector)
        return np.concatenate(vectors) if vectors else None


def main() -> None:
    """Answer requests until there are no more."""
    # What a framework prints must not stand between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    session = _Session()
    for line in sys.stdin:
        try:
            answer = session.answer(json.loads(line))
        except ZKDVError as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 (a stranger's program may lead the framework to any of them)
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
