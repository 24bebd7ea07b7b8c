from dataclasses import replace

import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, distance_to_optimum, run
from helpers import close

from fedjax_adapt.algorithms import feddyn, fedvra


@pytest.mark.parametrize(
    "a, d", [(1.0, None), (0.5, None), (2.0, 1.2)], ids=["default", "a", "a and d"]
)
def test_follows_the_numpy_oracle(x64, a, d):
    clients, theta, history = run(fedvra(gamma=0.3, a=a, d=d))
    gamma = 0.3 / oracle.size_ratios(clients)
    dual = np.zeros((len(clients), theta.size))

    def follow(t, cohort):
        nonlocal theta
        w, n, total = theta, len(clients), 0
        d_i = n / len(cohort) if d is None else d
        for i in cohort:
            held = dual[i].copy()
            correct = lambda theta, i=i, held=held: held + gamma[i] * (theta - w)
            end = oracle.sgd(w, clients[i], PLAN, t, correct)
            dual[i] += a * gamma[i] * (end - w)
            total = total + d_i * end
        rest = 1 - d_i * len(cohort) / n
        theta = total / n + rest * w + (dual / gamma[:, None]).mean(0)
        return theta

    assert_follows(history, follow)


@pytest.mark.slow
def test_the_code_behind_the_tables_is_feddyn(x64):
    for plan in (PLAN, replace(PLAN, clip_norm=None)):
        pairs = zip(
            run(fedvra("ssg_code"), plan)[2], run(feddyn(0.01), plan)[2], strict=True
        )
        for (a, _), (b, _) in pairs:
            close(a._replace(origin=()), b._replace(origin=()), atol=1e-14)


@pytest.mark.slow
def test_with_its_defaults_it_is_feddyn_clipped_as_a_whole(x64):
    vra, dyn = run(fedvra(gamma=0.2))[2], run(feddyn(0.2, "all"))[2]
    for (a, _), (b, _) in zip(vra, dyn, strict=True):
        close(a._replace(origin=()), b._replace(origin=()), atol=1e-12)


def test_half_participation_reaches_the_weighted_optimum(x64):
    assert distance_to_optimum(fedvra(gamma=0.3)) < 1e-5


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="variant='wrong' is unknown"):
        fedvra("wrong")
    with pytest.raises(ValueError, match="d=0 must be a finite number above 0"):
        fedvra(d=0)
    with pytest.raises(
        ValueError, match="variant=ssg_code is FedDyn .* has no gamma=0.5"
    ):
        fedvra("ssg_code", gamma=0.5)
