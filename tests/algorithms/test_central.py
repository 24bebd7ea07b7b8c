import jax
import jax.numpy as jnp
import numpy as np
import oracle
from helpers import keys, make_clients, make_data, make_task, start

from fedjax_adapt import FederatedDataset, Plan, constant_steps, with_steps
from fedjax_adapt.algorithms import fedavg


def test_fedavg_on_pooled_data_is_sgd(x64):
    data = make_data(dtype=np.float64).pooled()
    plan = Plan(batch_size=6, lr=0.3, lr_decay=0.9, shuffle="none", weight_decay=0.01)
    algorithm = with_steps(fedavg(), constant_steps(8))  # 48 examples: one epoch
    round_fn, state = start(algorithm, make_task(jnp.float64), data, plan)
    pool = [
        np.concatenate(part)
        for part in zip(*make_clients(dtype=np.float64), strict=True)
    ]
    theta = oracle.flat(state.params)
    for t, key in enumerate(keys(2)):
        state, _ = jax.jit(round_fn)(state, key)
        theta = oracle.sgd(theta, pool, plan, t, epochs=1)
    np.testing.assert_allclose(oracle.flat(state.params), theta, atol=1e-12)


def test_pooling_takes_every_held_row_once():
    x, y = np.arange(6.0)[:, None], np.array([0, 1, 2, 0, 1, 2])
    shared = FederatedDataset.from_rows(x, y, [[0, 1, 2], [2, 1], [], [5]])
    pooled = shared.pooled()
    assert pooled.num_clients == pooled.num_holders == 1
    np.testing.assert_array_equal(pooled.index, [[0, 1, 2, 5]])
    np.testing.assert_array_equal(pooled.label_counts, [[1, 1, 2]])
