import logging
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from helpers import same

from fedjax_adapt.core import Origin, State, tree_bytes
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import checkpoint, files


class Earlier(NamedTuple):
    """A state as commit af9c830 wrote it."""

    params: Any
    server: Any
    policy: Any
    clients: Any
    round: Any
    refine: Any


def test_a_state_without_an_origin_is_read_as_one_that_has_it(tmp_path):
    parts = ({"w": jnp.ones(3)}, jnp.ones(3), (), jnp.ones((4, 3)), jnp.int32(2), ())
    checkpoint.save(tmp_path, Earlier(*parts), 2)
    origin = Origin("scaffold", "scaffold")
    now = State(*parts, origin)
    restored, _ = checkpoint.restore(tmp_path, jax.eval_shape(lambda: now))
    assert same(restored, now) and restored.origin == origin


class Pair(NamedTuple):
    params: Any
    rest: Any


def state(value: float):
    return Pair(
        params={"w": jnp.full((3, 2), value), "none": jnp.zeros((0, 4))},
        rest=((), None, (jnp.int32(7), jnp.arange(3, dtype=jnp.uint8))),
    )


ABSTRACT = jax.eval_shape(lambda: state(0.0))


def test_a_state_comes_back_to_the_bit(tmp_path):
    checkpoint.save(tmp_path, state(1 / 3), 5)
    restored, round = checkpoint.restore(tmp_path, ABSTRACT)
    assert round == 5
    assert same(restored, state(1 / 3))
    assert [leaf.dtype for leaf in jax.tree.leaves(restored)] == [
        leaf.dtype for leaf in jax.tree.leaves(ABSTRACT)
    ]


def test_keys_and_small_types_come_back(tmp_path):
    kept = {
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(1), 3),
        "half": jnp.ones(3, jnp.bfloat16),
        "flag": jnp.array([True, False]),
    }
    checkpoint.save(tmp_path, kept, 1)
    restored, _ = checkpoint.restore(tmp_path, jax.eval_shape(lambda: kept))
    numbers = lambda tree: {
        name: jax.random.key_data(leaf) if "key" in name else leaf
        for name, leaf in tree.items()
    }
    assert same(numbers(restored), numbers(kept))
    assert all(restored[name].dtype == leaf.dtype for name, leaf in kept.items())


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    for round in (1, 2, 10):
        checkpoint.save(tmp_path, state(float(round)), round)
    assert checkpoint.rounds(tmp_path) == [2, 10]
    assert checkpoint.restore(tmp_path, ABSTRACT)[1] == 10


def test_a_state_after_the_round_that_is_asked_for_is_not_taken(tmp_path):
    for number in (2, 3):
        checkpoint.save(tmp_path, state(float(number)), number)
    found, at = checkpoint.restore(tmp_path, ABSTRACT, 2)
    assert at == 2 and same(found, state(2.0))
    assert checkpoint.restore(tmp_path, ABSTRACT, 1) is None


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.restore(tmp_path / "nothing", ABSTRACT) is None


def test_a_half_written_checkpoint_is_none_and_is_swept_away(tmp_path):
    left_over = tmp_path / "000000003.orbax-checkpoint-tmp"
    left_over.mkdir(parents=True)
    assert checkpoint.restore(tmp_path, ABSTRACT) is None
    checkpoint.save(tmp_path, state(4.0), 4)
    assert {path.name for path in tmp_path.iterdir()} == {"000000004", files.SUMS}


def test_a_disk_without_room_is_an_error_of_the_system(tmp_path, limited):
    noise = {"w": jax.random.normal(jax.random.key(0), (400, 400))}
    checkpoint.save(tmp_path, noise, 1)
    limited(100_000)  # as on a full disk, but for the number of the error
    with pytest.raises(OSError, match="File too large"):
        checkpoint.save(tmp_path, noise, 2)
    limited(None)
    assert checkpoint.rounds(tmp_path) == [1]
    checkpoint.save(tmp_path, noise, 2)
    assert checkpoint.restore(tmp_path, jax.eval_shape(lambda: noise))[1] == 2


def test_a_state_that_another_version_kept_otherwise_is_not_called_damaged(tmp_path):
    kept = lambda clients: State({"w": jnp.ones(3)}, (), (), clients, jnp.int32(2), ())
    rows = {"model": jnp.ones((4, 3)), "none": jnp.ones((4, 0))}
    checkpoint.save(tmp_path, kept(rows), 2)

    def said(clients):
        with pytest.raises(SettingError) as raised:
            checkpoint.restore(tmp_path, jax.eval_shape(partial(kept, clients)))
        return str(raised.value).partition(" can be read ")[2]

    other = "have other arrays or types in the client state, as an earlier"
    for clients in (
        rows | {"trained": jnp.ones(4, bool)},
        {"model": jnp.ones((4, 2))},
        rows | {"model": jnp.ones((4, 3), jnp.bfloat16)},
        (),  # what was kept is more than is asked for
    ):
        assert said(clients).startswith(f"(rounds 2): they {other}")
    checkpoint.save(tmp_path, kept({}), 3)
    damage(tmp_path / "000000003")
    whose = "(rounds 2, 3): 3 is damaged, and the rest"
    assert said({}).startswith(f"{whose} {other}")  # which it would fit
    assert "delete" not in said({})


def damage(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, capfd):
    checkpoint.save(tmp_path, state(1.0), 1)
    checkpoint.save(tmp_path, state(2.0), 2)
    damage(tmp_path / "000000002")
    restored, round = checkpoint.restore(tmp_path, ABSTRACT)
    assert round == 1 and same(restored, state(1.0))
    assert capfd.readouterr() == ("", "")


def test_reads_that_fail_after_the_first_keep_it_to_themselves(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    checkpoint._one_failure_is_enough.__wrapped__()
    begun = "Encountered error while reading array index: (). See full"
    thrown_away, failed = Exception(begun), Exception(begun)
    thrown_away.__cause__ = GeneratorExit()
    raised = [
        *(RuntimeError("Event loop is closed"), thrown_away),
        *(failed, RuntimeError("of somebody else"), None),
    ]
    raised = [SimpleNamespace(exc_value=error) for error in raised]
    for one in raised:
        sys.unraisablehook(one)
    assert told == raised[2:]
    logger, heard = logging.getLogger("asyncio"), []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", heard.append)
    logger.addHandler(handler)
    for text in ("no such key in OCDBT database at x", "of somebody else"):
        error = ValueError(text)
        logger.error("never retrieved", exc_info=(ValueError, error, None))
    logger.removeHandler(handler)
    logger.removeFilter(logger.filters[-1])
    assert [str(record.exc_info[1]) for record in heard] == ["of somebody else"]


def test_a_damaged_checkpoint_can_be_written_again(tmp_path):
    checkpoint.save(tmp_path, state(1.0), 1)
    damage(tmp_path / "000000001")
    checkpoint.save(tmp_path, state(3.0), 1)
    assert same(checkpoint.restore(tmp_path, ABSTRACT)[0], state(3.0))


def test_only_damaged_checkpoints_are_one_sentence(tmp_path):
    checkpoint.save(tmp_path, state(1.0), 1)
    damage(tmp_path / "000000001")
    with pytest.raises(ValueError, match=r"no checkpoint .* be read \(rounds 1\)"):
        checkpoint.restore(tmp_path, ABSTRACT)


def test_another_models_checkpoint_is_not_taken_for_ours(tmp_path):
    checkpoint.save(tmp_path, state(1.0), 1)
    other = ABSTRACT._replace(params={"v": jax.ShapeDtypeStruct((3, 2), jnp.float32)})
    with pytest.raises(ValueError, match="can be read"):
        checkpoint.restore(tmp_path, other)


def test_a_disk_without_room_is_left_as_it_is(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, state(1.0), 1)
    size = tree_bytes(state(1.0))
    usage = lambda free: lambda folder: SimpleNamespace(free=free)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", usage(size - 1))
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint.save(tmp_path, state(2.0), 2)
    assert checkpoint.rounds(tmp_path) == [1]
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", usage(size))
    checkpoint.save(tmp_path, state(2.0), 2)
