"""Free memory, from files as Linux writes them."""

from types import SimpleNamespace

import jax
import pytest

from fedjax_adapt.engine import memory

MIB = 2**20


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return memory.free_host_memory(root)


def group(folder, limit, used, cached, v1=False):
    names = memory.V1 if v1 else memory.V2
    stat = f"anon 1\n{names[2]} {cached}\nunevictable 0"
    return {
        f"{folder}/{name}": text
        for name, text in zip(
            (*names[:2], "memory.stat"), (limit, used, stat), strict=True
        )
    }


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8192 kB"}


def test_without_control_groups_it_is_what_the_machine_has(tmp_path):
    assert written(tmp_path, MACHINE) == 8 * MIB
    assert written(tmp_path, {"proc/self/cgroup": "0::/"}) == 8 * MIB


def test_nobody_tells(tmp_path):
    assert memory.free_host_memory(tmp_path) is None


def test_a_container_leaves_its_limit_less_its_use_but_for_cached_files(tmp_path):
    here = {"proc/self/cgroup": "0::/"}
    files = MACHINE | here | group("sys/fs/cgroup", 5 * MIB, 3 * MIB, MIB)
    assert written(tmp_path, files) == 3 * MIB
    unlimited = group("sys/fs/cgroup", "max", 3 * MIB, MIB)
    assert written(tmp_path, unlimited) == 8 * MIB
    assert written(tmp_path, group("sys/fs/cgroup", MIB, 2 * MIB, 0)) == 0


def test_the_tightest_of_nested_groups_counts(tmp_path):
    files = {"proc/self/cgroup": "0::/jobs/mine"}
    files |= group("sys/fs/cgroup/jobs", 4 * MIB, 2 * MIB, 0)
    files |= group("sys/fs/cgroup/jobs/mine", 6 * MIB, MIB, 0)
    assert written(tmp_path, MACHINE | files) == 2 * MIB


def test_version_one_and_a_path_from_outside_the_container(tmp_path):
    lines = "4:memory:/docker/12ab\n3:cpu,cpuacct:/docker/12ab\n0::/"
    files = group("sys/fs/cgroup/memory", 7 * MIB, 2 * MIB, MIB, v1=True)
    assert written(tmp_path, MACHINE | files | {"proc/self/cgroup": lines}) == 6 * MIB


def test_this_machine_has_some():
    assert memory.free_memory() > MIB


@pytest.mark.parametrize(
    ("backend", "stats", "peak"),
    [("gpu", {"peak_bytes_in_use": 5}, 5), ("gpu", {}, None), ("tpu", None, None)],
)
def test_the_peak_is_an_accelerators_own_and_never_the_hosts(
    backend, stats, peak, monkeypatch
):
    assert memory.peak_memory() > MIB  # of this process
    device = SimpleNamespace(memory_stats=lambda: stats)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert memory.peak_memory() == peak
