"""Checkpoints that a thread writes while rounds go on."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

from fedjax_adapt.engine import memory
from fedjax_adapt.experiment import checkpoint, saver

ABSTRACT = {"w": jax.ShapeDtypeStruct((300, 4), jnp.float32)}


def state(value: float):
    return {"w": jnp.full((300, 4), value)}


@pytest.fixture
def held(monkeypatch):
    """`checkpoint.save`, which waits for the event that it stands for."""
    event, save = threading.Event(), checkpoint.save

    def wait_and_save(folder, state, round):
        assert event.wait(20)
        save(folder, state, round)

    monkeypatch.setattr(checkpoint, "save", wait_and_save)
    return event


def test_a_state_whose_memory_is_given_up_is_written_as_it_was(tmp_path, held):
    step = jax.jit(lambda state: {"w": state["w"] + 1}, donate_argnums=0)
    now = state(1.0)
    with saver.saver(tmp_path) as writes:
        assert writes.save(now, 1) == 0
        for _ in range(3):
            now = step(now)  # before a byte of it is written
        assert checkpoint.rounds(tmp_path) == []
        held.set()
        assert writes.save(now, 2) > 0  # what the first took
    assert checkpoint.rounds(tmp_path) == [1, 2]
    restored, _ = checkpoint.restore(tmp_path, ABSTRACT)
    np.testing.assert_array_equal(restored["w"], 4)
    (tmp_path / "000000002").rename(tmp_path / "gone")
    restored, _ = checkpoint.restore(tmp_path, ABSTRACT)
    np.testing.assert_array_equal(restored["w"], 1)


def test_what_is_cut_up_among_devices_comes_back(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))
    lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
    now = {"w": jax.device_put(jax.random.normal(jax.random.key(0), (6, 4)), lies)}
    with saver.saver(tmp_path) as writes:
        writes.save(now, 1)
    abstract = {"w": jax.ShapeDtypeStruct((6, 4), jnp.float32, sharding=lies)}
    restored, _ = checkpoint.restore(tmp_path, abstract)
    assert same(restored, now)
    assert restored["w"].sharding == lies


def test_a_large_state_is_written_at_once_where_memory_is_short(
    tmp_path, monkeypatch, held
):
    monkeypatch.setattr(saver, "SMALL", 100)
    size = 300 * 4 * 4
    monkeypatch.setattr(memory, "free_host_memory", lambda: 8 * size)
    with saver.saver(tmp_path) as writes:
        assert writes.save(state(1.0), 1) == 0  # under way
        assert checkpoint.rounds(tmp_path) == []
        held.set()
        monkeypatch.setattr(memory, "free_host_memory", lambda: 8 * size - 1)
        assert writes.save(state(2.0), 2) > 0
        assert checkpoint.rounds(tmp_path) == [1, 2]
    restored, _ = checkpoint.restore(tmp_path, ABSTRACT)
    np.testing.assert_array_equal(restored["w"], 2)


def test_a_write_that_fails_is_an_error_of_the_next_or_of_the_end(
    tmp_path, monkeypatch
):
    def full(folder, state, round):
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(OSError, match="No space left"), saver.saver(tmp_path) as writes:
        writes.save(state(1.0), 1)
        with pytest.raises(OSError, match="No space left"):
            writes.save(state(2.0), 2)


def test_another_error_is_not_hidden_by_it(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "save", lambda *_: 1 / 0)
    with pytest.raises(KeyError), saver.saver(tmp_path) as writes:
        writes.save(state(1.0), 1)
        raise KeyError
