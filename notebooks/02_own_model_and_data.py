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
# # Your own model and data
#
# How do a table with a column of owners, and sequences of tokens, become federations? And
# is training together worth it for the owners? First a table and a flax module, then
# sequences and a model of two plain functions. All data are generated, and n = 1: one seed.

# %%
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pandas as pd

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg

rng = np.random.default_rng(0)

# %% [markdown]
# ## A table
#
# Thirty shops sell more when it is warm and when there is a promotion, and all in the same
# way, but each from a level of its own. The noise has deviation 1, so no model's error can
# be much less than 1.

# %%
SHOPS = 30
sizes = rng.integers(15, 60, SHOPS)
level = rng.normal(20, 4, SHOPS)
shop = np.repeat(np.arange(SHOPS), sizes)
warm, promotion = rng.uniform(0, 30, len(shop)), rng.integers(0, 2, len(shop))
effect = 3 * np.sin(warm / 6) + promotion * (2 + 0.1 * warm)
table = pd.DataFrame(
    {
        "shop": [f"shop {i:02}" for i in shop],
        "warm": warm,
        "promotion": promotion,
        "sold": level[shop] + effect + rng.normal(0, 1, len(shop)),
    }
)
print(table.head(4).to_string())

# %%
shops = fa.FederatedDataset.from_frame(table, client="shop", label="sold")
shops = shops.split_clients(test_share=0.3)  # each shop's own test
print(shops)
print("first names:", shops.client_names[:3])
print("its rows to train on and to test:", shops.size[:3], shops.client_tests.size[:3])

# %% [markdown]
# A model may be a flax module. The inputs are standardised by `mean` and `std`, one number
# per column. Under `fa.regression` the loss is the squared error.


# %%
class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(2, 32, rngs=rngs)
        self.out = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(self.hidden(x)))


inputs = np.asarray(shops.x)
sales = fa.regression(Net, (2,), mean=inputs.mean(0), std=inputs.std(0))
shapes = jax.eval_shape(sales.init, jax.random.key(0))
print(jax.tree.map(lambda leaf: leaf.shape, shapes))

# %% [markdown]
# ## Together, alone, or in between
#
# In between, the bias of the last layer stays at the shop: `fa.with_personal` keeps the
# parameters whose path has that name. Alone is a local rule that begins where the client
# left off and sends nothing; `personal` says which model a client uses itself.


# %%
def alone():
    """Every client trains a model of its own."""
    return fa.Algorithm(
        local=fa.LocalRule(
            init=lambda params: params,
            start=lambda view: view.client,
            finish=lambda run: (
                fa.Upload(optax.tree.zeros_like(run.params)),
                run.params,
            ),
            personal=lambda params, client: client,
            traffic=fa.Traffic(),
        )
    )


methods = {
    "together": fedavg(),
    "own bias": fa.with_personal(fedavg(), personal="out/bias"),
    "alone": alone(),
}
plan = fa.Plan(batch_size=10, lr=0.05, clip_norm=5.0)
ROUNDS, EVERY = 200, 5
keys = jax.random.split(jax.random.key(1), ROUNDS)
errors = {}
for name, method in methods.items():
    algorithm = fa.with_steps(method, fa.epochs(2))
    state = fa.init_state(algorithm, sales, shops, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, sales, shops, plan)

    def measure(state, algorithm=algorithm):
        has_own = algorithm.local.personal is not None
        used = fa.personal_models(algorithm, state) if has_own else state.params
        return fa.evaluate_clients(sales, used, shops).loss  # mean squared errors

    _, _, squared = fa.train_and_evaluate(round_fn, state, keys, measure, every=EVERY)
    errors[name] = np.sqrt(np.asarray(squared))  # [evaluations, shops]

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, values in errors.items():
    rounds = np.arange(EVERY, ROUNDS + 1, EVERY)
    axes[0].plot(rounds, values.mean(1), label=name)
axes[0].axhline(1, color="grey", linestyle=":", label="the noise")
axes[0].set(xlabel="round", ylabel="error on own tests, mean of shops", yscale="log")
axes[0].legend()
axes[1].plot(shops.size, errors["alone"][-1], "o", color="C2", label="alone")
axes[1].plot(shops.size, errors["own bias"][-1], "o", color="C1", label="own bias")
axes[1].set(xlabel="rows that the shop trains on", ylabel="error on its own test")
axes[1].legend()
plt.show()

last = {name: values[-1] for name, values in errors.items()}
for name, values in last.items():
    print(f"{name:9} error {values.mean():.2f}, worst shop {values.max():.2f}")
better = last["own bias"] < last["alone"]
print(f"own bias is better than alone at {better.sum()} of {SHOPS} shops")
assert last["own bias"].mean() < last["alone"].mean() < last["together"].mean()

# %% [markdown]
# Shops differ in their level and agree in all else. One model for all has no place for the
# level; a model of its own has too few rows for the rest. So the one number that differs
# stays at the shop, and all else is learnt together.
#
# ## Sequences of tokens
#
# Twenty people write with the same ten tokens. What follows a token is drawn from a table
# that is partly common to all and partly their own. Sentences have 6 to 16 tokens, and 0
# pads the shorter ones. Inputs and targets are the same sentences, one place apart.

# %%
PEOPLE, TOKENS, LENGTH, SENTENCES = 20, 10, 16, 40
common = rng.dirichlet(np.full(TOKENS, 0.2), TOKENS)  # rows: what follows a token
own = rng.dirichlet(np.full(TOKENS, 0.2), (PEOPLE, TOKENS))
chains = 0.8 * common + 0.2 * own


def sentences(chain, count):
    """Sentences [count, LENGTH + 1] of a person, padded with 0."""
    written = np.zeros((count, LENGTH + 1), np.int32)
    for row in written:
        token = rng.integers(TOKENS)
        for place in range(rng.integers(6, LENGTH + 1) + 1):
            row[place] = token + 1
            token = rng.choice(TOKENS, p=chain[token])
    return written


pair = lambda written: (written[:, :-1], written[:, 1:])
written = [sentences(chain, 2 * SENTENCES) for chain in chains]
people = fa.FederatedDataset.from_clients(
    [pair(of[:SENTENCES]) for of in written],
    client_tests=[pair(of[SENTENCES:]) for of in written],
    test=pair(np.concatenate([of[SENTENCES:] for of in written])),
    num_classes=TOKENS + 1,
)
print(people)
print("a sentence:", written[0][0])

# %% [markdown]
# ## A model of two plain functions
#
# `init(key)` makes any tree of arrays, and `apply(params, x)` takes a batch [batch, length]
# to logits [batch, length, vocabulary]. Here it is a small recurrent network.

# %%
WIDTH = 24


def init(key):
    normal = lambda i, *shape: (
        0.3 * jax.random.normal(jax.random.fold_in(key, i), shape)
    )
    return {
        "embedding": normal(0, TOKENS + 1, WIDTH),
        "recurrent": normal(1, WIDTH, WIDTH),
        "out": {"kernel": normal(2, WIDTH, TOKENS + 1), "bias": jnp.zeros(TOKENS + 1)},
    }


def apply(params, x):
    def read(hidden, token):
        hidden = jnp.tanh(params["embedding"][token] + hidden @ params["recurrent"])
        return hidden, hidden

    begin = jnp.zeros((len(x), WIDTH))
    _, hidden = jax.lax.scan(read, begin, x.T)  # over places
    return hidden.swapaxes(0, 1) @ params["out"]["kernel"] + params["out"]["bias"]


text = fa.language_model((init, apply), LENGTH, pad=0)
plan = fa.Plan(cohort_size=10, batch_size=10, lr=0.5, clip_norm=1.0)
algorithm = fa.with_steps(fedavg(), fa.epochs(2))
state = fa.init_state(algorithm, text, people, plan, jax.random.key(0))
round_fn = fa.make_round(algorithm, text, people, plan)
keys = jax.random.split(jax.random.key(2), 40)
measure = lambda state: fa.evaluate(text, state.params, people.test).named
state, _, named = fa.train_and_evaluate(round_fn, state, keys, measure, every=2)

# %% [markdown]
# Since the tables are known, so is what a model can reach that looks at the last token:
# the perplexity under the person's own table, or, for one model of all people, under the
# mean of their tables.


# %%
def perplexity(table_of):
    """That of the test sentences under a table for each person."""
    logs = []
    for person, of in enumerate(written):
        before, after = pair(of[SENTENCES:])
        counts = after > 0
        logs.append(np.log(table_of(person)[before[counts] - 1, after[counts] - 1]))
    return float(np.exp(-np.concatenate(logs).mean()))


lines = {
    "any token": float(TOKENS),
    "the mean table": perplexity(lambda person: chains.mean(0)),
    "each person's own table": perplexity(lambda person: chains[person]),
}
reached = np.asarray(named["perplexity"])
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.plot(np.arange(2, 41, 2), reached, label="FedAvg, all test sentences")
for i, (name, value) in enumerate(lines.items()):
    axes.axhline(value, color=f"C{i + 1}", linestyle=":", label=name)
axes.set(xlabel="round", ylabel="perplexity", ylim=(3, 10.5))
axes.legend(loc="center right")
plt.show()

for name, value in lines.items():
    print(f"{name:24} {value:.2f}")
print(
    f"{'FedAvg':24} {reached[-1]:.2f}, token accuracy {named['token_accuracy'][-1]:.2f}"
)
each = np.asarray(fa.evaluate_clients(text, state.params, people).named["perplexity"])
print(f"{'FedAvg, by person':24} {each.min():.2f} to {each.max():.2f}")
assert lines["each person's own table"] < reached[-1] < lines["any token"]
learnt = (TOKENS - reached[-1]) / (TOKENS - lines["the mean table"])
print(f"of the way from any token to the mean table: {learnt:.0%}")
assert 0.9 < learnt

# %% [markdown]
# The model has learnt most of what people have in common. What is left to the lowest line
# is each person's own. `fa.evaluate_clients` shows for whom it is worst.
