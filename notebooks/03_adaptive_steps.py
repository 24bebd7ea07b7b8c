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
# # Adaptive local steps on any base
#
# How many local steps does each client take, and does it help? Four step policies run on
# two bases, FedAvg and SCAFFOLD. Ten clients hold scikit-learn's digits. The first has all
# ten labels, the last five have two.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, scaffold
from fedjax_adapt.data import load, skew, split

CLIENTS, ROUNDS = 10, 60
digits = load("digits")
rows = split("nonbalance", digits.y_train, num_clients=CLIENTS)
counts = skew(rows, digits.y_train, digits.num_classes).label_counts
print("labels per client  ", (counts > 0).sum(1))
print("examples per client", counts.sum(1))

# %% [markdown]
# ## Policies and bases
#
# A policy is a value. `fa.with_steps(base, policy)` puts it on a base and leaves the rest
# of the base as it is. All runs below share data, first weights and round keys.

# %%
data, shape = digits.federated(rows), digits.shape
model = fa.models.mlp(shape, digits.num_classes, (64,))
task = fa.classification(model, shape, mean=digits.mean, std=digits.std)
plan = fa.Plan(batch_size=20, lr=0.05, clip_norm=10.0)
keys = jax.random.split(jax.random.key(1), ROUNDS)

policies = {
    "constant": fa.constant_steps(10),
    "FedGSNR": fa.gsnr_steps(10),
    "FedVeca": fa.veca_steps(alpha=0.9),
    "GIFT": fa.gift_steps(10, warmup=10),
}
bases = {"FedAvg": fedavg(), "SCAFFOLD": scaffold()}


def train(algorithm):
    """Steps by round and client, and the test accuracy after each round."""
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    measure = lambda state: fa.evaluate(task, state.params, data.test)
    _, infos, metrics = fa.train_and_evaluate(round_fn, state, keys, measure)
    by_client = np.argsort(np.asarray(infos.cohort), axis=1)
    steps = np.take_along_axis(np.asarray(infos.num_steps), by_client, axis=1)
    return steps, np.asarray(metrics.accuracy)


runs = {
    (base, policy): train(fa.with_steps(bases[base], policies[policy]))
    for base in bases
    for policy in policies
}

# %% [markdown]
# ## Who takes how many steps
#
# Each line is a client, dark for the one with most labels.

# %%
figure, axes = plt.subplots(2, 4, figsize=(11, 4.4), layout="constrained", sharex=True)
colors = plt.get_cmap("viridis")(np.linspace(0, 0.9, CLIENTS))
for row, base in zip(axes, bases, strict=True):
    for panel, policy in zip(row, policies, strict=True):
        steps, _ = runs[base, policy]
        for client in range(CLIENTS):
            panel.plot(np.arange(1, ROUNDS + 1), steps[:, client], color=colors[client])
        panel.set_title(f"{policy} on {base}")
for panel in axes[-1]:
    panel.set_xlabel("round")
for panel in axes[:, 0]:
    panel.set_ylabel("local steps")
plt.show()

# %% [markdown]
# FedGSNR shares a fixed total: clients whose gradients carry more signal take more of it.
# FedVeca gives each client its own number from how far its gradients move, at least 2. GIFT
# gives all clients the same number and lowers it when their updates stop agreeing, which
# happens here on SCAFFOLD alone. FedVeca measures on one mini-batch, so its counts jump.

# %%
for base in bases:
    constant, gsnr = (runs[base, policy][0] for policy in ("constant", "FedGSNR"))
    assert (constant == 10).all()
    assert np.ptp(gsnr, axis=1).max() > 0  # clients differ within a round
    assert abs(gsnr.sum(1) / constant.sum(1) - 1).max() < 0.1  # the total does not
    veca, gift = (runs[base, policy][0] for policy in ("FedVeca", "GIFT"))
    assert veca.min() >= 2
    assert np.ptp(gift, axis=1).max() == 0 and (np.diff(gift[:, 0]) <= 0).all()
    assert (gift[-1, 0] < 10) == (base == "SCAFFOLD")

# %% [markdown]
# ## Does it help?
#
# Policies that take more steps in all should not be compared by rounds alone. The right
# panel counts local steps of all clients.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
styles = {"FedAvg": "-", "SCAFFOLD": "--"}
for (base, policy), (steps, accuracy) in runs.items():
    color = f"C{list(policies).index(policy)}"
    look = {"color": color, "linestyle": styles[base], "linewidth": 1.2}
    axes[0].plot(np.arange(1, ROUNDS + 1), accuracy, **look)
    axes[1].plot(steps.sum(1).cumsum(), accuracy, label=f"{policy} on {base}", **look)
axes[0].set(xlabel="round", ylabel="test accuracy")
axes[1].set(xlabel="local steps of all clients", ylim=(0.3, 1))
axes[1].legend(fontsize=7)
plt.show()

# %%
print(f"{'':22} steps  accuracy, mean of the last 10 rounds")
for (base, policy), (steps, accuracy) in runs.items():
    print(f"{policy + ' on ' + base:22} {steps.sum():5}  {accuracy[-10:].mean():.3f}")

# %% [markdown]
# This is one seed of a small problem, n = 1: differences of a point may be chance. Notebook
# 00 shows a policy of your own, and `fedjax-adapt run --match` gives a baseline as many
# steps as another run took.
