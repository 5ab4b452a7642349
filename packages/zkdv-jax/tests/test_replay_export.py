"""Sealed programs: what they hold, and that another process gets the same bits out of them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from zkdv.errors import ZKDVError
from zkdv.jax._replay_export import load, seal

TRANSITION = """
import jax, jax.numpy as jnp, numpy as np, optax

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 100)))
parameters = {"w": jnp.full((7, 5), 0.5), "b": jnp.zeros(5, jnp.bfloat16)}
state = optimizer.init(parameters)
leaves, structure = jax.tree.flatten((parameters, state))

def transition(*inputs):
    *leaves, batch = inputs
    parameters, state = jax.tree.unflatten(structure, leaves)
    def loss(p):
        return jnp.tanh(batch @ p["w"] + p["b"].astype(jnp.float32)).mean()
    updates, state = optimizer.update(jax.grad(loss)(parameters), state, parameters)
    return jax.tree.leaves((optax.apply_updates(parameters, updates), state))

batch = jnp.asarray(np.random.default_rng(0).standard_normal((16, 7), dtype=np.float32))
inputs = [*leaves, batch]
abstract = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in inputs]
"""


def in_fresh_process(program: str, *arguments: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def named(source: str, filename: str) -> dict[str, Any]:
    """Run source under a file name of its own."""
    names: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), names)  # noqa: S102 (our own text, above)
    return names


def test_a_fresh_process_gets_the_same_bits(tmp_path: Path) -> None:
    given = named(TRANSITION, "train.py")
    sealed = seal(given["transition"], given["abstract"])
    (tmp_path / "program").write_bytes(sealed.blob)
    np.savez(tmp_path / "inputs.npz", *[np.asarray(leaf).reshape(-1).view(np.uint8) for leaf in given["inputs"]])
    in_fresh_process(
        """
import sys, jax, jax.numpy as jnp, ml_dtypes, numpy as np
from zkdv.jax._replay_export import load
program = load(open(sys.argv[1], "rb").read())
stored = np.load(sys.argv[2])
leaves = [stored[name].view(aval.dtype).reshape(aval.shape) for name, aval in zip(stored.files, program.in_avals)]
results = jax.jit(program.call)(*leaves)
np.savez(sys.argv[3], *[np.asarray(leaf).reshape(-1).view(np.uint8) for leaf in results])
""",
        tmp_path / "program",
        tmp_path / "inputs.npz",
        tmp_path / "results.npz",
    )
    here = jax.jit(given["transition"])(*given["inputs"])
    there = np.load(tmp_path / "results.npz")
    assert len(here) == len(there.files)
    for leaf, name in zip(here, there.files, strict=True):
        assert np.asarray(leaf).tobytes() == there[name].tobytes()
    assert any(not np.array_equal(new, old) for new, old in zip(here, given["inputs"], strict=False))


def test_blob_and_text_are_the_same_from_another_file_and_process(tmp_path: Path) -> None:
    given = named(TRANSITION, "train.py")
    sealed = seal(given["transition"], given["abstract"])
    moved = tmp_path / "elsewhere" / "moved.py"
    moved.parent.mkdir()
    moved.write_text("\n\n# moved down\n" + TRANSITION)
    in_fresh_process(
        """
import pathlib, runpy, sys
from zkdv.jax._replay_export import seal
given = runpy.run_path(sys.argv[1])
sealed = seal(given["transition"], given["abstract"])
pathlib.Path(sys.argv[2]).write_bytes(sealed.blob)
pathlib.Path(sys.argv[3]).write_bytes(sealed.text)
""",
        moved,
        tmp_path / "blob",
        tmp_path / "text",
    )
    assert (tmp_path / "text").read_bytes() == sealed.text
    assert (tmp_path / "blob").read_bytes() == sealed.blob


def test_a_sealed_program_names_no_file_or_folder() -> None:
    sealed = seal(lambda x: jnp.sin(x) * 2, [jax.ShapeDtypeStruct((3,), jnp.float32)])
    for held in (sealed.blob, sealed.text):
        assert Path(__file__).name.encode() not in held
        assert b".py" not in held


def test_the_text_says_what_is_computed_and_changes_with_it() -> None:
    argument = [jax.ShapeDtypeStruct((3,), jnp.float32)]
    sealed = seal(lambda x: jnp.sin(x) * 2, argument)
    assert b"stablehlo.sine" in sealed.text
    assert b"loc(" not in sealed.text
    assert sealed.platforms == (jax.default_backend(),)
    assert seal(lambda y: jnp.sin(y) * 2, argument) == sealed
    other = seal(lambda x: jnp.sin(x) * 3, argument)
    assert other.text != sealed.text
    assert other.blob != sealed.blob


def test_results_come_as_a_list_whatever_the_function_returns() -> None:
    optimizer = optax.sgd(0.1)  # Its state is made of types that jax.export has not been told of.
    sealed = seal(lambda w: {"state": optimizer.init(w), "double": 2 * w, "both": (w, w)}, [jnp.ones(3)])
    results = load(sealed.blob).call(jnp.ones(3))
    assert isinstance(results, list)
    assert [result.tolist() for result in results] == [[1.0] * 3, [1.0] * 3, [2.0] * 3]


def test_sixty_four_bit_programs_keep_their_types() -> None:
    with jax.enable_x64(new_val=True):
        sealed = seal(lambda x: x + 1e-12, [jax.ShapeDtypeStruct((), jnp.float64)])
        (result,) = load(sealed.blob).call(jnp.float64(1.0))
        assert float(result) == 1.0 + 1e-12


def test_a_program_that_cannot_be_exported_says_why() -> None:
    def speaks(x: jax.Array) -> jax.Array:
        jax.debug.callback(print, x)
        return x

    with pytest.raises(ZKDVError, match=r"the program can't be exported for replay: .*callback"):
        seal(speaks, [jax.ShapeDtypeStruct((), jnp.float32)])


@pytest.mark.parametrize("damage", ["empty", "noise", "cut", "zeroed"])
def test_bytes_that_are_no_program_are_refused(damage: str) -> None:
    whole = seal(jnp.sin, [jax.ShapeDtypeStruct((3,), jnp.float32)]).blob
    damaged = {
        "empty": b"",
        "noise": b"no program",
        "cut": whole[: len(whole) // 2],
        "zeroed": bytes(8) + whole[8:],
    }[damage]
    with pytest.raises(ZKDVError, match=f"{len(damaged)} bytes are no exported program that jax .* reads"):
        load(damaged)
