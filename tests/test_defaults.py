"""What is taken where nothing is said: typed from the specifications and the papers."""

import inspect

import pytest

import fedjax_adapt as fa
from fedjax_adapt import models
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.data.corrupt import label_shift, random_inputs
from fedjax_adapt.data.files import emnist_letters
from fedjax_adapt.data.partition import PARTITIONS

PUBLISHED = {
    # drift.md 1.2 to 1.8, 3
    "fedprox": dict(mu=1e-4, weights="data", variant="paper"),
    "scaffold": dict(server_lr=1.0, option="II", weights="uniform"),
    "fednova": dict(mu=0.0, weights="data", server_momentum=None),
    "feddyn": dict(alpha=0.01, clip_scope="code"),
    "feddc": dict(
        alpha=0.01,
        correction="scaffold2",
        correction_lr="base",
        correction_steps="mean",
        aggregate="sel_plus_allh",
    ),
    "fedvra": dict(variant="paper", gamma=0.1, d=None),
    "feddisco": dict(a=0.5, b=0.1, distance="kl", normalise=True, legacy_reshape=False),
    # drift.md 1.9, public-set.md B
    # mu is that of CIFAR-100 and Tiny-ImageNet; CIFAR-10's is 5
    "moon": dict(mu=1.0, temperature=0.5, first="none", weights="data"),
    # drift.md 1.10; alpha is that of CIFAR-10 @100
    "fedssg": dict(
        alpha=0.05,
        beta=1.0,
        gate="total",
        gate_map="identity",
        rate="nominal",
        align="ip",
        gate_alignment=False,
        correction="scaffold2",
        correction_gated=True,
        correction_lr="base",
        correction_steps="mean",
        aggregate="sel_plus_allh",
    ),
    # local-steps.md 1.1, 1.3, 1.4, 1.7
    "fedgsnr": dict(
        num_steps=20,
        budget="matched",
        rounding="nearest",
        probe="corrected",
        interpolation=0.0,
        probe_batches=1,
    ),
    # local-steps.md 2.2, 2.4
    "fedveca": dict(
        alpha=0.95, max_steps=50, initial_steps=2, accept="off", full_gradient=False
    ),
    # public-set.md E6
    "gift": dict(
        initial_steps=100,
        theta=0.9,
        gamma=2.0,
        detector="patience",
        reduce="mean_abs_ratio",
        rounding="ceil",
        window=5,
        grow_window=True,
        warmup=50,
        relax=False,
        relax_after=10,
        relax_by=5,
    ),
    # public-set.md D1, D2
    "afl": dict(phi=5e-5, hold=0.0, max_steps=100, lr=0.01),
    "adacomm": dict(
        initial_steps=100,
        fix=True,
        trigger="tau_not_smaller",
        gamma=0.5,
        every_rounds=10,
        start="first_round",  # the specification's option; F at w_0 is "global"
        lr_coupling="off",
        max_steps=None,
    ),
    # public-set.md A.4, A.5, A.7, A.9
    "fnr": dict(
        variant="sq",
        fraction=0.5,
        epochs=5,
        weight=0.1,
        delta_set="paper",
        upload="delayed",
        batch_size=32,
    ),
    "fedavg_pubft": dict(fraction=0.5, epochs=5, batch_size=32),
    "public_only": dict(fraction=0.5, epochs=5, batch_size=32),
    # public-set.md C1 to C3
    "feddf": dict(
        distill_steps=10_000,
        distill_lr=1e-3,
        distill_clip=5.0,
        teaching="avg_logits",
        drop_worst=False,
        patience=1000,
        validate_every=100,
        return_best_incl_init=False,
        weights="data",
    ),
    "fedgen": dict(
        alpha=10.0,
        beta=10.0,
        decay=0.98,
        regular_steps=20,
        generated_batch=32,
        noise_size=32,
        hidden=256,
        generator_steps=50,
        generator_batch=32,
        generator_lr=3e-4,
        generator_decay=1e-2,
        teacher_weight=1.0,
        student_weight=0.0,
        diversity_weight=1.0,
    ),
    "fedftg": dict(
        iterations=10,
        student_steps=5,
        generated_batch=50,
        noise_size=100,
        generator_lr=0.01,
        student_lr=0.1,
        student_decay=1e-3,
        decay=0.998,
        classifying=1.0,
        diversity=1.0,
        hardness="l1",
        class_weight="batch",
        channels=64,
    ),
}
OTHERS = (
    # local-steps.md 1.5, 1.9; drift.md 2; public-set.md A.6, E3
    (label_shift, dict(shift=5)),
    (random_inputs, dict(bound=1.0)),
    (PARTITIONS["pareto"], dict(shape=1.16, allow_reuse=False)),
    (PARTITIONS["nonbalance"], dict(allow_reuse=False)),
    (PARTITIONS["gift_mix"], dict(concentration=1.0)),
    (PARTITIONS["fedveca_case"], dict(case=3)),
    (PARTITIONS["labels_per_client"], dict(num_labels=2)),
    (PARTITIONS["label_quantity"], dict(num_labels=2, concentration=0.5)),
    (PARTITIONS["dirichlet"], dict(concentration=0.3, size_sigma=0.0)),
    (PARTITIONS["dirichlet_classes"], dict(concentration=0.5)),
    (PARTITIONS["quantity_dirichlet"], dict(concentration=0.5)),
    (emnist_letters, dict(classes=10)),
    # drift.md 1.9, 2; public-set.md A.8
    (models.mlp, dict(widths=(200, 200))),
    (models.vgg11, dict(dropout=0.5)),
    (models.vgg16, dict(dropout=0.5)),
    (models.lstm, dict(width=64, layers=2)),
    (models.projected, dict(width=256)),
    (models.flip_crop, dict(pad=4)),
    (models.reflect_crop, dict(pad=4)),
    # public-set.md E4: 5 Mbit/s one way; D1: c and b of the testbed
    (fa.Clock, dict(bandwidth=5e6, download_bandwidth=None, latency=0.0, delay=0.0)),
    (
        fa.afl_fixed,
        dict(phi=5e-5, step_seconds=0.0130, aggregation_seconds=0.1316, max_steps=100),
    ),
)


def defaults(function):
    arguments = inspect.signature(function).parameters.values()
    return {argument.name: argument.default for argument in arguments}


@pytest.mark.parametrize(
    "function, published",
    [*((ALGORITHMS[name], of) for name, of in PUBLISHED.items()), *OTHERS],
    ids=[*PUBLISHED, *(function.__name__ for function, _ in OTHERS)],
)
def test_what_is_not_given_is_as_published(function, published):
    found = defaults(function)
    assert {name: found[name] for name in published} == published
