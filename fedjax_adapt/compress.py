r"""Compressed uploads: what a client sends takes fewer bytes, and is not quite what it was.

    u_i  = D_i + e_i                                       D_i = theta_i - w, or what is
    sends  C(u_i)                                          sent in its place
    e_i <- u_i - C(u_i)                                    error feedback; e_i = 0 at first

What the server has received from a client and e_i are together all that the client wanted
to send: sum_t C(u_i) + e_i = sum_t D_i.

References:
  Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014: error feedback.
  Stich et al., "Sparsified SGD with Memory", NeurIPS 2018,
  https://arxiv.org/abs/1809.07599: the largest k.
  Alistarh et al., "QSGD", NeurIPS 2017, https://arxiv.org/abs/1610.02132.
  Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019,
  https://arxiv.org/abs/1901.09847: the scaled sign, and why errors stay bounded.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from . import check
from .core import (
    Algorithm,
    ClientState,
    Key,
    LocalRun,
    Params,
    Traffic,
    Upload,
    is_private,
    norm_of,
    num_parameters,
    shapes_of,
    traffic_for,
    tree_bytes,
    widened,
)
from .errors import SettingError
from .wrap import around, seeing, sent_part

COMPRESSION = 0x636F  # what `LocalRun.key` is folded in by
ADDRESS = SCALE = 4  # bytes of an index, and of a norm


class Compressor(NamedTuple):
    """The compression of one client's displacement.

    Attributes:
      compress: (tree, key) -> the tree as the server decodes it, alike: the model, or
        below `with_personal` a list of the parameters that are sent.
      num_bytes: params -> bytes of the message; of shapes alone.
      variance: params -> the most that E||C(x) - x||^2 / ||x||^2 may be; of shapes alone.
        Error feedback needs one below 1.
    """

    compress: Callable[[Params, Key], Params]
    num_bytes: Callable[[Params], int]
    variance: Callable[[Params], float]


class Compressed(NamedTuple):
    """The client state of `with_compression`."""

    inner: ClientState  # of the algorithm itself
    error: Params | tuple[()]  # e_i; () without error feedback


def top_k(fraction: float) -> Compressor:
    """Sends the largest numbers of a model and where they stand, and 0 for all others.

    They are k = ceil(fraction d) of all d numbers, by magnitude, k >= 1; k values and k
    indices of 4 bytes, or the whole model where that is less.

    Raises:
      SettingError: `fraction` is outside (0, 1], or is traced: it makes shapes.

    Example:
      >>> params = {"weight": jnp.array([3.0, -0.1, 0.2, -4.0])}
      >>> print(fa.top_k(0.5).compress(params, key=None)["weight"])
      [ 3.  0.  0. -4.]
      >>> fa.top_k(0.25).num_bytes(params)  # a value and an index
      8
    """
    _check_static("top_k(fraction)", fraction)
    check.between("fraction", fraction, 0, 1, closed="right")
    # 0.07 x 100 is a little more than 7
    num_sent = lambda size: max(math.ceil(round(fraction * size, 9)), 1)

    def compress(tree, key):
        flat, restore = ravel_pytree(tree)
        _, rows = jax.lax.top_k(jnp.abs(flat), num_sent(flat.size))
        return restore(jnp.zeros_like(flat).at[rows].set(flat[rows]))

    def variance(params):
        return 1 - num_sent(num_parameters(params)) / num_parameters(params)

    def num_bytes(params):
        leaves = jax.tree.leaves(params)
        k = num_sent(num_parameters(params))
        width = max(leaf.dtype.itemsize for leaf in leaves)
        return min(k * (width + ADDRESS), tree_bytes(params))

    return Compressor(compress, num_bytes, variance)


def qsgd(levels: int) -> Compressor:
    """Sends each number as one of 2 levels + 1, by chance, so that its mean is the number.

        C(x)_j = ||x|| sign(x_j) l / levels

    of each tensor x, where l is levels |x_j| / ||x|| rounded down or up, up with the
    fraction that is left over as its probability. A message is ceil(log2(2 levels + 1))
    bits for a number and 4 bytes for the norm of a tensor; the paper codes it by Elias,
    which saves more the larger a tensor is.

    Without bias, and no contraction: errors would feed on themselves unless levels is
    above the square root of the numbers in the largest tensor, so that most want
    `with_compression(..., error_feedback=False)`.

    Raises:
      SettingError: `levels` is no positive integer, or is traced.
    """
    _check_static("qsgd(levels)", levels)
    check.at_least("levels", levels, 1)
    bits = math.ceil(math.log2(2 * levels + 1))

    def one(x, key):
        dtype = x.dtype
        x = widened(x)  # chances of bfloat16 are 128ths, rounded up
        norm = jnp.sqrt((x**2).sum())
        exact = levels * jnp.abs(x) / jnp.where(norm > 0, norm, 1)
        down = jnp.floor(exact)
        up = jax.random.uniform(key, x.shape, x.dtype) < exact - down
        return (norm * jnp.sign(x) * (down + up) / levels).astype(dtype)

    def compress(tree, key):
        leaves, structure = jax.tree.flatten(tree)
        keys = (jax.random.fold_in(key, i) for i in range(len(leaves)))
        return structure.unflatten(map(one, leaves, keys))

    def variance(params):  # lemma 3.1 of the paper
        size = max(leaf.size for leaf in jax.tree.leaves(params))
        return min(size / levels**2, math.sqrt(size) / levels)

    return Compressor(compress, lambda params: _bytes_of(params, bits), variance)


def sign() -> Compressor:
    """Sends the sign of every number, and for each tensor the mean of their magnitudes.

        C(x)_j = sign(x_j) ||x||_1 / d

    of each tensor x of d numbers; 0 counts as positive. A bit for a number, 4 bytes for
    the scale of a tensor.
    """

    def one(x):
        return jnp.abs(x).mean() * jnp.where(x < 0, -1, 1).astype(x.dtype)

    def variance(params):  # of a tensor with one number that is not 0
        return 1 - 1 / max(leaf.size for leaf in jax.tree.leaves(params))

    return Compressor(
        lambda tree, key: jax.tree.map(one, tree),
        lambda params: _bytes_of(params, 1),
        variance,
    )


def with_compression(
    algorithm: Algorithm, compressor: Compressor, error_feedback: bool = True
) -> Algorithm:
    """The same algorithm, `Upload.delta` compressed before it is sent.

    What a rule sends besides it (`Upload.extra`: SCAFFOLD's control variates, FedNova's
    scales) goes as it is, and counts as before: one model less goes up, and the
    compressor's bytes instead. What goes down is not compressed.

    `info.clients["compression_error"]` is ||u_i - C(u_i)|| / ||u_i||.

    Args:
      algorithm: any that sends a model; its parts see their own states only. Wrap it
        before `with_privacy` or `with_averages`.
      compressor: `top_k`, `qsgd`, `sign`, or one of your own.
      error_feedback: whether a client keeps what was lost and sends it with the next: a
        client state shaped like the parameters.

    Raises:
      SettingError: `algorithm` is no Algorithm, is private or sends no model, `compressor`
        is no Compressor; later, where the error would grow with each round: see `qsgd`.
    """
    check.kinds(
        "with_compression(algorithm, top_k(0.1))",
        algorithm=(algorithm, Algorithm),
        compressor=(compressor, Compressor),
        error_feedback=(error_feedback, bool),
    )
    if is_private(algorithm):
        raise SettingError(
            "with_compression would change what with_privacy has clipped; write it inside, "
            "as in with_privacy(with_compression(algorithm, top_k(0.1)), 1.0, 1.0)."
        )
    rule = algorithm.local
    if isinstance(rule.traffic, Traffic):
        _check_sends(rule.traffic)
    if rule.personal is not None and rule.start is not None:
        raise SettingError(
            "with_compression got an algorithm whose clients keep parameters to "
            "themselves; write it inside, as in fedper(base=with_compression(...)) or "
            "with_personal(with_compression(...), personal)."
        )
    inner = seeing(algorithm, client=lambda state: state.inner)

    def init(params: Params) -> Compressed:
        if error_feedback and compressor.variance(params) >= 1:
            raise SettingError(
                f"error_feedback=True with a compressor whose error may be "
                f"{compressor.variance(params):.3g} times what it is given, so that it "
                "grows round by round; write error_feedback=False, or more levels.",
                setting="error_feedback",
            )
        error = optax.tree.zeros_like(params) if error_feedback else ()
        state = rule.init(params)
        if isinstance(state, Compressed):
            raise SettingError(
                "with_compression got an algorithm whose uploads are compressed already; "
                "write it once."
            )
        return Compressed(state, error)

    def finish(run: LocalRun) -> tuple[Upload, Compressed]:
        upload, client = inner.local.finish(run)
        wanted = upload.delta
        if shapes_of(wanted) != shapes_of(run.params):
            raise SettingError(
                f"with_compression got {check.shown(wanted)} for Upload.delta of a model "
                f"{check.shown(run.params)}; write it around the algorithm inside."
            )
        if error_feedback:
            wanted = optax.tree.add(wanted, run.client.error)
        key = jax.random.fold_in(run.key, COMPRESSION)
        leaves, whole = sent_part(wanted)
        wanted = whole(leaves)
        sent = whole(compressor.compress(leaves, key))
        lost = optax.tree.sub(wanted, sent)
        norm = norm_of(wanted)
        error = norm_of(lost) / jnp.where(norm > 0, norm, 1)
        info = upload.info if isinstance(upload.info, dict) else {"inner": upload.info}
        upload = Upload(sent, upload.extra, info | {"compression_error": error})
        return upload, Compressed(client, lost if error_feedback else ())

    def traffic(params: Params, upload: Upload) -> Traffic:
        whole = traffic_for(rule, params, upload)
        _check_sends(whole)
        leaves, _ = sent_part(params)
        part = compressor.num_bytes(leaves) / tree_bytes(leaves)
        return whole._replace(models_up=whole.models_up - 1 + part)

    return inner._replace(
        local=inner.local._replace(
            init=around(init, rule.init),
            finish=around(finish, rule.finish),
            traffic=traffic,
        )
    )


def _check_sends(traffic: Traffic) -> None:
    """Raises SettingError unless there is a model to compress."""
    if traffic.models_up < 1:
        raise SettingError(
            "with_compression got an algorithm whose clients send "
            f"{traffic.models_up:.3g} models, where there is none to compress; write it "
            "around another, and once."
        )


def _bytes_of(params: Params, bits: int) -> int:
    """Bytes of tensors of numbers of so many bits, each tensor with a scale."""
    return sum(-(-leaf.size * bits // 8) + SCALE for leaf in jax.tree.leaves(params))


def _check_static(call: str, value: object) -> None:
    if check.is_tracer(value):
        raise SettingError(
            f"{call} is traced but makes shapes and bytes; write a plain number."
        )
