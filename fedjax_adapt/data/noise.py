"""Feature skew: every client sees its examples through noise of its own.

    x' = x + std_i M_i eps,   eps ~ N(0, 1) afresh at every access

Nothing is stored: the noise is drawn on the device when a batch is gathered, from the
client's key and the local step, so lanes and devices cannot change it. It comes before
the task's normalisation and augmentation, is not clipped, and never touches the test
set. NIID-Bench (Li et al., ICDE 2022, https://arxiv.org/abs/2102.02079) adds it last and
lets some tests be noisy too; a clean test is the same for every algorithm and level.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ClientNoise:
    """Gaussian noise on the inputs of each client. A pytree; `grid` is static.

    Attributes:
      std: standard deviation in the units of `FederatedDataset.x`, [clients].
      grid: 0: noise everywhere; else images are cut into grid x grid blocks and client i
        has noise in block i alone, counted row by row.
    """

    std: Array
    grid: int = field(default=0, metadata={"static": True})

    def add(self, x: Array, client: Array, key: Any) -> Array:
        """The inputs x [batch, ...] as `client` sees them; integers become float32."""
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(jnp.float32)
        noise = self.std[client].astype(x.dtype) * jax.random.normal(
            key, x.shape, x.dtype
        )
        if self.grid:
            noise = jnp.where(self._block(x.shape[1:], client)[None], noise, 0)
        return x + noise

    def _block(self, shape: tuple[int, ...], client: Array) -> Array:
        """Where the client's block lies in an image [height, width, channels]; bool."""
        height, width = (side // self.grid for side in shape[:2])
        row = jnp.arange(shape[0])[:, None, None] // height == client // self.grid
        column = jnp.arange(shape[1])[None, :, None] // width == client % self.grid
        return jnp.broadcast_to(row & column, shape)


def feature_noise(
    num_clients: int, sigma: float, x: np.ndarray, mask: bool = False
) -> ClientNoise | None:
    """Noise that grows from client to client, or one that sits elsewhere in each.

        std_i = sigma i / (N - 1)                              client 0 is clean
        with `mask`: sigma, in block i of ceil(sqrt(N - 1))^2; the last client is clean

    As NIID-Bench splits ("homo" with --noise, whose "variance" is used as a deviation;
    the mask is its noise_type "space" with the divisor its code meant: the released one
    reaches beyond the image for 10 clients).

    Args:
      num_clients: how many clients.
      sigma: of pixels in [0, 1]; 0 is no noise. Integer pixels are taken to reach from 0
        to the largest in `x` (255 in photographs, 16 in the digits), other inputs as
        they are.
      x: the training inputs, [n, ...].
      mask: the second form; `x` must be images [n, height, width, channels].

    Raises:
      ValueError: sigma is negative, or there is nothing to cut into so many blocks.
    """
    check.nonnegative("feature_noise", sigma)
    x = np.asarray(x)
    if mask and x.ndim != 4:
        raise SettingError(
            f"feature_noise_mask needs images [n, height, width, channels] but the inputs "
            f"are {list(x.shape)}; leave it out."
        )
    grid = int(np.ceil(np.sqrt(max(num_clients - 1, 1))))
    if mask and grid > min(x.shape[1:3]):
        side = min(x.shape[1:3])
        raise SettingError(
            f"feature_noise_mask cuts images into {grid} x {grid} blocks for num_clients="
            f"{num_clients} but they have {x.shape[1]} x {x.shape[2]} pixels; write "
            f"num_clients={side**2 + 1} or fewer."
        )
    if sigma == 0:
        return None
    scale = float(x.max()) if np.issubdtype(x.dtype, np.integer) and x.size else 1.0
    ids = np.arange(num_clients)
    level = ids < num_clients - 1 if mask else ids / max(num_clients - 1, 1)
    std = jnp.asarray(sigma * scale * level, jnp.result_type(float))
    return ClientNoise(std, grid if mask else 0)
