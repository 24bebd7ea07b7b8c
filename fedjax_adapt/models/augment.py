"""Random transforms of training images, on the device, each example with its own draws.

    flip_crop     FedDyn, FedDC, FedSSG: a flip with probability 1/2; then, with probability
                  1/2, a crop from the image with a margin of zeros
    reflect_crop  FNR-FL (NIID-Bench): a crop from the image with its edge reflected,
                  always; and a flip with probability 1/2

Each is (key, x) -> x for images x [batch, height, width, channels], which are normalised
already, so that a margin of zeros is one of mean pixels.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from .. import check
from ..core import Array
from ..errors import SettingError

Augment = Callable[[Array, Array], Array]  # (key, x [batch, ...]) -> the like of x


def flip_crop(pad: int = 4) -> Augment:
    """Flips half of the images and, independently, shifts half of them.

    A function (key, x) -> x of images x [batch, height, width, channels].

    A flip mirrors the width. A shift is a crop at an offset uniform in {0..2 pad}^2 from
    the image with `pad` zeros on each side; offset (pad, pad) is the image itself.

    Args:
      pad: pixels on each side, at least 0.
    """
    check.at_least("pad", pad, 0)

    def augment(key: Array, x: Array) -> Array:
        _check_images("flip_crop", x, 0)
        key_flip, key_shifted, key_offset = jax.random.split(key, 3)
        shifted = jax.random.bernoulli(key_shifted, shape=(len(x), 1))
        offsets = jnp.where(shifted, _offsets(key_offset, len(x), pad), pad)
        return _shift(_flip(key_flip, x), offsets, pad, "constant")

    return augment


def reflect_crop(pad: int = 4) -> Augment:
    """Flips half of the images and shifts all, with the edges reflected.

    A function as of `flip_crop`, but every image is cropped, and the margin mirrors the
    image about its outermost pixels, which are not repeated.

    Args:
      pad: pixels on each side, at least 0 and less than the height and the width.
    """
    check.at_least("pad", pad, 0)

    def augment(key: Array, x: Array) -> Array:
        _check_images("reflect_crop", x, pad)
        key_flip, key_offset = jax.random.split(key)
        offsets = _offsets(key_offset, len(x), pad)
        return _shift(_flip(key_flip, x), offsets, pad, "reflect")

    return augment


AUGMENTS: dict[str, Callable[[], Augment] | None] = {
    "none": None,
    "flip_crop": flip_crop,
    "reflect_crop": reflect_crop,
}


def _offsets(key: Array, batch: int, pad: int) -> Array:
    return jax.random.randint(key, (batch, 2), 0, 2 * pad + 1)


def _flip(key: Array, x: Array) -> Array:
    flipped = jax.random.bernoulli(key, shape=(len(x), 1, 1, 1))
    return jnp.where(flipped, x[:, :, ::-1], x)


def _shift(x: Array, offsets: Array, pad: int, mode: str) -> Array:
    """Example b of `x` with a margin, cropped at offsets[b] to its own size."""
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode=mode)
    crop = lambda image, offset: lax.dynamic_slice(image, (*offset, 0), x.shape[1:])
    return jax.vmap(crop)(padded, offsets)


def _check_images(name: str, x: Array, pad: int) -> None:
    if x.ndim != 4:
        raise SettingError(
            f"augment={name} takes images [height, width, channels] but the inputs have "
            f"shape {list(x.shape[1:])}; write augment=none."
        )
    if pad and min(x.shape[1:3]) <= pad:
        raise SettingError(
            f"augment={name} reflects {pad} pixels, but the images have {x.shape[1]} x "
            f"{x.shape[2]}; write flip_crop, or a pad below that."
        )
