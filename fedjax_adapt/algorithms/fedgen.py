r"""FedGen: a generator of features, taught by all clients' heads, that regularises each.

    z = G(e, y), e ~ U[0, 1)                          features of label y, h a model's head
    L_i = CE + alpha_t (B_g / B) mean CE(h(G(e, y')), y')          y' of anybody's labels
             + beta_t mean KL(softmax h(G(e, y)) || softmax logits(x))     y of x's own
    alpha_t = max(1e-4, alpha 0.98^t), beta_t likewise; plain CE in round t = 0
    w <- w + sum_{i in S} p_i (theta_i - w)                   p_i = n_i / sum_{S} n
    G <- Adam on  a mean_b sum_{i in S} o_i[y] CE(h_i(z), y) + eta D - b mean_b KL_b
    D = exp(-mean_{b,k} |z_b - z_k| (e_b - e_k)^2)            o_i[y] = c_i[y] / sum_S c[y]

c_i[y] is 1 + the examples of label y that client i has trained on in this round; G is
taught on labels that some client has seen. KL_b = KL(softmax sum_i o_i h_i(z) || softmax
h_w(z)) with the broadcast head. The softmax in beta's term carries no gradient, and
nothing that a client does changes G.

References:
  Zhu, Hong & Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated
  Learning", ICML 2021, https://arxiv.org/abs/2105.10056. Algorithm 1, Eqs. (4)-(6), and
  the authors' code, https://github.com/zhuangdizhu/FedGen, of which is the KL term.

Departs from the paper: noise is uniform, as in the code. G makes what the model's last
layer takes, so z is as wide as that. With alpha = 0 its floor is 0, not 1e-4. It uses no
auxiliary data, but the server learns how many examples of each label a client trained on.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    LABEL_COUNTS,
    WEIGHTS,
    Algorithm,
    Array,
    LocalRule,
    Refinement,
    ServerRule,
    Traffic,
    mean,
    num_parameters,
    predict_train,
    weighted_loss,
)
from ..distill import check_labelled, check_softmax, kl, teachers
from ..errors import SettingError
from ..generators import Made, diversity, latent_generator

FLOOR = 1e-4  # of alpha_t and beta_t, the code's


class FedGenState(NamedTuple):
    """The state of the server, part of which it sends."""

    made: Made  # the generator
    optimizer: optax.OptState
    labels: Array  # [classes] bool, held by some client


def fedgen(
    alpha: float = 10.0,
    beta: float = 10.0,
    decay: float = 0.98,
    regular_steps: int | None = 20,
    generated_batch: int = 32,
    noise_size: int = 32,
    hidden: int = 256,
    generator_steps: int = 50,
    generator_batch: int = 32,
    generator_lr: float = 3e-4,
    generator_decay: float = 1e-2,
    teacher_weight: float = 1.0,
    student_weight: float = 0.0,
    diversity_weight: float = 1.0,
    weights: Literal["data", "uniform"] = "data",
) -> Algorithm:
    """Builds FedGen. With alpha = beta = 0 it is FedAvg, to the bit.

    Args:
      alpha: of the loss on generated features, in round 0; the code's, for MNIST.
      beta: of the distance from what the head says of generated features, in round 0;
        the code has 1 for EMNIST.
      decay: of both, and of the generator's learning rate, per round.
      regular_steps: local steps of a round that are regularised; none: all.
      generated_batch: B_g, generated features per local step.
      noise_size: numbers of noise.
      hidden: units of the generator's hidden layer.
      generator_steps: Adam's, in a round.
      generator_batch: generated features per such step.
      generator_lr: in round 0; the code has 1e-4 for EMNIST.
      generator_decay: weight decay of the generator, added to its gradient.
      teacher_weight: a.
      student_weight: b, how much G seeks features on which the server's head is wrong.
      diversity_weight: eta.
      weights: p_i, "data" or "uniform".
    """
    check.nonnegative("alpha", alpha)
    check.nonnegative("beta", beta)
    check.nonnegative("generator_decay", generator_decay)
    check.nonnegative("teacher_weight", teacher_weight)
    check.nonnegative("student_weight", student_weight)
    check.nonnegative("diversity_weight", diversity_weight)
    check.between("decay", decay, 0, 1, closed="right")
    check.at_least("regular_steps", regular_steps, 0, none="all steps")
    check.at_least("generated_batch", generated_batch, 1)
    check.at_least("noise_size", noise_size, 1)
    check.at_least("hidden", hidden, 1)
    check.at_least("generator_batch", generator_batch, 1)
    check.at_least("generator_steps", generator_steps, 0)
    check.positive("generator_lr", generator_lr)
    check.one_of("weights", weights, WEIGHTS)
    generator = latent_generator(hidden)
    adam = optax.chain(
        optax.add_decayed_weights(generator_decay), optax.scale_by_adam()
    )

    def faded(strength, round):  # alpha_t, beta_t
        return jnp.maximum(jnp.minimum(FLOOR, strength), strength * decay**round)

    def generated(kept, labels, key, train=False):
        """(z [batch, width], new statistics, noise) of labels [batch]."""
        noise = jax.random.uniform(key, (len(labels), noise_size))
        onehot = jax.nn.one_hot(labels, len(kept.labels))
        return *generator.apply(kept.made, noise, onehot, train), noise

    def objective(params, view, key):
        task, batch, round = view.task, view.batch, view.setting.round
        outputs = predict_train(task, params, batch.x, key)
        loss = weighted_loss(task, outputs, batch)
        kept = view.refine._replace(made=jax.lax.stop_gradient(view.refine.made))
        # the model's own random numbers stay FedAvg's
        keys = jax.random.split(jax.random.fold_in(key, 1), 3)
        log_held = jnp.where(kept.labels, 0.0, -jnp.inf)
        labels = jax.random.categorical(keys[0], log_held, shape=(generated_batch,))
        said = task.head(params, generated(kept, labels, keys[1])[0])
        of_generated = task.loss(said, labels).mean() * generated_batch / len(batch.y)
        target = task.head(params, generated(kept, batch.y, keys[2])[0])
        target = jax.lax.stop_gradient(jax.nn.log_softmax(target))
        apart = kl(target, jax.nn.log_softmax(outputs.logits))
        apart = (apart * batch.weight).sum() / batch.weight.sum()
        regular = faded(alpha, round) * of_generated + faded(beta, round) * apart
        on = round > 0
        if regular_steps is not None:
            on = on & (view.step < regular_steps)
        return loss + jnp.where(on, regular, 0)

    def count(run):  # c_i, [outputs]
        examples = run.batch_at(jnp.int32(0)).x
        outputs = jax.eval_shape(run.task.apply, run.params, examples).logits.shape[-1]

        def add(counts, batch, step):
            seen = jax.nn.one_hot(batch.y, outputs) * batch.weight[:, None]
            return counts + seen.sum(0)

        return run.over_steps(add, jnp.ones(outputs))

    def verify(task, setup):
        if task.head is None or setup.outputs.features is None:
            raise SettingError(
                "fedgen teaches a generator of features by the heads of models but this "
                "one's cannot be distinguished; give a module with features(x) and "
                "head(features), or Task(..., head=...)."
            )
        check_labelled("fedgen", setup)
        check_softmax("fedgen", setup)

    def init(task, setup, key):
        verify(task, setup)
        width = setup.outputs.features.shape[1:]
        made = generator.init(key, noise_size, setup.num_classes, width)
        return FedGenState(
            made=made,
            optimizer=adam.init(made.weights),
            labels=jnp.ones(setup.num_classes, bool),
        )

    def traffic(setup):
        width = setup.outputs.features.shape[1:]
        sizes = (noise_size, setup.num_classes, width)
        made = jax.eval_shape(lambda: generator.init(jax.random.key(0), *sizes))
        # the running statistics are folded into the weights before they are sent
        scalars = num_parameters(made.weights)
        return Traffic(scalars_down=scalars, scalars_up=setup.num_classes)

    def server(params, kept, view, key):
        task, models = view.task, teachers(view)
        held = view.cohort.label_counts.sum(0)  # by all clients
        counts = view.sent[:, : len(held)]
        counts = jnp.where(view.cohort.active[:, None], counts, 0)
        trust = shares(counts)  # o_i[y]
        log_seen = jnp.where(counts.max(0) > 1, 0.0, -jnp.inf)
        lr = generator_lr * decay**view.setting.round

        def objective(weights, kept, key):
            key_labels, key_noise = jax.random.split(key)
            size = (generator_batch,)
            labels = jax.random.categorical(key_labels, log_seen, shape=size)
            kept = kept._replace(made=kept.made._replace(weights=weights))
            z, statistics, noise = generated(kept, labels, key_noise, train=True)
            theirs = jax.vmap(task.head, (0, None))(models, z)
            loss = generator_loss(
                theirs,
                task.head(view.runs.anchor, z),
                labels,
                trust[:, labels],
                teacher_weight,
                student_weight,
            )
            return loss + diversity_weight * diversity(noise, z), statistics

        def step(kept, key):
            weights = kept.made.weights
            (loss, statistics), grads = jax.value_and_grad(objective, has_aux=True)(
                weights, kept, key
            )
            updates, optimizer = adam.update(grads, kept.optimizer, weights)
            made = Made(optax.tree.add_scale(weights, -lr, updates), statistics)
            return kept._replace(made=made, optimizer=optimizer), loss

        keys = jax.random.split(key, generator_steps)
        kept, losses = jax.lax.scan(step, kept._replace(labels=held > 0), keys)
        report = {"generator_loss": losses.sum() / max(generator_steps, 1)}
        return params, kept, report

    return Algorithm(
        local=LocalRule(objective=objective),
        server=ServerRule(combine=mean(WEIGHTS[weights])),
        refine=Refinement(
            init=init,
            server=server,
            check=verify,
            traffic=traffic,
            needs_public=False,
            send=count,
            given=LABEL_COUNTS,
        ),
    )


def shares(counts: Array) -> Array:
    """o_i[y] = c_i[y] / sum_S c[y], [cohort, classes]; 0 where the sum is."""
    return counts / jnp.maximum(counts.sum(0), 1)[None]


def generator_loss(
    theirs: Array,
    ours: Array,
    labels: Array,
    trust: Array,
    teacher_weight: float = 1.0,
    student_weight: float = 0.0,
) -> Array:
    """The loss of heads on generated features: the generator's loss without D. A scalar.

    Args:
      theirs: logits of the clients' heads, [cohort, batch, outputs].
      ours: logits of the broadcast head, [batch, outputs].
      labels: that the features were made for, [batch] int.
      trust: o_i[y], [cohort, batch]; 0 in empty slots.
      teacher_weight: a.
      student_weight: b.
    """
    picked = jax.nn.one_hot(labels, theirs.shape[-1])
    wrong = -(jax.nn.log_softmax(theirs) * picked[None]).sum(-1)
    together = jax.nn.log_softmax((trust[..., None] * theirs).sum(0))
    fooled = kl(together, jax.nn.log_softmax(ours))
    loss = teacher_weight * (trust * wrong).sum(0) - student_weight * fooled
    return loss.mean()
