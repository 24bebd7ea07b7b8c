"""Parameters that stay at their clients: whatever the base, only the rest is averaged."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from . import check
from .core import (
    Algorithm,
    Array,
    ClientState,
    Cohort,
    LocalRun,
    LocalView,
    Params,
    PyTree,
    Refinement,
    ServerExtra,
    Traffic,
    Upload,
    adds_mean,
    as_refinement,
    shapes_of,
    traffic_for,
    tree_bytes,
    updated,
)
from .errors import SettingError
from .wrap import around, keeping, seeing

Which = str | Callable[[str], bool]
Personal = Which | tuple[Which, ...]


def chosen(personal: Personal, params: Params) -> PyTree:
    """Whether each parameter is personal, a tree of bools; see `with_personal`.

    Raises:
      SettingError: a part of `personal` is true of none, or all of it of all.
    """
    wanted, paths = _choices(personal), _paths(params)
    found = [[_is_true(which, path) for path in paths] for which in wanted]
    for which, true in zip(wanted, found, strict=True):
        if not any(true):
            raise SettingError(
                f"personal={check.kind_of(which)} is true of no parameter; name one or "
                f"more of {', '.join(paths)}."
            )
    is_personal = [any(true) for true in zip(*found, strict=True)]
    if all(is_personal):
        named = ", ".join(map(check.kind_of, wanted))
        raise SettingError(
            f"personal={named} is true of every parameter, so that none is shared; name "
            f"some of {', '.join(paths)}."
        )
    return jax.tree.unflatten(jax.tree.structure(params), is_personal)


def _choices(personal: Personal) -> tuple[Which, ...]:
    """The parts of a choice, any of which may be true.

    Raises:
      SettingError: it is no choice.
    """
    parts = tuple(personal) if isinstance(personal, tuple | list) else (personal,)
    if not parts or not all(isinstance(part, str) or callable(part) for part in parts):
        raise SettingError(
            f"with_personal got {check.kind_of(personal)} for personal; write part of a "
            'path, such as "out", a function of the path, or a tuple of them.'
        )
    return parts


def _is_true(which: Which, path: str) -> bool:
    if callable(which):
        return bool(which(path))
    return f"/{which.strip('/')}/" in f"/{path}/"


def _paths(params: Params) -> list[str]:
    """The path of every parameter, as "hidden/0/kernel"."""
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    return [name(path) for path, _ in jax.tree.leaves_with_path(params)]


def _personal_part(is_personal: PyTree, params: Params) -> dict[str, Array]:
    """The personal parameters by their path."""
    parts = zip(
        _paths(params),
        jax.tree.leaves(is_personal),
        jax.tree.leaves(params),
        strict=True,
    )
    return {path: leaf for path, stays, leaf in parts if stays}


def _with_personal_part(part: dict[str, Array], params: Params) -> Params:
    """The parameters, those that are personal as the client has them."""
    pairs = zip(_paths(params), jax.tree.leaves(params), strict=True)
    leaves = [part.get(path, leaf) for path, leaf in pairs]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


class PersonalState(NamedTuple):
    """The client state of `with_personal`."""

    inner: ClientState  # of the algorithm itself
    own: dict[str, Array]  # the client's personal parameters, by their path


def with_personal(algorithm: Algorithm, personal: Personal) -> Algorithm:
    """The same algorithm, some parameters of whose model stay at each client.

    A client trains the whole model: its own parameters from where it left them, the
    shared ones from the broadcast. It sends nothing of its own, and what the algorithm
    adds to gradients (a pull, a control variate) it adds to the shared ones alone. The
    server's copies stay as they began, and so do those of a client that never trained.
    Client state: num_clients x the personal parameters, besides the algorithm's own.

    `Traffic` counts of every model that a client receives or sends the shared part. A step
    policy measures the whole model, and what it sends is counted whole.

    Args:
      algorithm: any whose clients start from the broadcast.
      personal: which parameters: text that is a part of their path, in whole names, as
        "out" or "hidden/0" are of "hidden/0/kernel"; or a function of the path; or a tuple
        of such, any of which may be true.

    Raises:
      SettingError: an argument is not of its kind; and, once there is a model: a part of
        `personal` is true of no parameter, or all of it of every parameter.
    """
    check.kinds(
        'with_personal(algorithm, personal="out")', algorithm=(algorithm, Algorithm)
    )
    _choices(personal)
    if algorithm.local.start is not None:
        raise SettingError(
            "with_personal got an algorithm whose clients start elsewhere than at the "
            'broadcast; give all personal parameters at once, as in ("hidden/1", "out").'
        )
    rule, server = algorithm.local, algorithm.server
    inner = seeing(algorithm, client=lambda state: state.inner)
    is_personal = lambda params: chosen(personal, params)
    personal_part = lambda params: _personal_part(is_personal(params), params)

    def shared(new: Params, old: Params) -> Params:
        """`new`, its personal parameters as in `old`."""
        return jax.tree.map(
            lambda stays, a, b: b if stays else a, is_personal(old), new, old
        )

    def without_personal(sent: PyTree, params: Params) -> PyTree:
        """`sent`, with zeros for personal parameters wherever it is like a model."""
        stays, shapes = is_personal(params), shapes_of(params)
        alike = lambda tree: shapes_of(tree) == shapes

        def blank(tree):
            if not alike(tree):
                return tree
            zero = lambda stays, leaf: jnp.zeros_like(leaf) if stays else leaf
            return jax.tree.map(zero, stays, tree)

        return jax.tree.map(blank, sent, is_leaf=alike)

    def init(params: Params) -> PersonalState:
        return PersonalState(rule.init(params), personal_part(params))

    def start(view: LocalView) -> Params:
        return _with_personal_part(view.client.own, view.params)

    def added(change: Callable | None) -> Callable | None:
        """A rule's correction of gradients, of those of shared parameters alone."""
        if change is None:
            return None
        return lambda grads, view: shared(change(grads, view), grads)

    def finish(run: LocalRun) -> tuple[Upload, PersonalState]:
        with keeping(is_personal):
            upload, state = inner.local.finish(run)
        sent = without_personal((upload.delta, upload.extra), run.params)
        upload = upload._replace(delta=sent[0], extra=sent[1])
        return upload, PersonalState(state, personal_part(run.params))

    def refined_client(client: PersonalState, params: Params) -> PersonalState:
        state = client.inner
        state = state if rule.refined is None else rule.refined(state, params)
        return PersonalState(state, personal_part(params))

    def model(params: Params, client: PersonalState) -> Params:
        params = _with_personal_part(client.own, params)
        return params if rule.personal is None else rule.personal(params, client.inner)

    def traffic(params: Params, upload: Upload) -> Traffic:
        with keeping(is_personal):
            whole = traffic_for(rule, params, upload)
        part = 1 - tree_bytes(personal_part(params)) / tree_bytes(params)
        down, up = part * whole.models_down, part * whole.models_up
        return whole._replace(models_down=down, models_up=up)

    def update(
        params: Params,
        extra: ServerExtra,
        upload: Upload,
        cohort: Cohort,
        shift: Params | None = None,
    ) -> tuple[Params, ServerExtra]:
        new, extra = updated(server, params, extra, upload, cohort, shift)
        return shared(new, params), extra

    return inner._replace(
        local=inner.local._replace(
            init=around(init, rule.init),
            start=start,
            correct=added(inner.local.correct),
            decay=added(inner.local.decay),
            finish=around(finish, rule.finish),
            refined=refined_client,
            personal=model,
            traffic=traffic,
        ),
        server=server._replace(
            update=around(update, server.update),
            adds_mean=adds_mean(server),
            refined=update,
        ),
        refine=_refining_shared(as_refinement(inner.refine), shared),
    )


def _refining_shared(refine: Refinement | None, shared: Callable) -> Refinement | None:
    """A refinement that leaves the server's personal parameters as they are."""
    if refine is None or refine.server is None:
        return refine
    at_server = refine.server

    def server(params, state, view, key):
        new, state, report = at_server(params, state, view, key)
        return shared(new, params), state, report

    return refine._replace(server=server)
