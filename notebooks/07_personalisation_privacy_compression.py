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
# # Personal models, compression, privacy
#
# What does each of them give, and what does it cost? Personal models are scored by each
# client's own test, compression by accuracy for the bytes sent, privacy by accuracy for an
# epsilon. Every figure has three seeds of first weights, cohorts and batches, run side by
# side with `vmap`, and one partition.

# %%
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ditto, fedavg, fedper
from fedjax_adapt.data import load, split

SEEDS, ROUNDS, CLIENTS = 3, 50, 20
digits = load("digits")
rows = split("labels_per_client", digits.y_train, CLIENTS, num_labels=3)
data, shape = digits.federated(rows).split_clients(test_share=0.3), digits.shape
model = fa.models.mlp(shape, digits.num_classes, (64,))
task = fa.classification(model, shape, mean=digits.mean, std=digits.std)
plan = fa.Plan(cohort_size=10, batch_size=20, lr=0.1)
print(data, "of 3 labels each")


def over_seeds(algorithm, measure, every=ROUNDS):
    """Infos and measures of all seeds, each [seeds, ...]."""
    algorithm = fa.with_steps(algorithm, fa.constant_steps(10))

    def run(seed):
        key_init, key_rounds = jax.random.split(jax.random.key(seed))
        state = fa.init_state(algorithm, task, data, plan, key_init)
        round_fn = fa.make_round(algorithm, task, data, plan)
        keys = jax.random.split(key_rounds, ROUNDS)
        see = lambda state: measure(algorithm, state)
        return fa.train_and_evaluate(round_fn, state, keys, see, every)[1:]

    infos, measures = jax.jit(jax.vmap(run))(jnp.arange(SEEDS))
    return infos, np.asarray(measures)


# %% [markdown]
# ## Personal models
#
# Each client needs three digits only. FedAvg gives all the same model. FedPer keeps the
# last layer at the client. Ditto trains a second model, held near the server's.


# %%
def on_own_tests(algorithm, state):
    """Accuracy of the model that each client uses, on its own test, [clients]."""
    has_own = algorithm.local.personal is not None
    used = fa.personal_models(algorithm, state) if has_own else state.params
    return fa.evaluate_clients(task, used, data).accuracy


own = {}  # [seeds, clients]
for name, method in {
    "FedAvg": fedavg(),
    "FedPer": fedper(),
    "Ditto": ditto(0.1),
}.items():
    _, measures = over_seeds(method, on_own_tests)
    own[name] = measures[:, -1]

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, values in own.items():
    axes.plot(np.arange(CLIENTS), np.sort(values.mean(0)), "o-", label=name)
axes.set(xlabel="clients, worst first", xticks=[])
axes.set(ylabel="accuracy on own test, mean of 3 seeds")
axes.legend()
plt.show()

for name, values in own.items():
    mean, worst = values.mean(1), values.min(1)
    print(
        f"{name:7} mean client {mean.mean():.3f} +- {mean.std(ddof=1):.3f}, "
        f"worst client {worst.mean():.3f} +- {worst.std(ddof=1):.3f}"
    )
print("mean +- deviation of 3 seeds")
assert (own["Ditto"].mean(1) > own["FedAvg"].mean(1)).all()
assert (own["FedPer"].mean(1) > own["FedAvg"].mean(1)).all()

# %% [markdown]
# On every seed both kinds of personal models are better for the mean client than one model
# for all. The worst client gains on average, too, but by how much varies between seeds.
#
# ## Compression
#
# `fa.with_compression` sends less of an update: the largest 2 % of its numbers, or their
# signs. With error feedback a client keeps what was lost and adds it to its next update.
# `info.bytes_up` counts what is sent.

# %%
smaller = {
    "all numbers": fedavg(),
    "largest 2 %": fa.with_compression(fedavg(), fa.top_k(0.02)),
    "largest 2 %, no feedback": fa.with_compression(fedavg(), fa.top_k(0.02), False),
    "signs": fa.with_compression(fedavg(), fa.sign()),
}
on_test = lambda algorithm, state: fa.evaluate(task, state.params, data.test).accuracy
sent, curves = {}, {}
for name, method in smaller.items():
    infos, curves[name] = over_seeds(method, on_test, every=1)
    sent[name] = np.asarray(infos.bytes_up)[0].cumsum() / 1e6

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
for name, values in curves.items():
    for panel, x in ((axes[0], np.arange(1, ROUNDS + 1)), (axes[1], sent[name])):
        panel.plot(x, values.mean(0), label=name)
        panel.fill_between(x, values.min(0), values.max(0), alpha=0.2)
axes[0].set(xlabel="round", ylabel="test accuracy")
axes[1].set(xlabel="MB sent by all clients", xscale="log")
axes[0].legend(title="mean and range of 3 seeds", fontsize=8)
plt.show()

print(f"{'':25} MB in all  accuracy at the end  90 % in round, after MB")
for name, values in curves.items():
    late = values[:, -10:].mean(1)
    reached = int((values.mean(0) >= 0.9).argmax())
    print(
        f"{name:25} {sent[name][-1]:9.2f}  {late.mean():.3f} +- {late.std(ddof=1):.3f}  "
        f"{reached + 1:17}  {sent[name][reached]:13.2f}"
    )
print("the end is the mean of the last 10 rounds; mean +- deviation of 3 seeds")
last = {name: values[:, -10:].mean(1) for name, values in curves.items()}
assert (last["largest 2 %"] > last["largest 2 %, no feedback"]).all()
assert sent["all numbers"][-1] > 20 * sent["largest 2 %"][-1]

# %% [markdown]
# Two per cent of the numbers, each with its place, are a twenty-fifth of the bytes, and
# signs a little less. By rounds both learn more slowly, by bytes much faster. Error
# feedback pays on every seed.
#
# ## Privacy
#
# `fa.with_privacy` clips each client's update to a norm C and adds noise to their mean, of
# deviation z C by the expected number of clients. So the more clients, the less noise. Here
# they are a thousand with ten generated examples each, the model is linear, and every
# client takes part with probability 0.1. The noise multiplier z is one more axis of `vmap`.

# %%
MANY, RATE, DELTA = 1000, 0.1, 1e-4
source = load(
    "gaussian_images", num_train=10 * MANY, num_test=1000, size=8, separation=5
)
many = source.federated(split("iid", source.y_train, MANY))
linear = fa.classification(
    fa.models.linear(source.shape, 10), source.shape, mean=source.mean, std=source.std
)
noisy = replace(plan, cohort_size=None, participation=fa.bernoulli(RATE), batch_size=10)
multipliers = np.array([0.0, 0.5, 1.0, 2.0, 4.0])


def private(multiplier, seed):
    """Test accuracy after each round."""
    algorithm = fa.with_steps(fedavg(), fa.constant_steps(5))
    algorithm = fa.with_privacy(algorithm, clip=0.5, noise_multiplier=multiplier)
    key_init, key_rounds = jax.random.split(jax.random.key(seed))
    state = fa.init_state(algorithm, linear, many, noisy, key_init)
    round_fn = fa.make_round(algorithm, linear, many, noisy)
    keys = jax.random.split(key_rounds, ROUNDS)
    measure = lambda state: fa.evaluate(linear, state.params, many.test).accuracy
    return fa.train_and_evaluate(round_fn, state, keys, measure)[2]


trials = jax.jit(jax.vmap(jax.vmap(private, (None, 0)), (0, None)))
accuracy = np.asarray(trials(jnp.asarray(multipliers), jnp.arange(SEEDS)))
epsilons = [np.inf] + [
    fa.epsilon(z, fa.bernoulli(RATE), ROUNDS, DELTA) for z in multipliers[1:]
]

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for z, epsilon, values in zip(multipliers, epsilons, accuracy, strict=True):
    label = f"z = {z:.1f}, epsilon {epsilon:.2f}"
    axes.plot(np.arange(1, ROUNDS + 1), values.mean(0), label=label)
    axes.fill_between(np.arange(1, ROUNDS + 1), values.min(0), values.max(0), alpha=0.2)
axes.set(xlabel="round", ylabel="test accuracy")
axes.legend(title=f"delta {DELTA}; mean and range of 3 seeds", fontsize=8)
plt.show()

for z, epsilon, values in zip(multipliers, epsilons, accuracy, strict=True):
    late = values[:, -10:].mean(1)
    print(
        f"z {z:.1f}  epsilon {epsilon:6.2f}  accuracy {late.mean():.3f} +- "
        f"{late.std(ddof=1):.3f}, mean of the last 10 rounds"
    )
late = accuracy[:, :, -10:].mean(2)
assert (late[1] > late[-1]).all() and late[0].mean() - late[2].mean() < 0.01

# %% [markdown]
# An epsilon of about 4 costs less than a point here, and one below 1 several. The epsilon
# holds for one client that is added or taken away, for the models of all rounds, and for
# `fa.bernoulli` participation. A smaller federation has more noise for the same z.
