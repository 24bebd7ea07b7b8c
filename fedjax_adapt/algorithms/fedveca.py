r"""FedVeca: FedNova whose clients take as many local steps as their gradients hold still.

    G_i    = 1/tau_i sum_{l < tau_i} g_i(w_l)                    g_i: on a mini-batch
    w     <- w - lr tau sum_i p_i G_i,   tau = sum_i p_i tau_i   p_i = n_i / sum n
    beta_i  = max_{0 < l < tau_i} ||g_i(w_0) - g_i(w_l)|| / ||w_0 - w_l||
    delta_i = max_{0 < l < tau_i} ||sum_{s <= l} g_i(w_s)||^2 / ((l+1) ||grad F(w')||^2)
    A_i     = lr beta_i^2 delta_i
    tau_i  <- floor(A_i / (A_i - alpha min_j A_j)), at least 2   equation (16)

grad F = sum_i p_i g_i(w_0) at the broadcast model; w' is the one of the round before. The
first two rounds keep tau_i. What a person may check is the premise lr tau L >= 1 of
Theorem 1, L = max_k ||grad F(w_k) - grad F(w_{k-1})|| / ||w_k - w_{k-1}||, a round late.

References:
  Luo et al., "FedVeca: Federated Vectorized Averaging on Non-IID Data with Adaptive
  Bi-directional Global Objective", IEEE TPDS 2024, https://arxiv.org/abs/2209.13803.
  Algorithms 1 and 2.

Departs from the paper: l = 0, which is 0 / 0, is left out of beta_i. A round whose loss is
above the smallest so far is taken too unless `accept` says otherwise; a model that is not
finite never is. Under partial participation the minimum is over the cohort, and the others
keep tau_i. The first tau_i, which the paper does not give, is 2. A client that took a
single step has measured nothing and goes on with 2. Weight decay is part of grad F_i, not
of the losses that `accept` compares. On another base only the steps are FedVeca's, the
server is the base's. Momentum, clipping and what a base adds to gradients
are not in the theory: g_i is the gradient a client follows, before clipping, and -lr G_i
its displacement over tau_i.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    LocalRule,
    Measure,
    Params,
    Probe,
    ServerRule,
    StepPolicy,
    Traffic,
    Upload,
    by_examples,
    equal,
    mean,
    norm_of,
    part_of,
    task_loss,
    weighted_loss,
    with_steps,
)
from ..errors import SettingError

ACCEPT = ("off", "local", "global")


class VecaProbe(NamedTuple):
    """The measurements of a client along its local steps."""

    first: Params  # gradient at the broadcast model
    total: Params  # sum of the gradients so far
    beta: Array
    delta: Array  # times ||grad F(w')||^2


class VecaState(NamedTuple):
    """The state of the step policy."""

    tau: Array  # [num_clients] int32, local steps next time, before the cap
    params: Params  # w', zeros before the first round
    gradient: Params  # grad F(w')
    known: Array  # bool, whether it has been measured
    lipschitz: Array  # L with the round just done; the next one shows it
    accepted_rounds: Array  # int32, rounds so far in which the server's model moved
    nonfinite: Array  # int32, measurements so far that were not finite
    clients: dict[str, Array]  # [num_clients], to show
    shown: dict[str, Array]  # scalars, to show


def fedveca(
    alpha: float = 0.95,
    *,
    max_steps: int = 50,
    initial_steps: int = 2,
    accept: Literal["off", "local", "global"] = "off",
    full_gradient: bool = False,
    base: Algorithm | None = None,
) -> Algorithm:
    """Builds FedVeca. Server state: the smallest loss F_m, unless `accept` is "off".

    Args:
      alpha: of equation (16), in [0, 1); the client that holds stillest takes
        1 / (1 - alpha) steps, and 0 makes it 2 for everyone.
      max_steps: cap on tau_i, what it cuts is counted; also tau_i where A_i = 0.
      initial_steps: tau_i of the first two rounds.
      accept: when the new model is taken, else the old one stays: if it is finite ("off");
        if the loss is finite and at most F_m, the smallest so far: of the clients at their
        own end points ("local", the paper's), or of the new model on all training data
        ("global", which only a simulator can compute). A rejected round still renews tau.
      full_gradient: measure at the broadcast model, and the loss of "local", on all of a
        client's data, not on its first mini-batch: a pass more per round. What a base adds
        to gradients is in it, what it adds to the loss is not.
      base: any algorithm, whose number of steps is replaced and whose server rule stays;
        none: FedNova's rule, which the paper has.

    Raises:
      SettingError: an argument is out of its range; or `accept` is given with a base, or
        `full_gradient` with one that adds to the loss.
    """
    check.between("alpha", alpha, 0, 1, closed="left")
    check.at_least("max_steps", max_steps, 2)
    check.at_least("initial_steps", initial_steps, 1)
    check.one_of("accept", accept, ACCEPT)
    traced = check.is_tracer(initial_steps) or check.is_tracer(max_steps)
    if not traced and initial_steps > max_steps:
        raise SettingError(
            f"initial_steps={initial_steps} is above max_steps={max_steps}; write a "
            "smaller one.",
            setting="initial_steps",
        )
    policy = _policy(
        alpha=alpha,
        max_steps=max_steps,
        initial_steps=initial_steps,
        full_gradient=full_gradient,
    )
    if base is not None:
        if accept != "off":
            raise SettingError(
                f"accept={accept!r} is about FedVeca's own server rule, but base brings "
                'another; leave base out, or write accept="off".',
                setting="accept",
            )
        if full_gradient and base.local.objective is not task_loss:
            raise SettingError(
                "full_gradient measures gradients of the loss, without what its base adds "
                "to the loss; leave full_gradient or base out."
            )
        return with_steps(base, policy)

    def loss(run):  # F_i at the end point
        if accept != "local":
            return ()
        if full_gradient:
            return run.full_loss(run.params)
        batch = run.batch_at(jnp.zeros((), jnp.int32))
        return weighted_loss(run.task, run.task.apply(run.params, batch.x), batch)

    def finish(run):  # -lr G_i
        delta = optax.tree.sub(run.params, run.anchor)
        tau = run.num_steps.astype(run.lr.dtype)
        # without steps it went nowhere, and is not averaged
        direction = optax.tree.scale(1 / jnp.maximum(tau, 1), delta)
        return Upload(direction, (tau, loss(run))), run.client

    def init(params):
        return () if accept == "off" else jnp.asarray(jnp.inf)

    def update(params, best, upload, cohort):
        tau_bar, local_loss = upload.extra
        proposed = optax.tree.add_scale(params, tau_bar, upload.delta)
        finite = jnp.isfinite(norm_of(proposed))
        if accept == "off":
            return optax.tree.where(finite, proposed, params), best
        loss = local_loss if accept == "local" else cohort.train_loss(proposed)
        taken = finite & jnp.isfinite(loss) & (loss <= best)
        return optax.tree.where(taken, proposed, params), jnp.where(taken, loss, best)

    def refined(params, best, upload, cohort, shift):
        tau_bar = upload.extra[0]
        shift = optax.tree.scale(1 / jnp.where(tau_bar > 0, tau_bar, 1), shift)
        moved = upload._replace(delta=optax.tree.add(upload.delta, shift))
        return update(params, best, moved, cohort)

    return Algorithm(
        local=LocalRule(finish=finish),
        policy=policy,
        server=ServerRule(init, mean(by_examples), update, refined=refined),
    )


@part_of(fedveca, "accept", "base")
def veca_steps(algorithm: Algorithm) -> StepPolicy:
    """FedVeca's local steps for any algorithm; see `fedveca` for the arguments.

    A client takes at least 2. `Info.policy` shows per client `tau` (of its next round),
    `beta`, `delta` and `A`; and of the round `tau_bar`, `L` and `premise` (lr tau L; both
    0 in the first round). So far in the run, in `accepted_rounds` the server's model
    moved, and `nonfinite` times a client measured what is not finite, and kept tau_i. The
    state is as large as two models.
    """
    return algorithm.policy


def _policy(
    *, alpha: float, max_steps: int, initial_steps: int, full_gradient: bool
) -> StepPolicy:
    """The number of local steps, of arguments that are checked."""

    def init(params, num_clients):
        zeros, zero = optax.tree.zeros_like(params), jnp.zeros(())
        count = jnp.zeros((), jnp.int32)
        return VecaState(
            tau=jnp.full(num_clients, initial_steps, jnp.int32),
            params=zeros,
            gradient=zeros,
            known=jnp.zeros((), bool),
            lipschitz=zero,
            accepted_rounds=count,
            nonfinite=count,
            clients={name: jnp.zeros(num_clients) for name in ("beta", "delta", "A")},
            shown={"tau_bar": zero, "L": zero, "premise": zero},
        )

    def probe_init(view):
        zeros, zero = optax.tree.zeros_like(view.params), jnp.zeros(())
        first = view.full_gradient(view.params) if full_gradient else zeros
        if full_gradient and view.corrected is not None:
            first = view.corrected(first)
        return VecaProbe(first, zeros, zero, zero)

    def probe_update(probe, grads, view):
        later = view.step > 0
        grads = optax.tree.add_scale(grads, view.setting.weight_decay, view.params)
        first = probe.first
        if not full_gradient:
            first = optax.tree.where(later, first, grads)
        total = optax.tree.add(probe.total, grads)
        change = norm_of(optax.tree.sub(first, grads))
        moved = norm_of(optax.tree.sub(view.anchor, view.params))
        beta = jnp.where(moved == 0, 0, change / jnp.where(moved == 0, 1, moved))
        delta = norm_of(total, squared=True) / (view.step + 1)
        longest = lambda most, new: jnp.where(later, jnp.maximum(most, new), most)
        return VecaProbe(
            first, total, longest(probe.beta, beta), longest(probe.delta, delta)
        )

    def steps(state, cohort, measured):
        return state.tau[jnp.minimum(cohort.ids, cohort.num_clients - 1)]

    def send(run):  # a ratio of means over clients is a mean weighted by data
        return run.size_ratio, optax.tree.scale(run.size_ratio, run.probe.first)

    def update(state, cohort, runs, outcome):
        beta, numerator = runs.probe.beta, runs.probe.delta
        delta = numerator / norm_of(state.gradient, squared=True)
        delta = jnp.where(state.known, delta, 0)
        A = outcome.setting.lr * beta**2 * delta
        measured = cohort.active & (cohort.num_steps > 1)
        finite = jnp.isfinite(beta) & jnp.isfinite(numerator) & jnp.isfinite(A)
        valid = measured & finite & state.known

        tau = steps(state, cohort, ())
        tau = jnp.where(valid, _next_tau(A, valid, alpha, max_steps), tau)
        tau = jnp.where(state.known, jnp.maximum(tau, 2), tau)  # Algorithm 1, line 24
        ids = jnp.where(cohort.active, cohort.ids, cohort.num_clients)
        put = lambda old, new: old.at[ids].set(new.astype(old.dtype), mode="drop")

        weight, gradient = outcome.sent
        gradient = optax.tree.scale(1 / jnp.where(weight > 0, weight, 1), gradient)
        usable = (cohort.num_active > 0) & jnp.isfinite(norm_of(gradient))
        lipschitz = _lipschitz(state, outcome.anchor, gradient)
        tau_bar = (by_examples(cohort) * cohort.num_steps).sum()
        moved = ~equal(outcome.params, outcome.anchor)
        return VecaState(
            tau=put(state.tau, tau),
            params=optax.tree.where(usable, outcome.anchor, state.params),
            gradient=optax.tree.where(usable, gradient, state.gradient),
            known=state.known | usable,
            lipschitz=jnp.where(usable, lipschitz, state.lipschitz),
            accepted_rounds=state.accepted_rounds + moved,
            nonfinite=state.nonfinite + (measured & ~finite).sum(dtype=jnp.int32),
            clients=jax.tree.map(
                put, state.clients, {"beta": beta, "delta": delta, "A": A}
            ),
            shown={
                "tau_bar": tau_bar,
                "L": state.lipschitz,
                "premise": outcome.setting.lr * tau_bar * state.lipschitz,
            },
        )

    def report(state, cohort, measured):
        tau = jnp.minimum(state.tau, max_steps)
        of_clients = {"tau": tau, **state.clients}
        ids = jnp.minimum(cohort.ids, cohort.num_clients - 1)
        of_cohort = {name: leaf[ids] for name, leaf in of_clients.items()}
        counts = ("accepted_rounds", "nonfinite")
        return of_cohort | state.shown | {name: getattr(state, name) for name in counts}

    probe = Probe(probe_init, probe_update)
    return StepPolicy(
        steps,
        init,
        probe=probe,
        update=update,
        send=send,
        report=report,
        max_steps=max_steps,
        # grad F(w') and tau_i; g_i(w_0), beta_i and delta_i
        traffic=Traffic(models_down=1, models_up=1, scalars_down=1, scalars_up=2),
        # g_i(w_0) on a mini-batch is that of the first step
        measure=Measure(steps=lambda cohort: cohort.epoch_steps)
        if full_gradient
        else None,
    )


def _next_tau(A: Array, valid: Array, alpha: float, max_steps: int) -> Array:
    """Equation (16) before the cap, [cohort] int32; `valid` says whose A counts."""
    least = jnp.min(jnp.where(valid, A, jnp.inf))
    share = least / jnp.where(valid & (A > 0), A, jnp.inf)
    bound = 1 / (1 - alpha * share)
    # rounding must not make 19 of 20; its error grows with the square of the bound
    bound = bound + 1e-6 + 2 * jnp.finfo(bound.dtype).eps * bound**2
    bound = jnp.where(A == 0, max_steps, jnp.clip(bound, 2, check.MOST))
    return jnp.floor(bound).astype(jnp.int32)


def _lipschitz(state: VecaState, params: Params, gradient: Params) -> Array:
    """L with one more pair of models. The first is compared with zeros, as in line 17."""
    change = norm_of(optax.tree.sub(gradient, state.gradient))
    moved = norm_of(optax.tree.sub(params, state.params))
    ratio = change / jnp.where(moved > 0, moved, jnp.inf)
    return jnp.where(
        jnp.isfinite(ratio), jnp.maximum(state.lipschitz, ratio), state.lipschitz
    )
