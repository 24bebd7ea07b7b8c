"""Public sets: examples that the server, or all clients, may train on besides the clients'.

Where they come from is a protocol, and decides what the accuracy on the test set means;
see source.py.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError
from .examples import as_array, check_like, check_values

Array = jax.Array | np.ndarray  # a protocol's are on the host, a data set's are not

ORIGINS = ("holdout", "split_test", "published", "given")
# the share that may be test examples too: real data hold duplicates, which a draw leaves
# on both sides, but none need be given
SHARED = {"given": 0.0, "holdout": 0.1, "split_test": 0.1}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class PublicSet:
    """What refinements may train on. A pytree; `protocol` is static.

    Attributes:
      x: inputs [public, ...], of the shape and the dtype of the clients'.
      y: labels [public], or None: unknown.
      validation: (x, y) to choose a model by, or None; of the training set.
      protocol: where it comes from: "holdout", "split_test", "published" or "given".
    """

    x: Array
    y: Array | None = None
    validation: tuple[Array, Array] | None = None
    protocol: str = field(default="given", metadata={"static": True})

    def __repr__(self) -> str:
        kind = "unlabelled" if self.y is None else "labelled"
        return (
            f"PublicSet({self.num_examples} {kind} examples, {self.num_validation} to "
            f"validate, {self.protocol})"
        )

    @property
    def num_examples(self) -> int:
        """How many examples there are, those to validate apart."""
        return self.x.shape[0]

    @property
    def num_validation(self) -> int:
        """How many examples there are to validate."""
        return 0 if self.validation is None else self.validation[1].shape[0]

    def parity(self) -> "PublicSet":
        """The same examples labelled 0 where their label is even and 1 where it is odd."""
        judged = self.validation
        return replace(
            self,
            y=None if self.y is None else self.y % 2,
            validation=None if judged is None else (judged[0], judged[1] % 2),
        )


def public_set(public: Any, x: np.ndarray, num_classes: int) -> PublicSet | None:
    """Whatever was given as a public set, as one on the device.

    Args:
      public: None, a `PublicSet`, (x, y), or x alone: unlabelled.
      x: inputs of the clients, [examples, ...].
      num_classes: number of labels.

    Raises:
      SettingError: its examples are not like the clients'.
    """
    if public is None:
        return None
    public = _as_set(public)
    check.one_of("protocol", public.protocol, ORIGINS)
    arrays = {
        name: (
            as_array(f"x of {name}", inputs),
            None if labels is None else as_array(f"y of {name}", labels),
        )
        for name, (inputs, labels) in _parts(public).items()
    }
    for name, (inputs, labels) in arrays.items():
        check_like(name, inputs, labels, (x, None), "the clients have", on_device=True)
        if not len(inputs):
            raise SettingError(f"{name} has no examples; give it one or more.")
        known = np.empty(0) if labels is None else labels
        check_values(f"{name} example", inputs, known, num_classes)
    inputs, labels = arrays["public"]
    public = replace(public, x=inputs, y=labels, validation=arrays.get("validation"))
    return jax.tree.map(jnp.asarray, public)


def tables_of(public: Any) -> dict[str, tuple[Any, Any]]:
    """(x, y) of whatever was given as a public set, and of what it validates by."""
    return {} if public is None else _parts(_as_set(public))


def check_apart(public: Any, test: tuple[Any, Any] | None) -> None:
    """Raises SettingError if more of a public set is in `test` than its protocol lets.

    None of those given may be, a tenth of those drawn, and all of those published. What JAX
    is tracing passes.
    """
    leaves = jax.tree.leaves((public, test))
    if public is None or test is None or any(map(check.is_tracer, leaves)):
        return
    public = _as_set(public)
    if public.protocol == "published":
        return
    for name, (inputs, _) in _parts(public).items():
        inputs, tests = np.asarray(inputs), np.asarray(test[0])
        dtype = np.result_type(inputs, tests)
        tested = {row.tobytes() for row in np.ascontiguousarray(tests, dtype)}
        seen = [row.tobytes() in tested for row in np.ascontiguousarray(inputs, dtype)]
        if sum(seen) > SHARED[public.protocol] * len(seen):
            raise SettingError(
                f"{name} overlaps the test set in {sum(seen)} of its {len(seen)} examples, "
                f"the first of them {seen.index(True)}; leave them out, or write "
                'PublicSet(x, y, protocol="published") to measure training accuracy.'
            )


def _as_set(public: Any) -> PublicSet:
    if isinstance(public, PublicSet):
        return public
    pair = public if isinstance(public, tuple | list) else (public, None)
    if len(pair) != 2 or isinstance(public, dict):
        raise SettingError(
            "public must be inputs [n, ...], a pair (x, y) or a PublicSet; it is a "
            f"{type(public).__name__}."
        )
    return PublicSet(pair[0], pair[1])


def _parts(public: PublicSet) -> dict[str, tuple[Any, Any]]:
    """(x, y) of what is trained on, and of what validates if there is any."""
    parts = {"public": (public.x, public.y)}
    if public.validation is not None:
        parts["validation"] = public.validation
    return parts
