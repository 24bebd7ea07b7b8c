"""Federated softmax regression in float64 NumPy, written from the papers alone.

The engine is compared with this; nothing here calls it. theta is one flat vector: the
weights [WIDTH, CLASSES] row by row, then the biases. Batches are taken in order.
"""

import numpy as np
from helpers import CLASSES, WIDTH


def flat(params):
    return np.concatenate([np.asarray(params["w"], np.float64).ravel(), params["b"]])


def gradient(theta, x, y):
    """Of the mean cross entropy of softmax regression."""
    w, b = theta[: WIDTH * CLASSES].reshape(WIDTH, CLASSES), theta[WIDTH * CLASSES :]
    logits = x @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(x.T @ p / len(y)).ravel(), p.mean(0)])


def clip(g, norm):
    return g if norm is None else g * min(1, norm / (np.linalg.norm(g) + 1e-6))


def batches(x, y, batch_size, epochs):
    for _ in range(epochs):
        for begin in range(0, len(y), batch_size):
            yield x[begin : begin + batch_size], y[begin : begin + batch_size]


def num_batches(n, batch_size, epochs):
    return epochs * int(np.ceil(n / batch_size))


def nothing(theta):
    return 0.0


def sgd(theta, client, plan, round, correct=nothing, decay=nothing, epochs=2):
    """Local SGD; `correct` is added inside the clip, `decay` and weight decay outside."""
    lr = plan.lr * plan.lr_decay**round
    momentum = np.zeros_like(theta)
    for x, y in batches(*client, plan.batch_size, epochs):
        g = clip(gradient(theta, x, y) + correct(theta), plan.clip_norm)
        g = g + decay(theta) + plan.weight_decay * theta
        momentum = plan.momentum * momentum + g
        theta = theta - lr * momentum
    return theta


def size_ratios(clients):
    n = np.array([len(y) for _, y in clients], float)
    return len(n) * n / n.sum()
