"""Train a classifier of handwritten digits in JAX on several processes, with one transcript that anyone can verify.

Start it once for each process: `python two_processes.py RANK`, with RANK from 0 to 1, on one host. `PROCESSES` and
`COORDINATOR` in the environment say how many there are and where process 0 listens.
"""

import os
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import zkdv
import zkdv.jax

RANK = int(sys.argv[1])
PROOF = sys.argv[2] if len(sys.argv) > 2 else "proof"

if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    os.environ.get("COORDINATOR", "127.0.0.1:47311"), int(os.environ.get("PROCESSES", "2")), RANK
)

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
whole, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(10)])
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
order = np.random.default_rng(0)  # the same order on every rank
training, test = np.split(order.permutation(len(labels)), [1440])
params = model.init(jax.random.key(0), jnp.zeros((1, 64)))["params"]


def on_every_rank(batch):
    """Give each device its rows of a batch; a real loader reads no more than those of its own rank."""
    return [
        jax.make_array_from_callback(array[batch].shape, by_rows, lambda rows, array=array: array[batch][rows])
        for array in (images, labels)
    ]


with zkdv.jax.ZKDV(PROOF, zkdv.ZKDVConfig(name="digits")) as proof:
    proof.start(rolling_window=4)
    state = zkdv.jax.contrib.TrainState.create(proof=proof, apply_fn=model.apply, params=params, tx=optax.adam(1e-2))
    state = jax.device_put(state, whole)

    @proof.jit(donate_argnums=(0,))
    def train_step(state, images, labels):
        def loss(params):
            logits = state.apply_fn({"params": params}, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    for _epoch in range(5):
        for batch in order.permutation(training).reshape(-1, 32):
            state, value = train_step(state, *on_every_rank(batch))

trained = jax.tree.map(lambda leaf: leaf.addressable_data(0), state.params)
accuracy = (model.apply({"params": trained}, images[test]).argmax(-1) == labels[test]).mean()
print(f"rank {RANK}: loss {value:.3f}, test accuracy {accuracy:.1%}")
if RANK == 0:
    print(zkdv.verify(PROOF).verdict)
