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
# # An algorithm of your own
#
# SCAFFOLD corrects every local gradient by how far the mean gradient of all clients lies
# from the client's own. Is a part of this correction as good as all of it? To answer, we
# write the method with a strength, test it, and compare it with FedAvg and SCAFFOLD over
# three seeds.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, scaffold
from fedjax_adapt.data import load, skew, split

CLIENTS, COHORT, ROUNDS, SEEDS = 30, 6, 60, 3
digits = load("digits")
rows = split("dirichlet", digits.y_train, CLIENTS, seed=0, concentration=0.1)
data, shape = digits.federated(rows), digits.shape
model = fa.models.mlp(shape, digits.num_classes, (64,))
task = fa.classification(model, shape, mean=digits.mean, std=digits.std)
plan = fa.Plan(cohort_size=COHORT, batch_size=20, lr=0.1)

counts = skew(rows, digits.y_train, digits.num_classes).label_counts
print("labels that each client holds:", (counts > 0).sum(1))

# %% [markdown]
# ## The method
#
# With a strength s,
#
# ```text
# g    <- grad F_i(theta) + s (c - c_i)
# c_i' =  s (c_i - c) + (w - theta_i) / (K lr)
# c    <- c + 1/N sum_{i in S} (c_i' - c_i)
# ```
#
# where w is the model that a client receives, theta_i the one it ends with, and K its local
# steps. The second equation takes the correction out of the mean of the local gradients
# again, so that c_i' estimates the client's own mean gradient. At s = 0 this is FedAvg, at
# s = 1 SCAFFOLD.
#
# A local rule is written for one client. `init` is its state before the first round,
# `correct` adds to a gradient, and `finish` says what is sent and what is kept. The server
# rule has a state of its own, which clients see as `view.server`. Where nothing is said one
# model goes down and the upload up; `traffic` says that c goes down as well.


# %%
def partial_scaffold(strength=0.5):
    """SCAFFOLD with a part of its correction. Client state: c_i. Server state: c."""

    def correct(grads, view):
        bias = optax.tree.sub(view.client, view.server)
        return optax.tree.add_scale(grads, -strength, bias)

    def finish(run):
        delta = optax.tree.sub(run.params, run.anchor)
        bias = optax.tree.sub(run.client, run.server)
        control = optax.tree.scale(strength, bias)
        control = optax.tree.add_scale(control, -1 / (run.num_steps * run.lr), delta)
        return fa.Upload(delta, extra=optax.tree.sub(control, run.client)), control

    def update(params, control, upload, cohort):
        params = optax.tree.add(params, upload.delta)
        return params, optax.tree.add_scale(control, cohort.share, upload.extra)

    return fa.Algorithm(
        local=fa.LocalRule(
            init=optax.tree.zeros_like,
            correct=correct,
            finish=finish,
            traffic=fa.Traffic(models_down=2, models_up=2, round_trips=1),
        ),
        server=fa.ServerRule(
            init=optax.tree.zeros_like, combine=fa.mean(fa.uniformly), update=update
        ),
    )


# %% [markdown]
# ## Run it
#
# A run is a function of an algorithm and a seed. Each seed draws other first weights,
# cohorts and batches, the same for every method: the comparison is paired. The partition
# stays. Seeds are an axis of `vmap`, and so is the strength: three programs in all.


# %%
TEN_EACH = fa.constant_steps(10)


def run(algorithm, seed, policy=TEN_EACH):
    """The last model, the infos of all rounds, and test accuracy after each of them."""
    algorithm = fa.with_steps(algorithm, policy)
    key_init, key_rounds = jax.random.split(jax.random.key(seed))
    state = fa.init_state(algorithm, task, data, plan, key_init)
    round_fn = fa.make_round(algorithm, task, data, plan)
    keys = jax.random.split(key_rounds, ROUNDS)
    measure = lambda state: fa.evaluate(task, state.params, data.test).accuracy
    state, infos, accuracy = fa.train_and_evaluate(round_fn, state, keys, measure)
    return state.params, infos, accuracy


def over_seeds(algorithm, **more):
    """Likewise, all with a leading axis of seeds."""
    return jax.vmap(lambda seed: run(algorithm, seed, **more))(jnp.arange(SEEDS))


strengths = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
fedavg_model, _, fedavg_curves = over_seeds(fedavg(weights="uniform"))
scaffold_model, scaffold_infos, scaffold_curves = over_seeds(scaffold(scale="none"))
own_models, own_infos, own_curves = jax.vmap(
    lambda strength: over_seeds(partial_scaffold(strength))
)(strengths)
print("test accuracies [strength, seed, round]:", own_curves.shape)

# %% [markdown]
# ## Test it
#
# A method that contains others must be those others at the ends of its range. So the models
# after the last round must be the same, but for rounding. `fa.debug_round` is a round as
# plain Python loops without `jit`, where a debugger can stop. It must agree too.


# %%
def gap(tree, other):
    """The largest difference of two trees of arrays."""
    gaps = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), tree, other)
    return float(max(jax.tree.leaves(gaps)))


at = lambda i: jax.tree.map(lambda leaf: leaf[i], own_models)
print(f"strength 0 from FedAvg    {gap(at(0), fedavg_model):.1e}")
print(f"strength 1 from SCAFFOLD  {gap(at(-1), scaffold_model):.1e}")
print(f"FedAvg from SCAFFOLD      {gap(fedavg_model, scaffold_model):.1e}")
assert gap(at(0), fedavg_model) < 1e-3 and gap(at(-1), scaffold_model) < 1e-3
assert gap(fedavg_model, scaffold_model) > 1e-2

own = fa.with_steps(partial_scaffold(), fa.constant_steps(2))
state = fa.init_state(own, task, data, plan, jax.random.key(0))
fast, info = jax.jit(fa.make_round(own, task, data, plan))(state, jax.random.key(1))
slow, _ = fa.debug_round(own, task, data, plan)(state, jax.random.key(1))
print(f"compiled from plain loops {gap(fast.clients, slow.clients):.1e} in all c_i")
assert gap(fast.clients, slow.clients) < 1e-4 < gap(fast.clients, state.clients)

model_bytes = 4 * fa.num_parameters(state.params)
print("models that a client receives:", float(info.bytes_down) / COHORT / model_bytes)
print("models that it sends:         ", float(info.bytes_up) / COHORT / model_bytes)

# %% [markdown]
# ## Is a part as good?

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
shown = {
    "FedAvg": fedavg_curves,
    "strength 0.5 (ours)": own_curves[2],
    "SCAFFOLD": scaffold_curves,
}
for name, curves in shown.items():
    axes[0].plot(np.arange(1, ROUNDS + 1), np.mean(curves, 0), label=name)
    axes[0].fill_between(
        np.arange(1, ROUNDS + 1), np.min(curves, 0), np.max(curves, 0), alpha=0.2
    )
axes[0].set(xlabel="round", ylabel="test accuracy", ylim=(0.6, 1))
axes[0].legend(title="mean and range of 3 seeds")
late = np.asarray(own_curves)[:, :, -10:].mean(2)
axes[1].plot(strengths, late, "o-", label=[f"seed {seed}" for seed in range(SEEDS)])
axes[1].set(xlabel="strength", ylabel="accuracy, mean of the last 10 rounds")
axes[1].legend()
plt.show()

# %%
print("mean of the last 10 rounds, mean +- deviation of 3 seeds")
for name, curves in shown.items():
    values = np.asarray(curves)[:, -10:].mean(1)
    print(f"  {name:20} {values.mean():.4f} +- {values.std(ddof=1):.4f}")
lost = late[-1] - late[2]  # on the same seed
print("all of the correction minus half of it, by seed:", lost.round(4))
assert lost.mean() > 0 and late[-1].mean() > late[0].mean()

# %% [markdown]
# No: on this problem half of the correction gives less than all of it, on each of the three
# seeds, and the accuracy grows with the strength. Three seeds of one partition do not say
# that this is so elsewhere.

# %% [markdown]
# ## A step policy of your own
#
# A step policy says how many local steps each client takes. It may use what the local rule
# keeps. Here a client measures `||c_i - c||` before it trains, and those whose gradients
# differ less from the others' take more steps. The total is the same as before but for
# rounding.


# %%
def steps_by_agreement(num_steps=10):
    """Shares num_steps for each client of the cohort by 1 / ||c_i - c||."""

    def measure(view, key):  # one client
        distance = optax.tree.norm(optax.tree.sub(view.client, view.server))
        return jnp.maximum(distance, 1e-3)  # all are 0 in the first round

    def steps(state, cohort, distances):  # the whole cohort
        share = 1 / distances / (1 / distances).sum()
        total = num_steps * len(distances)
        return jnp.maximum(jnp.round(share * total), 1).astype(jnp.int32)

    return fa.StepPolicy(
        steps, measure=measure, traffic=fa.Traffic(scalars_up=1, round_trips=1)
    )


_, infos, adaptive_curves = over_seeds(
    partial_scaffold(1.0), policy=steps_by_agreement()
)

# %%
cohorts, steps = np.asarray(infos.cohort), np.asarray(infos.num_steps)
mean_steps = [steps[cohorts == client].mean() for client in range(CLIENTS)]
shares = counts / counts.sum(1, keepdims=True)
skewness = np.abs(shares - counts.sum(0) / counts.sum()).sum(1) / 2

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
axes[0].plot(skewness, mean_steps, "o")
axes[0].set(
    xlabel="distance of the client's labels from all labels (total variation)",
    ylabel="mean local steps",
)
for name, curves in {"10 each": own_curves[-1], "shared": adaptive_curves}.items():
    axes[1].plot(np.arange(1, ROUNDS + 1), np.mean(curves, 0), label=name)
    axes[1].fill_between(
        np.arange(1, ROUNDS + 1), np.min(curves, 0), np.max(curves, 0), alpha=0.2
    )
axes[1].set(xlabel="round", ylabel="test accuracy", ylim=(0.6, 1))
axes[1].legend(title="strength 1, local steps")
plt.show()

total = steps.sum((1, 2)) / (10 * COHORT * ROUNDS)
adaptive = np.asarray(adaptive_curves)[:, -10:].mean(1)
correlation = np.corrcoef(skewness, mean_steps)[0, 1]
print("local steps in all, relative to 10 each, by seed:", total.round(3))
print("local steps of a client: least", steps.min(), "most", steps.max())
print("correlation of label distance and steps:", correlation.round(2))
print("accuracy minus that with 10 each, by seed:", (adaptive - late[-1]).round(4))
assert np.abs(total - 1).max() < 0.01

# %% [markdown]
# Clients whose labels differ more take fewer steps, as the rule wants, though the relation
# is loose. Accuracy does not follow: the sign of the difference is not the same on all
# seeds. A rule that does what it was built for need not help.
#
# `fa.register("algorithm")` above the function makes it a name for runs and sweeps with
# folders, and `docs/own-algorithm.md` has the rest.
