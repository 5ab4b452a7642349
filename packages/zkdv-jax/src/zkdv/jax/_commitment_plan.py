"""What is committed of a training state, and where each piece stands in the operands and results of the commit call.

The bytes are those of `docs/protocol/commitments.md`; the call is described in `_lowerings`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zkdv import _native
from zkdv.schema import TREES, TreeName

DIGEST_BYTES: Final = 32
SIGN_WORD_BITS: Final = 32

INTEGER_DTYPES: Final = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"},
)
COMPLEX_DTYPES: Final = frozenset({"complex64", "complex128"})
FLOAT_DTYPES: Final = frozenset(
    {
        "float16", "bfloat16", "float32", "float64",
        "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz",
        "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    }
)  # fmt: skip
DTYPES: Final = INTEGER_DTYPES | FLOAT_DTYPES | COMPLEX_DTYPES
"""The element types of the transcript's grammar."""

PACKED_DTYPES: Final = frozenset(
    {"int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
)
"""Element types narrower than a byte, whose layout in memory is not the same everywhere."""


class AbstractArray(Protocol):
    """Whatever has a shape and a dtype: an array, a tracer, a `jax.ShapeDtypeStruct`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each dimension."""

    @property
    def dtype(self) -> Any:
        """Element type."""


@dataclass(frozen=True, slots=True)
class ProbeGeometry:
    """The probe of one leaf, seen as a matrix of `rows` rows and `dimension` real columns.

    Attributes:
        rows: Product of the leaf's leading dimensions; 1 for a scalar.
        dimension: The leaf's last dimension, doubled for complex elements; 1 for a real scalar, 2 for a complex one.
        kept: Values that are kept of each row.
        dtype: `float32`, or `float64` for float64 and complex128 leaves: what is accumulated and committed.
        sign_offset: First word of the leaf's sign stream in the signs of the commit call.
        sign_words: Words of that stream; 0 for a scalar, whose sign is +1.
        offset: First value of the leaf's probe in `probes32` or `probes64`, whichever `dtype` says.
    """

    rows: int
    dimension: int
    kept: int
    dtype: Literal["float32", "float64"]
    sign_offset: int
    sign_words: int
    offset: int

    @property
    def size(self) -> int:
        """Values of the whole probe."""
        return self.rows * self.kept

    def slice_bounds(self) -> NDArray[np.int64]:
        """Where the slices of a row start and end.

        Returns:
            Shape `(kept + 1,)`, int64: slice `j` holds the columns from entry `j` up to, without, entry `j + 1`.
        """
        # floor(j * dimension / kept), without a product that could pass 2^63.
        quotient, remainder = divmod(self.dimension, self.kept)
        steps = np.arange(self.kept + 1, dtype=np.int64)
        return steps * quotient + steps * remainder // self.kept


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """One leaf of a state.

    Attributes:
        name: Its name in the schema record.
        dtype: Its element type, as the transcript names it.
        shape: Extent of each dimension.
        tree: The tree it belongs to.
        index: Its place in that tree.
        probe: Geometry of its probe; None for integer and boolean leaves and for those without elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    tree: TreeName
    index: int
    probe: ProbeGeometry | None


@dataclass(frozen=True, slots=True)
class CommitmentPlan:
    """Leaves of both trees in schema order, parameters first, with the geometry of their probes.

    Attributes:
        leaves: All leaves.
        parameters: How many of them are parameters.
        probe_ratio: The part of each leaf's last dimension that a probe keeps.
        sign_words: Words of all sign streams together: the length of the commit call's `signs`.
        probes32_size: Values of all float32 probes together.
        probes64_size: Values of all float64 probes together.
    """

    leaves: tuple[LeafPlan, ...]
    parameters: int
    probe_ratio: float
    sign_words: int
    probes32_size: int
    probes64_size: int

    @classmethod
    def build(
        cls,
        parameters: Iterable[tuple[str, AbstractArray]],
        optimizer: Iterable[tuple[str, AbstractArray]],
        probe_ratio: float,
    ) -> "CommitmentPlan":
        """Lay out the commitments of a state.

        Args:
            parameters: Name, and shape and dtype, of each parameter leaf, in schema order.
            optimizer: The same of the optimizer's leaves.
            probe_ratio: The part of each leaf's last dimension that a probe keeps, above 0 and at most 1.

        Raises:
            ValueError: If `probe_ratio` is out of range.
            TypeError: If a leaf's element type can't be committed; the message names the leaf and the type.
        """
        if not 0.0 < probe_ratio <= 1.0:
            raise ValueError(f"probe_ratio must be above 0 and at most 1, not {probe_ratio!r}")
        leaves: list[LeafPlan] = []
        sign_words = 0
        sizes = {"float32": 0, "float64": 0}
        for tree, named in zip(TREES, (parameters, optimizer), strict=True):
            for index, (name, array) in enumerate(named):
                dtype = dtype_name(array.dtype, f"{tree} leaf {name}")
                shape = tuple(int(extent) for extent in array.shape)
                probe = _geometry(dtype, shape, probe_ratio, sign_words, sizes)
                if probe is not None:
                    sign_words += probe.sign_words
                    sizes[probe.dtype] += probe.size
                leaves.append(LeafPlan(name, dtype, shape, tree, index, probe))
        count = sum(leaf.tree == "parameters" for leaf in leaves)
        return cls(tuple(leaves), count, float(probe_ratio), sign_words, sizes["float32"], sizes["float64"])

    def check_leaves(self, arrays: Sequence[AbstractArray]) -> None:
        """Refuse arrays that are not the planned ones.

        Raises:
            ValueError: Naming the first leaf that differs, with what was planned and what came.
        """
        if len(arrays) != len(self.leaves):
            raise ValueError(f"the plan has {len(self.leaves)} leaves, {len(arrays)} were given")
        for leaf, array in zip(self.leaves, arrays, strict=True):
            shape, dtype = tuple(array.shape), str(array.dtype)
            if (leaf.shape, leaf.dtype) != (shape, dtype):
                raise ValueError(
                    f"{leaf.tree} leaf {leaf.name} is planned as {leaf.dtype}{list(leaf.shape)} "
                    f"and came as {dtype}{list(shape)}"
                )


def dtype_name(dtype: DTypeLike, where: str) -> str:
    """The transcript's name of an element type.

    Args:
        dtype: The element type, as numpy or JAX gives it.
        where: What has that type, for the message.

    Raises:
        TypeError: If it packs several elements into a byte, or is no type of numbers.
    """
    name = str(dtype)
    if name in DTYPES:
        return name
    if name in PACKED_DTYPES:
        raise TypeError(
            f"{where} is {name}, whose elements share bytes in a way that differs between platforms, so its bytes "
            "can't be committed; keep it as int8 or a wider type and convert it inside the step"
        )
    if name.startswith("key<"):
        raise TypeError(f"{where} is a typed random key ({name}); pass jax.random.key_data of it")
    raise TypeError(
        f"{where} has element type {name}, which can't be committed; these can: {', '.join(sorted(DTYPES))}"
    )


def sign_words(plan: CommitmentPlan, root_digest: bytes) -> NDArray[np.uint32]:
    """The sign streams of all probed leaves, for the commit call's `signs`.

    Args:
        plan: The commitments of a state.
        root_digest: Digest of the run's root record, 32 bytes.

    Returns:
        Shape `(plan.sign_words,)`, uint32: little-endian words of the bit streams, each leaf's from a new word.
    """
    streams = [np.zeros(0, np.uint32)]
    for leaf in plan.leaves:
        if leaf.probe is not None and leaf.probe.sign_words:
            tree: Literal[0, 1] = 0 if leaf.tree == "parameters" else 1
            streams.append(_native.probe_signs(root_digest, tree, leaf.index, leaf.probe.dimension))
    return np.concatenate(streams)


def leaf_digests(plan: CommitmentPlan, digests: NDArray[np.uint32]) -> list[bytes]:
    """The digests of the leaves, 32 bytes each, in plan order.

    Args:
        plan: The commitments of a state.
        digests: Shape `(2 * leaves, 8)`, uint32, as the commit call gives them.
    """
    return _rows(digests[: len(plan.leaves)])


def probe_digests(plan: CommitmentPlan, digests: NDArray[np.uint32]) -> list[bytes]:
    """The digests of the probes' bytes, 32 bytes each, in plan order.

    Args:
        plan: The commitments of a state.
        digests: Shape `(2 * leaves, 8)`, uint32, as the commit call gives them.
    """
    return _rows(digests[len(plan.leaves) :])


def probe_vectors(
    plan: CommitmentPlan, probes32: NDArray[np.float32], probes64: NDArray[np.float64]
) -> list[NDArray[Any] | None]:
    """The probe of each leaf, in plan order; None where a leaf has none.

    Args:
        plan: The commitments of a state.
        probes32: Shape `(plan.probes32_size,)`, float32, as the commit call gives them.
        probes64: Shape `(plan.probes64_size,)`, float64.

    Returns:
        Views of shape `(rows * kept,)`, float32 or float64.
    """
    vectors: list[NDArray[Any] | None] = []
    for leaf in plan.leaves:
        probe = leaf.probe
        if probe is None:
            vectors.append(None)
        else:
            joined = probes32 if probe.dtype == "float32" else probes64
            vectors.append(joined[probe.offset : probe.offset + probe.size])
    return vectors


def _geometry(
    dtype: str, shape: tuple[int, ...], ratio: float, sign_offset: int, sizes: dict[str, int]
) -> ProbeGeometry | None:
    if dtype in INTEGER_DTYPES or math.prod(shape) == 0:
        return None
    parts = 2 if dtype in COMPLEX_DTYPES else 1
    summed: Literal["float32", "float64"] = "float64" if dtype in ("float64", "complex128") else "float32"
    if not shape:
        return ProbeGeometry(1, parts, parts, summed, sign_offset, sign_words=0, offset=sizes[summed])
    dimension = shape[-1] * parts
    return ProbeGeometry(
        rows=math.prod(shape[:-1]),
        dimension=dimension,
        kept=_native.probe_kept(dimension, ratio),
        dtype=summed,
        sign_offset=sign_offset,
        sign_words=-(-dimension // SIGN_WORD_BITS),
        offset=sizes[summed],
    )


def _rows(digests: NDArray[np.uint32]) -> list[bytes]:
    data = np.ascontiguousarray(digests, "<u4").tobytes()
    return [data[start : start + DIGEST_BYTES] for start in range(0, len(data), DIGEST_BYTES)]
