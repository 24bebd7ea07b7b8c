"""Rounds on the eight devices of one process, or of two, and the same on one device.

    python eight.py OUT [PORT PROCESS]

Writes what both come to, [one device, eight], as JSON: case -> path -> numbers. Of two
processes only `ALONE` are run on one device, for the others it writes null. Run by
test_eight_devices.py, outside of pytest, whose process has other devices.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
from helpers import constructed, keys, make_data, make_task, start

import fedjax_adapt as fa
from fedjax_adapt.engine import processes

CUT = tuple(3 + i % 5 for i in range(16))  # examples of 16 clients, 2 on each device
COPIED = CUT[:9]  # of which every device holds all rows
MANY = 3 * CUT  # 6 on each device, half of which train: rows move
CASES = {  # algorithm, examples of the clients, cohort, devices, what JAX says they are
    "nothing kept": ("fedavg", CUT, 16, 8, "cpu"),
    "a table": ("scaffold", CUT, 16, 8, "cpu"),
    "a table, few at a time": ("scaffold", CUT, 4, 4, "cpu"),
    "a table, half at a time": ("scaffold", MANY, 24, 8, "cpu"),
    "a table, half at a time, accelerators": ("scaffold", MANY, 24, 8, "gpu"),
    "a table on each": ("scaffold", COPIED, 9, 5, "cpu"),
    "measured first": ("fedgsnr", CUT, 8, 8, "cpu"),
    "refined": ("fnr", COPIED, 8, 8, "cpu"),
}
ALONE = ("nothing kept", "a table")


def numbers(case, devices):
    """All that two rounds leave behind: path -> list."""
    name, sizes, cohort_size, used, backend = CASES[case]
    jax.default_backend = lambda: backend
    plan = fa.Plan(
        cohort_size=cohort_size,
        batch_size=4,
        lr=0.05,
        momentum=0.5,
        weight_decay=1e-3,
        clip_norm=5.0,
        devices=devices,
    )
    round_fn, state = start(constructed(name), make_task(), make_data(sizes), plan)
    assert devices == 1 or round_fn.num_devices == used, round_fn.num_devices
    state, infos = fa.train(round_fn, state, keys(2))
    table = jax.tree.leaves(state.clients)
    if devices != 1 and table:
        part = table[0].sharding.shard_shape(table[0].shape)[0]
        assert part == (len(sizes) // used if len(sizes) % used == 0 else len(sizes))
    accuracy = fa.evaluate(
        make_task(), state.params, make_data(sizes).test, devices=devices
    )
    read = jax.device_get((state.params, infos, accuracy))  # by any process
    found = jax.tree.map(processes.on_host, state), *read
    leaves = jax.tree_util.tree_leaves_with_path(found)
    return {jax.tree_util.keystr(path): leaf.tolist() for path, leaf in leaves}


def main(out, port=None, process=None):
    """Runs every case and writes the numbers."""
    jax.config.update("jax_num_cpu_devices", 8 if port is None else 4)
    if port is not None:
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
        assert processes.several() and len(jax.local_devices()) == 4
    assert len(jax.devices()) == 8
    alone = CASES if port is None else ALONE
    found = {
        case: [numbers(case, 1) if case in alone else None, numbers(case, "auto")]
        for case in CASES
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
