"""Checkpoints that are written while rounds go on."""

import errno
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers import same

from fedjax_adapt.engine import memory
from fedjax_adapt.experiment import checkpoint

ABSTRACT = {"w": jax.ShapeDtypeStruct((300, 4), jnp.float32)}


def state(value: float):
    return {"w": jnp.full((300, 4), value)}


@pytest.mark.slow
def test_a_state_whose_memory_is_given_up_is_written_as_it_was(tmp_path):
    """Large enough to be still on its way when its memory is given up."""
    step = jax.jit(lambda state: {"w": state["w"] + 1}, donate_argnums=0)
    now = {"w": jax.random.normal(jax.random.key(0), (5_000_000,))}
    expected = np.array(now["w"])
    abstract = jax.eval_shape(lambda: now)
    with checkpoint.saver(tmp_path) as writes:
        assert writes.save(now, 1) == 0
        for _ in range(3):
            now = step(now)
        jax.block_until_ready(now)
        assert writes.save(now, 2) > 0  # what the first took
    assert checkpoint.rounds(tmp_path) == [1, 2]
    restored, _ = checkpoint.restore(tmp_path, abstract)
    np.testing.assert_array_equal(restored["w"], expected + 1 + 1 + 1)
    (tmp_path / "000000002").rename(tmp_path / "gone")
    restored, _ = checkpoint.restore(tmp_path, abstract)
    np.testing.assert_array_equal(restored["w"], expected)


def test_a_machine_may_sleep_for_days_while_a_state_is_written(tmp_path, monkeypatch):
    """Orbax gives up by the time of day, which goes on meanwhile."""
    given, made = {}, ocp.options.AsyncOptions
    options = lambda **kwargs: given.update(kwargs) or made(**kwargs)
    monkeypatch.setattr(ocp.options, "AsyncOptions", options)
    with checkpoint.saver(tmp_path) as writes:
        writes.save(state(1.0), 1)
    assert given["timeout_secs"] == 7 * 24 * 3600
    assert checkpoint.rounds(tmp_path) == [1]


def test_what_is_cut_up_among_devices_comes_back(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("clients",))
    lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
    now = {"w": jax.device_put(jax.random.normal(jax.random.key(0), (6, 4)), lies)}
    checkpoint.save(tmp_path, now, 1)
    abstract = {"w": jax.ShapeDtypeStruct((6, 4), jnp.float32, sharding=lies)}
    restored, _ = checkpoint.restore(tmp_path, abstract)
    assert same(restored, now)
    assert restored["w"].sharding == lies
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = {"w": jax.ShapeDtypeStruct((6, 4), jnp.float32, sharding=one)}
    restored, _ = checkpoint.restore(tmp_path, abstract)  # as a smaller machine would
    np.testing.assert_array_equal(restored["w"], now["w"])
    assert restored["w"].sharding == one


def test_a_large_state_is_written_at_once_where_memory_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SMALL", 100)
    size, under_way = 300 * 4 * 4, []
    begin = checkpoint.Saver.wait
    monkeypatch.setattr(
        checkpoint.Saver, "wait", lambda self: under_way.append(1) or begin(self)
    )
    with checkpoint.saver(tmp_path) as writes:
        monkeypatch.setattr(memory, "free_host_memory", lambda: 12 * size)
        writes.save(state(1.0), 1)
        assert len(under_way) == 1  # for the write before
        monkeypatch.setattr(memory, "free_host_memory", lambda: 12 * size - 1)
        assert writes.save(state(2.0), 2) > 0
        assert len(under_way) == 3
        assert checkpoint.rounds(tmp_path) == [1, 2]
    restored, _ = checkpoint.restore(tmp_path, ABSTRACT)
    np.testing.assert_array_equal(restored["w"], 2)


def test_a_write_that_fails_is_an_error_of_the_next_or_of_the_end(tmp_path, limited):
    noise = {"w": jax.random.normal(jax.random.key(0), (400, 400))}
    full = pytest.raises(OSError, match="File too large")
    with full, checkpoint.saver(tmp_path) as writes:
        limited(100_000)
        writes.save(noise, 1)
    with checkpoint.saver(tmp_path) as writes:
        writes.save(noise, 1)
        with pytest.raises(OSError, match="File too large"):
            writes.save(noise, 2)
        limited(None)
        writes.save(noise, 3)
    assert checkpoint.rounds(tmp_path) == [3]


def write_that_fails(writes, limited):
    """Begins one, and waits until its threads are done."""
    limited(100_000)
    writes.save({"w": jax.random.normal(jax.random.key(0), (400, 400))}, 1)
    for thread in threading.enumerate():
        if thread.name == "async_save":
            thread.join()


def test_another_error_is_not_hidden_by_it_and_has_a_note_of_it(tmp_path, limited):
    with pytest.raises(KeyError) as raised, checkpoint.saver(tmp_path) as writes:
        write_that_fails(writes, limited)
        raise KeyError
    (said,) = raised.value.__notes__
    assert said.startswith("Besides, the rounds so far could not be saved: [Errno 27] ")


def test_ctrl_c_does_not_hide_that_the_rounds_are_not_saved(tmp_path, limited):
    either = pytest.raises((OSError, KeyboardInterrupt))
    with either as raised, checkpoint.saver(tmp_path) as writes:
        write_that_fails(writes, limited)
        raise KeyboardInterrupt
    assert "File too large" in str(raised.value)
    limited(None)
    with pytest.raises(KeyboardInterrupt), checkpoint.saver(tmp_path) as writes:
        writes.save(state(1.0), 1)
        raise KeyboardInterrupt
    assert checkpoint.rounds(tmp_path) == [1]  # it was waited for


def test_a_write_that_fails_prints_nothing(tmp_path, limited, caplog):
    with pytest.raises(OSError), checkpoint.saver(tmp_path) as writes:
        write_that_fails(writes, limited)
        logging.getLogger("absl").error("of somebody else")
    assert [record.message for record in caplog.records] == ["of somebody else"]


def test_a_list_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(checkpoint.files, "enter", full)
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint.save(tmp_path, {"w": jnp.ones(3)}, 1)
