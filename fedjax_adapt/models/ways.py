"""Which way each convolution is computed: as was measured, or else by a rule.

    "winograd"  winograd.py    kernels of 3 x 3 or 5 x 5 moved by one pixel
    "shifts"    conv.py        patches along the width, shifted sums along the height
    "patches"   conv.py        patches in both directions
    "lax"       XLA's own convolution

All give the same numbers but for rounding, and each has its own gradients. What is fastest
hangs on the backend, on the layer and on how many clients train side by side; timing.py
tries it. `with_ways` makes of that a task whose layers are computed so.

The rule is, on a CPU, what was measured there, and on an accelerator, what the program says
that XLA compiles for it (benchmarks/README.md): its own convolutions, of which those of
several models side by side are grouped ones of the vendor's library, move a fraction of
the bytes of any other way. On an H200 a round of W1 took 25.2 ms with them, 24.1 with
patches, which hold half as much again, 27.4 with shifts and 47.5 with Winograd's (n = 1).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax

from .. import check
from ..core import Array, Task, wrapped
from ..errors import SettingError
from .winograd import POINTS
from .xla import Pair

WAYS = ("winograd", "shifts", "patches", "lax")
FEW_CHANNELS = 16  # below, the products of Winograd's way are too thin


class Layer(NamedTuple):
    """One convolution of one model, its batch included."""

    pixels: Pair  # height and width of an image, padding included
    channels: int
    images: int
    size: Pair  # height and width of the kernel
    filters: int
    strides: Pair
    dtype: str

    def __str__(self) -> str:
        """As in a table: "50 x 32 x 32 x 3, 5 x 5 x 64 by 1 x 1, float32"."""
        by = lambda *sizes: " x ".join(map(str, sizes))
        images = by(self.images, *self.pixels, self.channels)
        kernel = f"{by(*self.size, self.filters)} by {by(*self.strides)}"
        return f"{images}, {kernel}, {self.dtype}"


_CHOOSE: ContextVar[Callable[[Layer], str | None]] = ContextVar(
    "ways of convolutions", default=lambda layer: None
)


def chosen(layer: Layer) -> str:
    """The way in which a layer is computed that is being traced now."""
    return _CHOOSE.get()(layer) or by_rule(layer)


def by_rule(layer: Layer, backend: str | None = None) -> str:
    """The way where nothing was measured; `backend` is "cpu", "gpu", "tpu" or that here."""
    if (backend or jax.default_backend()) != "cpu":
        return "lax"
    enough = min(layer.channels, layer.filters) >= FEW_CHANNELS
    # one image has too few tiles
    if enough and layer.images > 1 and can("winograd", layer):
        return "winograd"
    return "shifts" if _is_less_by_shifts(layer) else "patches"


def can(way: str, layer: Layer) -> bool:
    """Whether a layer can be computed in this way, and keeps its precision."""
    if way != "winograd":
        return True
    (height, width), exact = layer.size, layer.dtype in ("float32", "float64")
    return exact and height == width and height in POINTS and layer.strides == (1, 1)


def _is_less_by_shifts(layer: Layer) -> bool:
    """Whether patches along the width alone store fewer numbers."""
    (kh, kw), pixels = layer.size, layer.pixels[0]
    height = (pixels - kh) // layer.strides[0] + 1
    both = kh * kw * layer.channels * height
    return (kw * layer.channels + kh * layer.filters) * pixels < both


def with_ways(task: Task, ways: str | Mapping[Layer, str]) -> Task:
    """The task, its convolutions computed as given; those not named go by the rule.

    Args:
      task: of any model that calls `models.conv`, as ours do; in the precision it will
        have, of which layers are a part.
      ways: by layer, from `models.fastest_ways`; or one way for all layers that can.

    Raises:
      SettingError: a way is unknown, or a layer cannot be computed so.
    """
    if isinstance(ways, str):
        check.one_of("ways", ways, WAYS)
        choose = lambda layer: ways if can(ways, layer) else None
    else:
        known = dict(ways)
        for layer, way in known.items():
            check.one_of(f"the way of {layer}", way, WAYS)
            if not can(way, layer):
                raise SettingError(
                    f"{way} is not a way to compute {layer}: it takes float32 kernels of "
                    "3 x 3 or 5 x 5 moved by one pixel; write shifts, patches or lax."
                )
        choose = known.get

    def around(function: Callable) -> Callable:
        def with_given_ways(*arguments):
            with choosing(choose):
                return function(*arguments)

        return with_given_ways

    return wrapped(task, around)


def layers_of(task: Task, x: Array | jax.ShapeDtypeStruct) -> list[Layer]:
    """The kinds of convolutions that local training makes of a batch, in their order.

    Of the batch x [batch, ...] a shape is enough.
    """
    found: dict[Layer, None] = {}
    note = lambda layer: found.setdefault(layer)

    def forward(key, x):
        params = task.init(key)
        if task.apply_train is not None:
            return task.apply_train(params, x, key)
        return task.apply(params, x)

    with choosing(note):
        jax.eval_shape(forward, jax.random.key(0), x)
    return [*found]


@contextmanager
def choosing(choose: Callable[[Layer], str | None]) -> Iterator[None]:
    """Within it `choose` says how a layer is computed; None: by the rule."""
    token = _CHOOSE.set(choose)
    try:
        yield
    finally:
        _CHOOSE.reset(token)
