r"""FedFTG: fine-tune the global model on images drawn to be hard for it, without data.

    w     <- sum_{i in S} p_i theta_i                          the models' mean
    L_i    = -mean_b a_i[y_b] H_b + l_c C_i + l_d D / |S|      for G
    H_b    = mean_c |logits(w; x_b) - logits(theta_i; x_b)|_c
    C_i    = mean_b CE(theta_i; x_b, y_b) mean_b a_i[y_b]
    D      = exp(-mean_{b,k} |x_b - x_k| (z_b - z_k)^2)
    w     <- w - lr_t grad mean_bc -log softmax(logits(w; x_b))_c q_bc
    q_b    = sum_{i in S} a_i[y_b] softmax(logits(theta_i; x_b))
    a_i[y] = n_i[y] / (sum_{S} n[y] + 1e-6)

I times, G takes one step of Adam on the L_i of each client in turn, and then w takes J
steps. x = G(z, y), with labels y in the shares of all that the cohort holds and normal z;
in the steps of w with the running statistics of G's normalisation.

References:
  Zhang et al., "Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID
  Federated Learning", CVPR 2022, https://arxiv.org/abs/2203.09249. Eqs. (3)-(9), and the
  authors' code, https://github.com/ZhangLin-PKU/FedFTG.

Departs from the paper: as in the code, H is the distance of logits (`hardness="kl"` is the
paper's KL), and weighs the client's in C_i by the batch's mean (`class_weight="example"`:
mean_b a_i[y_b] CE_b, the paper's). The model is in evaluation mode on what is generated.
It uses no auxiliary data, but the server knows how many examples of each label a client
holds.
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    LABEL_COUNTS,
    Algorithm,
    Array,
    Key,
    Refinement,
    with_refinement,
)
from ..distill import (
    averaged,
    check_labelled,
    check_softmax,
    kl,
    label_counts,
    of_each,
    teachers,
)
from ..errors import SettingError
from ..generators import Generator, Made, image_generator
from ..generators import diversity as spread

Hardness = Literal["l1", "kl"]
ClassWeight = Literal["batch", "example"]


class Weighing(NamedTuple):
    """The weights of the parts of the generator's loss."""

    hardness: Hardness = "l1"
    class_weight: ClassWeight = "batch"
    classifying: float = 1.0  # l_c


def fedftg(
    iterations: int = 10,
    student_steps: int = 5,
    generated_batch: int = 50,
    noise_size: int = 100,
    generator_lr: float = 0.01,
    student_lr: float = 0.1,
    student_decay: float = 1e-3,
    decay: float = 0.998,
    classifying: float = 1.0,
    diversity: float = 1.0,
    hardness: Hardness = "l1",
    class_weight: ClassWeight = "batch",
    channels: int = 64,
    weights: Literal["data", "uniform"] = "data",
    base: Algorithm | None = None,
    generator: Generator | None = None,
) -> Algorithm:
    """Builds FedFTG. Without iterations it is its base, to the bit.

    Args:
      iterations: I, of a round.
      student_steps: J, SGD steps of the model per iteration.
      generated_batch: images per step.
      noise_size: numbers of noise; the code has 256 for CIFAR-100.
      generator_lr: of Adam, in round 0.
      student_lr: of the model's SGD, in round 0.
      student_decay: its weight decay.
      decay: of both learning rates, per round.
      classifying: l_c, weight of the teachers' cross entropy.
      diversity: l_d, weight of D.
      hardness: H, "l1" of the logits (code) or "kl", KL(theta_i || w) (paper).
      class_weight: C_i, "batch" (code) or "example" (paper).
      channels: of the generator's last images but one; twice as many before.
      weights: p_i, "data" or "uniform"; only without a base.
      base: any algorithm; none: FedAvg.
      generator: for inputs that are no images of a height and width that 4 divides; none:
        the paper's.
    """
    check.at_least("iterations", iterations, 0)
    check.at_least("student_steps", student_steps, 1)
    check.at_least("generated_batch", generated_batch, 1)
    check.at_least("noise_size", noise_size, 1)
    check.at_least("channels", channels, 1)
    check.positive("generator_lr", generator_lr)
    check.positive("student_lr", student_lr)
    check.nonnegative("student_decay", student_decay)
    check.nonnegative("classifying", classifying)
    check.nonnegative("diversity", diversity)
    check.between("decay", decay, 0, 1, closed="right")
    check.one_of("hardness", hardness, get_args(Hardness))
    check.one_of("class_weight", class_weight, get_args(ClassWeight))
    base = averaged(weights, base)
    if iterations == 0:
        return base
    if base.refine is not None:
        raise SettingError(
            "fedftg's base refines its models already; give another base."
        )
    generator = image_generator(channels) if generator is None else generator
    weighing = Weighing(hardness, class_weight, classifying)
    adam = optax.scale_by_adam()

    def init(task, setup, key):
        return generator.init(
            key, noise_size, setup.num_classes, tuple(setup.example.shape)
        )

    def verify(task, setup):
        jax.eval_shape(lambda: init(task, setup, jax.random.key(0)))
        check_labelled("fedftg", setup)
        check_softmax("fedftg", setup)

    def server(params, made, view, key):
        task, cohort = view.task, view.cohort
        counts = label_counts(view)
        totals, num_classes = counts.sum(0), counts.shape[1]
        trust = shares(counts)  # a_i[y]
        models = teachers(view)
        # clients take their turns by id, so that slots cannot change the result
        turns = jnp.argsort(cohort.ids)
        fade = decay**view.setting.round
        restore = (lambda x: x) if task.restore is None else task.restore
        logits = lambda params, x: task.apply(params, restore(x)).logits

        def show(made, noise, labels, train):
            onehot = jax.nn.one_hot(labels, num_classes)
            return generator.apply(made, noise, onehot, train)

        def fooling(weights, statistics, student, slot, noise, labels):
            teacher = jax.tree.map(lambda leaf: leaf[slot], models)
            x, new = show(Made(weights, statistics), noise, labels, True)
            theirs, ours = logits(teacher, x), logits(student, x)
            loss = generator_loss(theirs, ours, labels, trust[slot][labels], weighing)
            loss = loss + diversity * spread(noise, x) / jnp.maximum(
                cohort.num_active, 1
            )
            return loss, new

        def fool(learning, slot, student, noise, labels):
            made, optimizer = learning
            (loss, statistics), grads = jax.value_and_grad(fooling, has_aux=True)(
                *made, student, slot, noise, labels
            )
            updates, optimizer = adam.update(grads, optimizer)
            moved = optax.tree.add_scale(made.weights, -generator_lr * fade, updates)
            new = (Made(moved, statistics), optimizer)
            new = optax.tree.cast_like(new, learning)
            choose = lambda new, old: jnp.where(cohort.active[slot], new, old)
            return jax.tree.map(choose, new, learning), choose(loss, 0)

        def teach(student, x, target):
            objective = lambda student: student_loss(logits(student, x), target)
            loss, grads = jax.value_and_grad(objective)(student)
            grads = optax.tree.add_scale(grads, student_decay, student)
            moved = optax.tree.add_scale(student, -student_lr * fade, grads)
            return optax.tree.cast_like(moved, student), loss

        def iterate(carry, drawn):
            student, learning = carry
            labels, noise = drawn
            learning, fooled = jax.lax.scan(
                lambda learning, slot: fool(learning, slot, student, noise, labels),
                learning,
                turns,
            )
            x, _ = show(learning[0], noise, labels, False)
            theirs = of_each(lambda model: logits(model, x), models, view)
            target = teaching(theirs, trust[:, labels])
            student, taught = jax.lax.scan(
                lambda student, _: teach(student, x, target),
                student,
                length=student_steps,
            )
            return (student, learning), (fooled.sum(), taught.mean())

        key_labels, key_noise = jax.random.split(key)
        size = (iterations, generated_batch)
        labels = labels_in_shares(key_labels, totals, iterations * generated_batch)
        noise = jax.random.normal(key_noise, (*size, noise_size))
        begin = (params, (made, adam.init(made.weights)))
        (student, (made, _)), (fooled, taught) = jax.lax.scan(
            iterate, begin, (labels.reshape(size), noise)
        )
        report = {"generator_loss": fooled.mean(), "distill_loss": taught.mean()}
        return student, made, report

    return with_refinement(
        base,
        Refinement(
            init=init,
            server=server,
            check=verify,
            needs_public=False,
            given=LABEL_COUNTS,
        ),
    )


def shares(counts: Array) -> Array:
    """a_i[y] = n_i[y] / (sum_S n[y] + 1e-6), [cohort, classes]."""
    return counts / (counts.sum(0) + 1e-6)[None]


def labels_in_shares(key: Key, counts: Array, num: int) -> Array:
    """`num` labels in the shares of `counts` [classes], shuffled, [num] int32.

    Label y comes num counts[y] / sum(counts) times, but for rounding; never where it
    counts 0.
    """
    ends = jnp.cumsum(counts)
    places = (jnp.arange(num) + 0.5) * (ends[-1] / num)
    labels = jnp.searchsorted(ends.astype(places.dtype), places, side="right")
    return jax.random.permutation(key, jnp.minimum(labels, len(counts) - 1))


def generator_loss(
    theirs: Array, ours: Array, labels: Array, trust: Array, weighing: Weighing
) -> Array:
    """The loss of a generator against one client, without D. A scalar.

    Args:
      theirs: logits of the client's model, [batch, outputs].
      ours: logits of the server's, [batch, outputs].
      labels: that the images were made for, [batch] int.
      trust: a_i[y], [batch].
      weighing: of the parts.
    """
    frozen = jax.lax.stop_gradient(theirs)
    if weighing.hardness == "l1":
        hard = jnp.abs(ours - frozen).mean(-1)
    else:
        hard = kl(jax.nn.log_softmax(frozen), jax.nn.log_softmax(ours))
    wrong = optax.softmax_cross_entropy_with_integer_labels(theirs, labels)
    if weighing.class_weight == "batch":
        classified = wrong.mean() * trust.mean()
    else:
        classified = (trust * wrong).mean()
    return -(trust * hard).mean() + weighing.classifying * classified


def teaching(theirs: Array, trust: Array) -> Array:
    """q: what the model is drawn to, [batch, outputs].

    Args:
      theirs: logits of the clients' models, [cohort, batch, outputs].
      trust: a_i[y], [cohort, batch]; 0 in empty slots.
    """
    return (trust[..., None] * jax.nn.softmax(theirs)).sum(0)


def student_loss(ours: Array, target: Array) -> Array:
    """Cross entropy with soft labels, a mean over batch and outputs. A scalar."""
    return -(jax.nn.log_softmax(ours) * target).mean()
