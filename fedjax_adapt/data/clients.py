"""What belongs to single clients besides training examples: tests, and noise on inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError
from .examples import (
    as_array,
    as_pairs,
    check_like,
    check_values,
    concatenated,
    largest_pixel,
)
from .rows import Array, check_rows, generator, rows_in, table_of

Pair = tuple[np.ndarray, np.ndarray]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class ClientTests:
    """Test examples and whose they are, laid out as a data set is. A pytree.

    No client trains on them, and what corrupts or blurs a client's data leaves them clean.

    Attributes:
      x: inputs of all clients' tests, [examples, ...], like those they train on.
      y: labels, [examples, ...].
      index: the rows of `x` that are each client's, [clients, longest] int32, padded with
        its own first row.
      size: how many of them count, [clients] int32; 0: it has no test of its own.
    """

    x: Array
    y: Array
    index: Array
    size: Array

    def __repr__(self) -> str:
        return f"ClientTests({self.num_clients} clients, {self.x.shape[0]} examples)"

    @property
    def num_clients(self) -> int:
        """How many clients there are, those without tests included."""
        return self.index.shape[0]

    def rows(self) -> list[np.ndarray]:
        """For each client the rows of `x` and `y` that are its test."""
        return rows_in(self.index, self.size)


def concatenated_tests(tests: Sequence[Any], clients: Sequence[Pair]) -> tuple:
    """(x, y, rows), as `checked_tests` takes them, of one (x, y) per client.

    Args:
      tests: (x [m_i, ...], y [m_i, ...]) of each client; m_i may be 0.
      clients: what they train on, checked.
    """
    tests = as_pairs("the test of client {i}", tests)
    if len(tests) != len(clients):
        raise SettingError(
            f"client_tests has {len(tests)} entries but there are {len(clients)} clients; "
            "give one (x, y) per client, empty where a client has no test."
        )
    like = clients[0]
    for i, (x, y) in enumerate(tests):
        if len(np.atleast_1d(x)) or len(np.atleast_1d(y)):
            check_like(f"the test of client {i}", x, y, like)
        else:
            tests[i] = (like[0][:0], like[1][:0])  # [] has no shape to compare
    return concatenated(tests)


def checked_tests(
    given: Any,
    like: Pair,
    num_clients: int,
    num_classes: int,
    test: Any,
    on_device: Any,
) -> ClientTests | None:
    """Tests of clients on the device, checked.

    Args:
      given: (x, y, rows), as `FederatedDataset.from_rows` takes them, or None.
      like: (x, y) that clients train on.
      num_clients: how many clients there are.
      num_classes: number of labels.
      test: (x, y) that all are tested on, or None.
      on_device: `test` on the device, which is shared where `given` has the same arrays.
    """
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise SettingError(
            f"client_tests is {check.kind_of(given)}; write client_tests=(x, y, rows), "
            "with the rows of x and y that are each client's."
        )
    x, y, rows = given
    x, y = as_array("x of client_tests", x), as_array("y of client_tests", y)
    rows = list(rows)
    if len(rows) != num_clients:
        raise SettingError(
            f"client_tests has rows for {len(rows)} clients but there are {num_clients}; "
            "give each client its own, none where it has no test."
        )
    check_like("client_tests", x, y, like)
    check_rows(rows, len(x), "client_tests")
    if not any(map(len, rows)):
        raise SettingError(
            "client_tests gives no client an example; give some, or leave it out."
        )
    check_values("client test example", x, y, num_classes)
    index, size = table_of(rows)
    same = test is not None and given[0] is test[0] and given[1] is test[1]
    x, y = on_device if same else (jax.device_put(x), jnp.asarray(y))
    return ClientTests(x, y, jnp.asarray(index), jnp.asarray(size))


def hold_out(
    x: Array, y: Array, rows: Sequence[np.ndarray], share: float, seed: int
) -> tuple[Array, Array, list[np.ndarray], ClientTests]:
    """The x, y and rows that are left of a data set, and the tests that are held out.

    See `FederatedDataset.split_clients`.
    """
    check.between("test_share", share, 0, 1, closed="left")
    every = np.concatenate(rows)
    if len(np.unique(every)) < len(every):
        raise SettingError(
            f"{len(every) - len(np.unique(every))} examples are held more than once, so "
            "that one in a test would be trained on as well; split clients whose rows are "
            "their own, each once."
        )
    counts = [max(min(round(share * len(r)), len(r) - 1), 0) for r in rows]
    if not sum(counts):
        raise SettingError(
            f"test_share={share:g} holds out nothing: the largest client has "
            f"{max(map(len, rows))} examples; write a larger test_share."
        )
    order = [generator([seed, i]).permutation(len(r)) for i, r in enumerate(rows)]
    taken = [r[np.sort(o[:n])] for r, o, n in zip(rows, order, counts, strict=True)]
    tested = np.concatenate(taken)
    stays = np.ones(x.shape[0], bool)
    stays[tested] = False
    now = np.cumsum(stays) - 1  # where a row that stays is afterwards
    index, size = table_of(np.split(np.arange(len(tested)), np.cumsum(counts)[:-1]))
    tests = ClientTests(x[tested], y[tested], jnp.asarray(index), jnp.asarray(size))
    return x[stays], y[stays], [now[r[stays[r]]] for r in rows], tests


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ClientNoise:
    """Gaussian noise on the inputs of each client. A pytree; `grid` is static.

        x' = x + std_i M_i eps,   eps ~ N(0, 1) afresh at every access

    Nothing is stored: the noise is drawn on the device when a batch is gathered, from the
    client's key and the local step, so lanes and devices cannot change it. It comes before
    the task's normalisation and augmentation, is not clipped, and never touches the test
    set. NIID-Bench (Li et al., ICDE 2022, https://arxiv.org/abs/2102.02079) adds it last
    and lets some tests be noisy too; a clean test is the same for every algorithm and
    level.

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
        # normal numbers of bfloat16 have a mean that is not 0
        wide = jnp.promote_types(x.dtype, jnp.float32)
        normal = jax.random.normal(key, x.shape, wide)
        noise = (self.std[client].astype(wide) * normal).astype(x.dtype)
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
      SettingError: sigma is negative, or there is nothing to cut into so many blocks.
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
    ids = np.arange(num_clients)
    level = ids < num_clients - 1 if mask else ids / max(num_clients - 1, 1)
    std = jnp.asarray(sigma * largest_pixel(x) * level, jnp.result_type(float))
    return ClientNoise(std, grid if mask else 0)
