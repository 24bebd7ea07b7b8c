r"""FedSSG: gate a drift memory by how often a client was seen, against how often expected.

    p_i   = cnt_i / (T q) + beta                          cnt_i includes this round
    u_i   = alpha / w_i h_i - s_i + s_g / w_i             constant over the round
    theta <- theta - lr (clip(grad F_i(theta) + u_i) + lambda theta)
    D     = p_i (theta_i - w)
    h_i  <- h_i + D
    s_i'  = s_i - s_g / w_i - D / (Kbar lr_0)
    s_g  <- s_g + 1/N sum_{i in S} w_i (s_i' - s_i)
    w    <- mean_{i in S} theta_i + 1/N sum_{all j} h_j

T rounds in all, q the probability that a client is in a round's cohort, w_i = N n_i / n,
Kbar the local steps of a client of mean size, lr_0 the learning rate of round 0.

References:
  "FedSSG: Expectation-Gated and History-Aware Drift Alignment for Federated Learning".
  Algorithm 1, eqs. (5)-(10), (19), (23)-(25), and the authors' code,
  https://github.com/itoritsu/FedSSG.

Departs from the paper: text and code disagree in many places. The defaults are the code,
which produced the published tables; every other reading is an option of `fedssg`. Where
the paper divides the last-round correction by E epochs, `correction="last_diff"` divides
by local steps, which is what makes the term a gradient.
"""

import math
import warnings
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import check
from ..core import (
    Algorithm,
    LocalRule,
    ServerRule,
    Traffic,
    Upload,
    effective_steps,
    mean,
    nonempty_rate,
    uniformly,
)
from ..errors import SettingError


class FedSSGClient(NamedTuple):
    """The state of a client. Its two trees are each as large as the model."""

    memory: Any  # h_i
    control: Any  # s_i; () without correction
    count: jax.Array  # cnt_i, rounds taken part in


class FedSSGServer(NamedTuple):
    """The state of the server."""

    memory: Any  # 1/N sum_j h_j
    control: Any  # s_g; () without correction


def fedssg(
    alpha: float = 0.05,
    total_rounds: int | None = None,
    participation: float | None = None,
    beta: float = 1.0,
    gate: Literal["total", "current", "none"] = "total",
    gate_map: Literal["identity", "alpha_logistic", "clip01"] = "identity",
    rate: Literal["nominal", "realised"] = "nominal",
    align: Literal["ip", "prox", "none"] = "ip",
    gate_alignment: bool = False,
    correction: Literal["scaffold2", "last_diff", "none"] = "scaffold2",
    correction_gated: bool = True,
    correction_lr: Literal["base", "round"] = "base",
    correction_steps: Literal["mean", "actual"] = "mean",
    aggregate: Literal[
        "sel_plus_allh", "cohort_theta_plus_h", "literal_sum_over_n", "sel"
    ] = "sel_plus_allh",
) -> Algorithm:
    """Builds FedSSG. Its gate goes by the rounds the run will have and by who takes part.

    Args:
      alpha: strength of the alignment, and of the gate under `gate_map="alpha_logistic"`.
      total_rounds: T, the rounds the run will have; none: those of `Plan.rounds` or of
        `fa.train`, and the paper's 300, with a warning, where neither says.
      participation: q, taken as it is given; none: what the plan's participation
        expects, in which no cohort of coins is empty.
      beta: added to the gate; 1 in the code, 0 in the text.
      gate: expected visits after all T rounds ("total": code, Algorithm 1) or after the
        rounds so far ("current": eq. 5, with epsilon = 1e-6); "none": p_i = 1, whatever
        beta, gate_map and rate (an ablation of Table 6).
      gate_map: what the ratio r goes through: nothing, alpha / (1 + e^-r) (eq. 6), or a
        clip to [0, 1].
      rate: q as given, or the share of clients in this round's cohort (Algorithm 1).
      align: gradient alpha h_i ("ip": eq. 19 and code), alpha (theta - w + h_i) ("prox":
        eq. 9), or none, whatever gate_alignment.
      gate_alignment: whether p_i is the weight of the alignment in place of alpha (eq. 8):
        r without a map, alpha / (1 + e^-r) with the logistic one, at beta = 0.
      correction: control variates as in SCAFFOLD's option II (code), the difference of
        the last visit (eq. 23), or none, whatever the next three options.
      correction_gated: whether the correction is built from D (code) or theta_i - w.
      correction_lr: learning rate in the correction: of round 0 (code) or of the round.
      correction_steps: steps in it: Kbar (code) or the client's own.
      aggregate: cohort mean of theta plus mean of all h (code), cohort mean of
        theta + h (eq. 28), Algorithm 1's sum over the cohort divided by N, or cohort
        mean of theta without h ("sel", an ablation of Table 6).
    """
    check.nonnegative("alpha", alpha)
    check.at_least("total_rounds", total_rounds, 1, none="the run's", most=math.inf)
    if participation is not None:
        check.between("participation", participation, 0, 1, closed="right")
    check.nonnegative("beta", beta)
    check.one_of("gate", gate, ("total", "current", "none"))
    check.one_of("gate_map", gate_map, ("identity", "alpha_logistic", "clip01"))
    check.one_of("rate", rate, ("nominal", "realised"))
    check.one_of("align", align, ("ip", "prox", "none"))
    check.one_of("correction", correction, ("scaffold2", "last_diff", "none"))
    check.one_of("correction_lr", correction_lr, ("base", "round"))
    check.one_of("correction_steps", correction_steps, ("mean", "actual"))
    aggregates = "sel_plus_allh", "cohort_theta_plus_h", "literal_sum_over_n", "sel"
    check.one_of("aggregate", aggregate, aggregates)
    through = {
        "identity": lambda r: r,
        "alpha_logistic": lambda r: alpha * jax.nn.sigmoid(r),
        "clip01": lambda r: jnp.clip(r, 0, 1),
    }[gate_map]

    def warn_of_growth(setting):
        known = setting.rounds if total_rounds is None else total_rounds
        rounds = setting.round if known is None else known
        decay = setting.lr_decay
        numbers = (rounds, decay, alpha, beta)
        if correction != "scaffold2" or any(map(check.is_tracer, numbers)):
            return
        if not rounds or (known is not None and setting.round):
            return  # unknown yet, or said already
        rounds = int(rounds)
        done = np.linspace(0, rounds - 1, min(rounds, 1000)).round()  # which are enough
        seen = (done + 1) / rounds if gate == "total" else np.ones_like(done)
        opening = 1.0
        if correction_gated and gate != "none":
            with jax.ensure_compile_time_eval():
                opening = np.asarray(through(seen)) + float(beta)
        with np.errstate(over="ignore"):
            k = opening * (float(decay) ** done if correction_lr == "base" else 1.0)
        k = k * np.ones_like(done)
        at = k.argmax()
        if k[at] > 2:
            warnings.warn(
                f"k is {k[at]:.3g} in round {done[at] + 1:.0f} of {rounds} for a client "
                "that is seen as often as expected, and its control variate grows where k "
                "is above 2; write a smaller beta or lr_decay.",
                stacklevel=2,
            )

    def agrees(setting):
        warn_of_growth(setting)
        numbers = (total_rounds, setting.rounds, participation)
        if any(map(check.is_tracer, numbers)):
            return
        if total_rounds is not None and (
            setting.rounds not in (None, total_rounds) or setting.round > total_rounds
        ):
            raise SettingError(
                f"total_rounds={total_rounds} but the run has "
                f"{setting.rounds or setting.round} rounds; train no more, or leave "
                "total_rounds out.",
                setting="total_rounds",
            )
        if participation is None:
            return
        q = setting.participation
        expected = q * setting.num_holders
        # a cohort is a whole number of clients, of all or of those that hold examples
        off = [
            abs(share * number - expected)
            for number in (setting.num_holders, setting.num_clients)
            # of coins, too, which are thrown again when nobody takes part
            for share in (participation, nonempty_rate(participation, number))
        ]
        if min(off) > 0.5 + 1e-6:
            raise SettingError(
                f"participation={participation} but {q:g} of the clients take part in a "
                "round of this plan; leave participation out.",
                setting="participation",
            )

    def horizon(setting):  # T
        if total_rounds is not None:
            return total_rounds
        if setting.rounds is not None:
            return setting.rounds
        warnings.warn(
            "the run's number of rounds is not given, and fedssg takes the paper's 300; "
            "write Plan(rounds=...) or fedssg(total_rounds=...), or call fa.train.",
            stacklevel=2,
        )
        return 300

    def opened(count, setting):  # p_i
        if gate == "none":
            return jnp.ones_like(count)
        expected = setting.participation if participation is None else participation
        seen_rate = expected if rate == "nominal" else setting.share
        rounds, epsilon = (
            (horizon(setting), 0.0) if gate == "total" else (setting.round + 1, 1e-6)
        )
        return through(count / (rounds * seen_rate + epsilon)) + beta

    def init(params):
        zeros = optax.tree.zeros_like(params)
        control = () if correction == "none" else zeros
        return FedSSGClient(zeros, control, jnp.zeros(()))

    def strength(view):  # of the alignment
        if align == "none":
            return 0.0
        weight = alpha
        if gate_alignment:
            weight = opened(view.client.count + 1, view.setting)
        return weight / view.size_ratio

    def prepare(view):  # u_i
        u = optax.tree.scale(strength(view), view.client.memory)
        if correction == "none":
            return u
        u = optax.tree.sub(u, view.client.control)
        # the last difference is the cohort's, which the paper does not weigh by size
        weight = 1 / view.size_ratio if correction == "scaffold2" else 1
        return optax.tree.add_scale(u, weight, view.server.control)

    def correct(grads, view):
        grads = optax.tree.add(grads, view.prepared)
        if align != "prox":
            return grads
        drift = optax.tree.sub(view.params, view.anchor)
        return optax.tree.add_scale(grads, strength(view), drift)

    def correction_scale(run):  # Kbar lr_0
        lr = run.setting.base_lr if correction_lr == "base" else run.lr
        steps = run.setting.mean_steps if correction_steps == "mean" else run.num_steps
        return effective_steps(steps, run.setting.momentum) * lr

    def renewed(run, delta, gated):  # s_i'
        moved = gated if correction_gated else delta
        direction = optax.tree.scale(-1 / correction_scale(run), moved)
        if correction == "last_diff":
            return direction
        difference = optax.tree.add_scale(
            run.client.control, -1 / run.size_ratio, run.server.control
        )
        return optax.tree.add(difference, direction)

    def finish(run):
        count = run.client.count + 1
        opening = opened(count, run.setting)
        delta = optax.tree.sub(run.params, run.anchor)
        gated = optax.tree.scale(opening, delta)  # D
        memory = optax.tree.add(run.client.memory, gated)
        control = () if correction == "none" else renewed(run, delta, gated)
        change = (
            control  # last_diff replaces s_g by the cohort's mean, scaffold2 moves it
        )
        if correction == "scaffold2":
            change = optax.tree.sub(control, run.client.control)
            change = optax.tree.scale(run.size_ratio, change)
        sent = {"sel_plus_allh": gated, "sel": ()}.get(aggregate, memory)
        info = {"gate": opening}
        if correction == "scaffold2":
            # s_i' = (1 - k)(s_i - s_g / w_i) + k (mean local gradient): unstable from 2 on
            taken = run.lr * run.num_steps / correction_scale(run)
            info["k"] = (opening if correction_gated else 1.0) * taken
        upload = Upload(delta, FedSSGServer(sent, change), info)
        return upload, FedSSGClient(memory, control, count)

    def init_server(params):
        zeros = optax.tree.zeros_like(params)
        return FedSSGServer(
            memory=zeros if aggregate == "sel_plus_allh" else (),
            control=() if correction == "none" else zeros,
        )

    def update(params, server, upload, cohort):
        control = upload.extra.control
        if correction == "scaffold2":
            control = optax.tree.add_scale(server.control, cohort.share, control)
        params = optax.tree.add(params, upload.delta)  # mean_S theta
        if aggregate == "sel_plus_allh":
            memory = optax.tree.add_scale(
                server.memory, cohort.share, upload.extra.memory
            )
            return optax.tree.add(params, memory), FedSSGServer(memory, control)
        if aggregate == "sel":
            return params, FedSSGServer((), control)
        params = optax.tree.add(params, upload.extra.memory)
        if aggregate == "literal_sum_over_n":
            params = optax.tree.scale(cohort.share, params)
        return params, FedSSGServer((), control)

    # w and s_g down; h_i and s_i' follow from theta_i, so that the server can know them
    models_down = 1 if correction == "none" else 2
    return Algorithm(
        local=LocalRule(
            check=agrees,
            init=init,
            prepare=prepare,
            correct=correct,
            finish=finish,
            traffic=Traffic(models_down, models_up=1, round_trips=1),
        ),
        server=ServerRule(
            init_server,
            mean(uniformly),
            update,
            adds_mean=aggregate == "sel_plus_allh",
        ),
    )
