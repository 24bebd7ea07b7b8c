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
# # Quickstart
#
# A federation of 30 clients learns handwritten digits (scikit-learn's 1,797, no
# download): who holds what, FedAvg beside FedSSG, and an algorithm of your own.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedssg
from fedjax_adapt.data import load, skew, split
from fedjax_adapt.models import mlp

# %% [markdown]
# ## Data
#
# A source holds central arrays; a partition says which rows each client owns. Here every
# client draws its labels from its own Dirichlet distribution: small concentration, strong
# label skew.

# %%
digits = load("digits")
rows = split("dirichlet", digits.y_train, 30, seed=0, concentration=0.3)
print(skew(rows, digits.y_train, digits.num_classes).summary())

# %%
counts = skew(rows, digits.y_train, digits.num_classes).label_counts
figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
picture = axes.imshow(counts.T, aspect="auto", cmap="viridis")
axes.set(xlabel="client", ylabel="digit", title="examples per client and digit")
figure.colorbar(picture, label="examples")
plt.show()

# %% [markdown]
# ## Two algorithms, the same plan
#
# `Plan` says what is the same for every algorithm compared. A round is a pure function
# (state, key) -> (state, info); `train_and_evaluate` scans it on the device. The same
# round keys mean the same cohorts, so the comparison is paired.

# %%
data = digits.federated(rows)
model = mlp(digits.shape, digits.num_classes, widths=(64,))
task = fa.classification(model, digits.shape, mean=digits.mean, std=digits.std)
plan = fa.Plan(
    participation=fa.bernoulli(0.3), batch_size=20, lr=0.1, lr_decay=0.998, clip_norm=10
)
ROUNDS = 40
keys = jax.random.split(jax.random.key(0), ROUNDS)


def accuracies(algorithm):
    """Test accuracy of the server model after each round."""
    algorithm = fa.with_steps(algorithm, fa.epochs(5))
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(1))
    round_fn = fa.make_round(algorithm, task, data, plan)
    measure = lambda state: fa.evaluate(task, state.params, data.test)
    _, _, metrics = fa.train_and_evaluate(round_fn, state, keys, measure)
    return np.asarray(metrics.accuracy)


curves = {
    "FedAvg": accuracies(fedavg()),
    "FedSSG": accuracies(fedssg(0.05, total_rounds=ROUNDS, participation=0.3)),
}

# %% [markdown]
# ## An algorithm of your own, in ten lines
#
# Written for one client; the engine adds the client axis. This one pulls each client back
# to the model it was sent, harder the further it has drifted.


# %%
def leash(strength=0.3):
    """A gradient correction that grows with the drift from the broadcast model."""

    def correct(grads, view):
        drift = optax.tree.sub(view.params, view.anchor)
        pull = strength * optax.tree.norm(drift)
        return optax.tree.add_scale(grads, pull, drift)

    return fa.Algorithm(local=fa.LocalRule(correct=correct))


curves["leash (yours)"] = accuracies(leash())

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, curve in curves.items():
    axes.plot(
        np.arange(1, ROUNDS + 1), curve, label=f"{name}: {curve[-10:].mean():.3f}"
    )
axes.set(
    xlabel="round", ylabel="test accuracy", title="digits, 30 clients, Dirichlet 0.3"
)
axes.legend(title="mean of the last 10 rounds")
plt.show()
assert min(curve[-10:].mean() for curve in curves.values()) > 0.85

# %% [markdown]
# ## Adaptive local steps on any base
#
# The number of local steps is a part of its own: any step policy goes with any
# algorithm. Constant steps, epochs, or your own function of the cohort.

# %%
fewer_for_the_small = fa.StepPolicy(
    steps=lambda state, cohort, measurement: 1 + cohort.num_examples // 10
)
algorithm = fa.with_steps(fedssg(0.05, ROUNDS, 0.3), fewer_for_the_small)
state = fa.init_state(algorithm, task, data, plan, jax.random.key(1))
state, info = jax.jit(fa.make_round(algorithm, task, data, plan))(state, keys[0])
print("clients    ", info.cohort)
print("local steps", info.num_steps)
