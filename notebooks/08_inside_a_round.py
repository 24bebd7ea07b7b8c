# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inside a round
#
# What do clients do between two models of the server, and what does it cost? We look at one
# round from three sides: a probe along the local steps, the same round as plain Python
# loops, and a clock with compile time apart. All figures are of one seed, n = 1.

# %%
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.data import load, skew, split

CLIENTS, STEPS = 10, 20
digits = load("digits")
rows = split("nonbalance", digits.y_train, num_clients=CLIENTS)
data, shape = digits.federated(rows), digits.shape
model = fa.models.mlp(shape, digits.num_classes, (64,))
task = fa.classification(model, shape, mean=digits.mean, std=digits.std)
plan = fa.Plan(batch_size=20, lr=0.1)  # no cohort_size: everyone, in client order
labels = (skew(rows, digits.y_train, digits.num_classes).label_counts > 0).sum(1)
print("labels that each client holds:", labels)

# %% [markdown]
# ## A probe along the local steps
#
# A probe is a fold: `init(view)` before the first step, then `update(probe, grads, view)`
# at each of them. It belongs to the step policy. A local rule sees the result as
# `run.probe`, and what it puts into `Upload.info` is shown in `info.clients` and not sent.


# %%
def init(view):
    zeros = jnp.zeros(STEPS)
    return {"gradient norm": zeros, "distance from the server's model": zeros}


def update(probe, grads, view):
    moved = optax.tree.norm(optax.tree.sub(view.params, view.anchor))
    seen = {
        "gradient norm": optax.tree.norm(grads),
        "distance from the server's model": moved,
    }
    return {name: probe[name].at[view.step].set(seen[name]) for name in probe}


def finish(run):
    delta = optax.tree.sub(run.params, run.anchor)
    return fa.Upload(delta, info={"probe": run.probe, "delta": delta}), run.client


policy = fa.constant_steps(STEPS)._replace(probe=fa.Probe(init, update))
algorithm = fa.with_steps(fedavg(), policy)
algorithm = algorithm._replace(local=algorithm.local._replace(finish=finish))

state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
round_fn = fa.make_round(algorithm, task, data, plan)
keys = jax.random.split(jax.random.key(1), 5)
state, _ = fa.train(round_fn, state, keys)  # the sixth round is looked into
after, info = jax.jit(round_fn)(state, jax.random.key(2))
print(jax.tree.map(jnp.shape, info.clients["probe"]))

# %%
probe = jax.tree.map(np.asarray, info.clients["probe"])
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
colors = plt.get_cmap("viridis")((10 - labels) / 9)
for panel, (name, values) in zip(axes, sorted(probe.items()), strict=True):
    for client in range(CLIENTS):
        panel.plot(np.arange(STEPS), values[client], color=colors[client])
    panel.set(xlabel="local step", ylabel=name)
axes[0].set_title("dark: all ten labels, light: two")
plt.show()

# %% [markdown]
# Do clients with few labels go further? And do they go where the others go? The cosine of
# a client's move with the mean move of all clients says so. `fa.diagnostics` has what
# papers show of a round, such as how far the moves agree in each array of the model.

# %%
flat = jax.vmap(lambda delta: ravel_pytree(delta)[0])
moves = np.asarray(flat(info.clients["delta"]))  # [clients, parameters]
mean = moves.mean(0)
length = np.linalg.norm(moves, axis=1)
cosine = moves @ mean / length / np.linalg.norm(mean)
print("client labels  length  cosine with the mean move")
for client in range(CLIENTS):
    print(f"{client:6} {labels[client]:6} {length[client]:7.2f} {cosine[client]:7.2f}")

few = labels <= 2
for name, values in {"length": length, "cosine": cosine}.items():
    print(
        f"mean {name}: {values[few].mean():.2f} with two labels, "
        f"{values[~few].mean():.2f} with more"
    )
for name, share in fa.diagnostics.consistency_by_layer(info.clients["delta"]).items():
    print(f"agreement of the moves in {name:24} {float(share):.2f}")
assert cosine[few].mean() < cosine[~few].mean()

# %% [markdown]
# In this round clients with two labels go about as far as the others, but less along the
# mean move. How near does the average come to what the same number of steps on the data of
# all clients would have made of the model?

# %%
distance = fa.diagnostics.distance
central = fa.diagnostics.central_params(
    task, data, plan, state.params, jax.random.key(2), STEPS
)
print(f"the round moves the model by       {distance(after.params, state.params):.2f}")
print(f"central SGD would have moved it by {distance(central, state.params):.2f}")
print(f"and they end apart by             {distance(after.params, central):.2f}")
assert distance(after.params, state.params) < distance(central, state.params) / 2

# %% [markdown]
# The moves cancel in part: their mean is less than half as long as the way that central SGD
# goes.
#
# ## The same round in plain loops
#
# `fa.debug_round` takes what `fa.make_round` takes, and returns the same numbers but for
# rounding. It is slow. In it every function sees plain arrays, so `print`, `float(...)`
# and a debugger work, and what fails is named by client and step.

# %%
small = replace(plan, cohort_size=3)
two = fa.with_steps(fedavg(), fa.constant_steps(2))
begin = fa.init_state(two, task, data, small, jax.random.key(0))
fast, _ = jax.jit(fa.make_round(two, task, data, small))(begin, jax.random.key(3))
slow, _ = fa.debug_round(two, task, data, small)(begin, jax.random.key(3))
gap = float(distance(fast.params, slow.params))
print(
    f"compiled from plain loops: {gap:.1e}, of a move of "
    f"{float(distance(fast.params, begin.params)):.2f}"
)
assert gap < 1e-4


def looked_into(grads, view):
    norm = float(optax.tree.norm(grads))  # no tracer here
    print(f"client {int(view.id)} step {int(view.step)}: gradient norm {norm:.2f}")
    return grads


watched = two._replace(local=two.local._replace(correct=looked_into))
_ = fa.debug_round(watched, task, data, small)(begin, jax.random.key(3))

# %% [markdown]
# A rule with a mistake: it divides by how far the client has gone, which is 0 at the first
# step. The compiled round returns a model of NaN. The loops say where it comes from.


# %%
def wrong(grads, view):
    moved = optax.tree.norm(optax.tree.sub(view.params, view.anchor))
    return optax.tree.scale(1 / moved, grads)


broken = two._replace(local=two.local._replace(correct=wrong))
spoilt, _ = jax.jit(fa.make_round(broken, task, data, small))(begin, jax.random.key(3))
finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(spoilt.params))
print("the compiled round's model is finite:", finite)
try:
    fa.debug_round(broken, task, data, small)(begin, jax.random.key(3))
except FloatingPointError as error:
    print(f"FloatingPointError: {error}")
else:
    raise AssertionError("the loops did not see it")

# %% [markdown]
# ## What a round costs
#
# JAX answers before the device is done, so a clock must wait: `jax.block_until_ready`.
# The first call compiles, which `lower(...).compile()` does by itself. Times are this
# machine's, at this moment.


# %%
def seconds(function, *args):
    """How long a call takes until its results are there."""
    began = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - began


def cost(algorithm):
    """Seconds to compile a round, and of ten rounds after a first."""
    begin = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(algorithm, task, data, plan))
    key = jax.random.key(4)
    began = time.perf_counter()
    compiled = round_fn.lower(begin, key).compile()
    compiling = time.perf_counter() - began
    jax.block_until_ready(compiled(begin, key))
    return compiling, [seconds(compiled, begin, key) for _ in range(10)]


plain = fa.with_steps(fedavg(), fa.constant_steps(STEPS))
print(
    f"{CLIENTS} clients x {STEPS} steps on {jax.devices()[0].device_kind}, "
    f"jax {jax.__version__}; median and range of 10 rounds"
)
for name, method in {"FedAvg": plain, "with the probe": algorithm}.items():
    compiling, rounds = cost(method)
    low, middle, high = 1e3 * np.quantile(rounds, [0, 0.5, 1])
    print(
        f"{name:15} compile {compiling:5.2f} s, then {middle:6.2f} ms a round "
        f"({low:.2f} to {high:.2f})"
    )

early = jax.jit(fa.make_round(plain, task, data, plan))
begin = fa.init_state(plain, task, data, plan, jax.random.key(0))
jax.block_until_ready(early(begin, keys[0]))
began = time.perf_counter()
after, _ = early(begin, keys[0])
returned = time.perf_counter() - began
jax.block_until_ready(after)
ready = time.perf_counter() - began
print(
    f"one round: the call returns after {1e3 * returned:.2f} ms, "
    f"the result is there after {1e3 * ready:.2f} ms"
)

# %% [markdown]
# `info` counts what a real federation would pay, whatever the simulator takes: bytes, and
# with `Plan(clock=...)` simulated seconds.

# %%
real = replace(plan, clock=fa.Clock(step_seconds=0.05))
begin = fa.init_state(plain, task, data, real, jax.random.key(0))
_, info = jax.jit(fa.make_round(plain, task, data, real))(begin, keys[0])
print(
    f"{float(info.bytes_up) / 1e6:.2f} MB up, {float(info.bytes_down) / 1e6:.2f} MB down, "
    f"{float(info.seconds):.2f} simulated seconds"
)
