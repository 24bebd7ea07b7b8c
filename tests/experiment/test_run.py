import dataclasses
import gc
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import weakref
import zipfile
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pytest
from helpers import relist, same, unlist
from tiny_runs import MADE

from fedjax_adapt import (
    afl_best,
    averages,
    class_accuracy,
    evaluate,
    evaluate_clients,
    init_state,
    make_round,
)
from fedjax_adapt.engine import evaluate as evaluate_module
from fedjax_adapt.engine import round as round_module
from fedjax_adapt.engine import train as train_module
from fedjax_adapt.experiment import (
    Config,
    Diverged,
    build,
    loop,
    program,
    read_run,
    run,
    store,
    toml,
)
from fedjax_adapt.experiment import checkpoint as checkpoints
from fedjax_adapt.experiment.config import config_hash, read_config
from fedjax_adapt.experiment.files import locked
from fedjax_adapt.experiment.folder import first_change, run_folder
from fedjax_adapt.experiment.objects import KINDS
from fedjax_adapt.experiment.program import compile_program, compiling, run_keys
from fedjax_adapt.experiment.spelling import flat_name
from fedjax_adapt.experiment.summary import TEST, from_dict

pytestmark = pytest.mark.usefixtures("shared_programs")

# what two equal runs need not share; somebody may edit the checkout meanwhile
CIRCUMSTANCES = {
    *("seconds", "compile_seconds", "calibrate_seconds", "rounds_per_second"),
    *("folder", "commit"),
}


def final_state(config):
    f = build(config)
    key, _ = run_keys(config.seed)
    abstract = jax.eval_shape(
        lambda: init_state(f.algorithm, f.task, f.data, f.plan, key)
    )
    return checkpoints.restore(Path(config.folder) / "checkpoints", abstract)


def numbers(folder):
    """Everything a run says, without clocks and places."""
    record = read_run(folder)
    summary = {k: v for k, v in record.summary.items() if k not in CIRCUMSTANCES}
    summary["memory"] = summary["memory"] | {"peak": None}
    for name in (
        "keeps_memory",
        "xla_flags",
    ):  # of the command line, or of this process
        del summary["hardware"][name]
    metrics = record.metrics.drop_columns(["seconds"]).to_pydict()
    return summary, metrics, record.clients.to_pydict()


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*"))


class Stop(Exception):
    pass


def stop_after(round):
    def progress(now):
        if now.round >= round:
            raise Stop

    return progress


@pytest.mark.slow
def test_a_run_equals_a_loop_over_its_rounds(tiny):
    config = tiny(rounds=4, evaluate_every=2)
    result = run(config)
    f = build(config)
    key_init, key_train = run_keys(config.seed)
    state = init_state(f.algorithm, f.task, f.data, f.plan, key_init)
    round_fn = jax.jit(make_round(f.algorithm, f.task, f.data, f.plan))
    accuracies, steps, clients = [], 0, []
    for t in range(4):
        state, info = round_fn(state, jax.random.fold_in(key_train, t))
        steps += int(info.num_steps.sum())
        clients += [(t + 1, int(i)) for i in info.cohort if i < config.num_clients]
        if t % 2:
            accuracies.append(
                float(evaluate(f.task, state.params, f.data.test).accuracy)
            )
    record = read_run(config.folder)
    np.testing.assert_allclose(record.metrics["accuracy"], accuracies, atol=1e-6)
    assert record.metrics["round"].to_pylist() == [2, 4]
    assert record.metrics["local_steps"].to_pylist()[-1] == result.local_steps == steps
    table = record.clients.to_pydict()
    assert list(zip(table["round"], table["client"], strict=True)) == clients
    restored, round = final_state(config)
    assert round == restored.round == 4
    for ours, theirs in zip(
        jax.tree.leaves(restored), jax.tree.leaves(state), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_finished_folder_holds_what_it_should(tiny):
    config = tiny(rounds=3)
    result = run(config)
    done = f"scaffold, 3 rounds, test accuracy {result.accuracy:.4f}"
    assert str(result) == f"Summary({config.folder}: {done})"
    assert {p.name for p in Path(config.folder).iterdir()} == {
        *("config.toml", "metrics", "clients", "partition", "checkpoints"),
        "files.sha256",
        "summary.json",
    }
    labels = store.read_table(Path(config.folder), store.PARTITION)
    assert labels["client"].to_pylist() == [*range(6)]
    assert sum(map(sum, labels["label_counts"].to_pylist())) == 1437
    each = labels["client_accuracy"].to_numpy()  # nobody is without examples
    assert each.mean() == pytest.approx(result.client_accuracy["mean"])
    assert each.min() == pytest.approx(result.client_accuracy["min"])
    assert "personal_accuracy" not in labels.column_names
    assert read_run(config.folder).summary == json.loads(json.dumps(result.to_dict()))
    assert checkpoints.rounds(Path(config.folder) / "checkpoints") == [2, 3]
    assert result.data["clients"] == 6
    assert result.last_count == result.rounds == 3


@pytest.mark.slow
def test_a_client_without_examples_has_no_accuracy_in_the_table_of_clients(tiny):
    few = {"concentration": 0.05, "min_size": 0}
    config = tiny(rounds=1, partition="quantity_dirichlet", partition_options=few)
    result = run(config)
    labels = store.read_table(Path(config.folder), store.PARTITION)
    sizes = list(map(sum, labels["label_counts"].to_pylist()))
    each = labels["client_accuracy"].to_pylist()
    assert 0 in sizes and [x is None for x in each] == [size == 0 for size in sizes]
    held = [share for share in each if share is not None]
    assert np.mean(held) == pytest.approx(result.client_accuracy["mean"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 6))]
)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tiny, whole, stop):
    broken = tiny()
    with pytest.raises(Stop):
        run(broken, progress=stop_after(stop))
    assert read_run(broken.folder).summary is None
    run(broken, resume=True)
    assert same(final_state(broken), final_state(whole))
    assert numbers(broken.folder) == numbers(whole.folder)


@pytest.mark.slow
def test_ctrl_c_in_python_keeps_every_finished_round(tiny, whole, monkeypatch):
    """Where it comes in the middle of a round, as in a notebook."""
    config, seen, dispatch = tiny(checkpoint_every=None), [], loop._dispatch

    def interrupted(*args):
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return dispatch(*args)

    note = lambda figures: seen.append(figures["round"])
    # a process that others began, as a worker of these tests, may ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_dispatch", interrupted)
            with pytest.raises(
                KeyboardInterrupt, match="resume=True goes on with them"
            ):
                run(config, callback=note)
        assert seen == [1, 2, 3, 4]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    run(config, resume=True, callback=note)
    assert seen == [*range(1, config.rounds + 1)]
    assert numbers(config.folder)[1:] == numbers(whole.folder)[1:]


@pytest.mark.slow
def test_rounds_that_wait_for_a_large_state_lose_none(tiny, whole, monkeypatch):
    monkeypatch.setattr(checkpoints, "has_room", lambda size: False)
    broken = tiny()
    with pytest.raises(Stop):
        run(broken, progress=stop_after(5))
    assert checkpoints.rounds(Path(broken.folder) / "checkpoints") == [2, 4]
    run(broken, resume=True)
    assert same(final_state(broken), final_state(whole))
    assert numbers(broken.folder) == numbers(whole.folder)


@pytest.mark.optimised
@pytest.mark.slow
def test_a_run_may_keep_its_clients_in_the_memory_of_the_host(tiny):
    """And goes on from there, in either memory."""
    device = tiny("device", devices=1)
    run(device)
    host = tiny("host", devices=1, client_memory="host")
    for stop in (3, 5):
        with pytest.raises(Stop):
            run(host, resume=True, progress=stop_after(stop))
    run(dataclasses.replace(host, client_memory="device"), resume=True)
    assert same(final_state(host), final_state(device))
    assert numbers(host.folder)[1:] == numbers(device.folder)[1:]


@pytest.mark.slow
def test_other_models_are_measured_and_resumed_and_change_nothing(tiny, also, whole):
    """Their tables are in the checkpoint; for SCAFFOLD sel is the server's model."""
    broken = tiny(evaluate_also=("sel", "all"))
    with pytest.raises(Stop):
        run(broken, progress=stop_after(3))
    run(broken, resume=True)
    assert numbers(broken.folder) == numbers(also.folder)
    ours, theirs = (numbers(config.folder)[1] for config in (also, whole))
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
    f = build(also)
    state, _ = final_state(also)
    one_more = read_run(also.folder).summary["client_state_bytes"]
    assert one_more == 2 * read_run(whole.folder).summary["client_state_bytes"]
    read = averages(f.algorithm, state, f.data)
    assert same(read["sel"], state.params)
    accuracy, loss = evaluate(f.task, read["all"], f.data.test)
    figures = read_run(also.folder).summary["models"]
    assert ours["accuracy_all"][-1] == pytest.approx(float(accuracy), abs=1e-6)
    assert figures["all"]["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert figures["sel"]["loss"] == ours["loss"][-1] != figures["all"]["loss"]


@pytest.mark.slow
def test_the_end_of_a_run_tells_classes_and_clients_apart(whole):
    f = build(whole)
    params = final_state(whole)[0].params
    end = read_run(whole.folder).summary
    per_class = class_accuracy(f.task, params, f.data.test, 10)
    np.testing.assert_allclose(end["class_accuracy"], per_class, rtol=1e-6)
    own = evaluate_clients(f.task, params, f.data).accuracy
    assert end["client_accuracy"]["mean"] == pytest.approx(float(own.mean()), abs=1e-6)
    assert end["client_accuracy"]["min"] == pytest.approx(float(own.min()), abs=1e-6)


KILLED = """
import os, signal, sys
from pathlib import Path
from fedjax_adapt import cores_as_devices
from fedjax_adapt.experiment import checkpoint, run
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.reading import read_settings

save = checkpoint.Saver.save

def save_or_die(self, state, round):
    spent = save(self, state, round)
    if round == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return spent

checkpoint.Saver.save = save_or_die
cores_as_devices(4)  # as conftest.py does
run(from_settings(read_settings(Path(sys.argv[1])) | {"folder": sys.argv[2]}))
"""


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bit_without_doubled_rows(tiny, whole):
    """SIGKILL once the rows of round 4 are written, and while its checkpoint is."""
    killed = tiny()
    settings = Path(whole.folder) / "config.toml"
    command = [sys.executable, "-c", KILLED, settings, killed.folder]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert read_run(killed.folder).metrics["round"].to_pylist() == [1, 2, 3, 4]
    # the write may be done before the process is gone
    assert checkpoints.rounds(Path(killed.folder) / "checkpoints") in ([2], [2, 4])
    run(killed, resume=True)
    assert same(final_state(killed), final_state(whole))
    assert numbers(killed.folder) == numbers(whole.folder)


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_costs_rounds_and_not_the_run(tiny, whole):
    broken = tiny()
    with pytest.raises(Stop):
        run(broken, progress=stop_after(5))
    saved = Path(broken.folder) / "checkpoints"
    for path in (saved / "000000004").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    said = []
    run(broken, resume=True, progress=lambda now: said.append(now.warning))
    assert [text for text in said if text] == [
        f"in {saved} the newest state is damaged, and is called 000000004.unreadable now; "
        "this goes on from round 2."
    ]
    assert (saved / "000000004.unreadable").is_dir()
    assert checkpoints.rounds(saved) == [6, 7]
    assert numbers(broken.folder) == numbers(whole.folder)


@pytest.mark.slow
def test_how_often_a_run_is_saved_or_evaluated_changes_no_result(tiny, whole):
    seldom = tiny("seldom", checkpoint_every=None)
    run(seldom)
    assert same(final_state(seldom), final_state(whole))
    rare = tiny("rare", evaluate_every=2)
    run(rare)
    assert read_run(rare.folder).metrics["round"].to_pylist() == [2, 4, 6, 7]
    leaves = jax.tree.leaves(final_state(rare)), jax.tree.leaves(final_state(whole))
    for ours, theirs in zip(*leaves, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_traces_its_round_and_its_evaluation_once(tiny, monkeypatch):
    MADE.clear()
    traced = []

    def counted(module, name):
        function = getattr(module, name)

        def call(*arguments, **numbers):
            traced.append(name)
            return function(*arguments, **numbers)

        monkeypatch.setattr(module, name, call)

    counted(round_module, "_round")
    counted(program, "measure")
    run(tiny(rounds=6, evaluate_every=2))
    assert sorted(traced) == ["_round", "measure"]
    traced.clear()
    run(tiny("left over", rounds=7, evaluate_every=2))  # a last round by itself
    assert sorted(traced) == ["_round"] * 2 + ["measure"] * 2


@pytest.mark.slow
def test_another_learning_rate_and_seed_are_no_other_program(tiny, monkeypatch):
    compiled, compile_ = [], jax.stages.Lowered.compile

    def noted(self, *options):
        compiled.append(self.as_text())
        return compile_(self, *options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    begun, jit = [], jax.jit

    def jitted(function, **options):  # what makes the first state
        if getattr(function, "func", None) is not init_state:
            return jit(function, **options)
        begin = jit(function, **options)
        return lambda key: begun.append(begin.lower(key).as_text()) or begin(key)

    monkeypatch.setattr(jax, "jit", jitted)
    told = {"rounds": 2, "partition_seed": 0, "momentum": 0.9, "lr_decay": 1.0}
    one = run(tiny("one", **told, lr=0.1, seed=0, weight_decay=1e-3))
    told |= {"momentum": 0.5, "lr_decay": 0.9}
    other = run(tiny("other", **told, lr=0.05, seed=1, weight_decay=1e-4))
    assert len(compiled) == 2 and compiled[0] == compiled[1]
    assert len(begun) == 2 and begun[0] == begun[1]
    assert one.loss != other.loss


@pytest.mark.slow
def test_fewer_rounds_than_an_evaluation_takes_are_evaluated_once(tiny):
    config = tiny(rounds=1, evaluate_every=5)
    assert run(config).rounds == 1
    assert read_run(config.folder).metrics["round"].to_pylist() == [1]


@pytest.mark.slow
def test_progress_counts_up_to_the_last_round(tiny):
    seen = []
    run(tiny(seed=361), progress=seen.append)  # which shares no other test's program
    assert seen.pop(0).doing == "tracing"
    assert re.fullmatch(r"compiling, about \d+ s", seen.pop(0).doing)
    rounds = [now.round for now in seen]
    assert rounds[0] == 0 and rounds[-1] == 7 and rounds == sorted(set(rounds))
    assert seen[0].accuracy is None and all(
        now.accuracy is not None for now in seen[1:]
    )


def test_how_long_it_takes_to_compile_is_told_by_the_size_of_the_program(monkeypatch):
    """Of a loop its body counts, once."""

    def added(number):
        def body(x, _):
            for _ in range(number):
                x = x + 1
            return x, None

        return lambda x: jax.lax.scan(body, x, length=100)[0]

    traced = [jax.jit(added(n)).trace(1.0) for n in (10, 4990)]
    assert compiling(traced[:1]) == "compiling, about 1 s"
    assert compiling(traced) == "compiling, about 9 s"  # 5,002 equations, 1.6 ms each
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiling(traced) == "compiling"


@pytest.mark.slow
def test_a_run_that_diverges_names_the_round_and_stays_readable(tiny):
    config = tiny(lr=1e30, clip_norm=None, checkpoint_every=1)
    with pytest.raises(Diverged, match=r"diverged in round \d: .*lower lr") as error:
        run(config)
    round = int(str(error.value).split("round ")[1][0])
    record = read_run(config.folder)
    assert record.summary is None
    assert len(record.metrics) == round - 1


@pytest.mark.slow
def test_a_run_whose_server_refuses_what_is_not_finite_goes_on(tiny):
    """FedVeca at a learning rate at which its clients end at NaN."""
    changes = {"epochs": Config.epochs, "clip_norm": None, "rounds": 2}
    config = tiny(algorithm="fedveca", lr=1e38, **changes)
    said = []
    result = run(config, progress=lambda now: said.append(now.warning))
    assert [text for text in said if text] == [
        "a client's loss was not finite in the rounds up to 1, and the server refused "
        "what came of it; lower lr if that is not what you wanted."
    ]
    metrics = read_run(config.folder).metrics.to_pydict()
    assert np.isnan(metrics["train_loss"]).all()
    assert metrics["accepted_rounds"] == [0, 0] and result.rounds == 2
    f = build(config)
    key = run_keys(config.seed)[0]
    begin = init_state(f.algorithm, f.task, f.data, f.plan, key)
    assert same(final_state(config)[0].params, begin.params)


@pytest.mark.slow
def test_a_budget_that_is_spent_is_said_once(tiny):
    options = {"budget": 1.0, "step_seconds": 0.1, "aggregation_seconds": 0.1}
    config = tiny(algorithm="afl", epochs=Config.epochs, algorithm_options=options)
    said = []
    run(
        dataclasses.replace(config, rounds=8, clip_norm=None),
        progress=lambda now: said.append(now.warning),
    )
    steps = read_run(config.folder).metrics["local_steps"].to_pylist()
    last = steps.index(steps[-1]) + 1  # the first round after which nothing is added
    assert 1 < last < 8
    assert [text for text in said if text] == [
        f"nobody trained in round {last + 1}: afl gave every client 0 local steps, and "
        "the model stayed as it was; give more budget if it has one."
    ]


@pytest.mark.slow
def test_the_model_that_afl_ends_with_is_measured_beside_the_last(tiny):
    options = {"budget": 1.0, "trial_steps": 3}
    config = tiny(
        algorithm="afl", epochs=Config.epochs, lr=20, algorithm_options=options
    )
    config = dataclasses.replace(config, rounds=3, evaluate_also=("sel",))
    result = run(config)
    f, (state, _) = build(config), final_state(config)
    assert not same(afl_best(state), state.params)
    accuracy, loss = evaluate(f.task, afl_best(state), f.data.test)
    assert list(result.models) == ["sel", "result"]
    assert result.models["result"]["accuracy"] == pytest.approx(
        float(accuracy), abs=1e-6
    )
    assert result.models["result"]["loss"] == pytest.approx(float(loss), rel=1e-5)
    metrics = read_run(config.folder).metrics
    assert metrics["loss_result"].to_pylist()[-1] == result.models["result"]["loss"]


@pytest.mark.slow
def test_a_run_shows_what_it_is_asked_for_and_is_the_same(tiny):
    steps = dict(algorithm="fedavg", epochs=5.0, num_steps=3, later_steps=(2, 1))
    steps |= {"rounds": 4, "evaluate_every": 1}
    plain = run(tiny("plain", **steps))
    asked = tiny("asked", **steps, ideal_steps=2, watch=2, evaluate_also=("sel",))
    assert run(asked).accuracy == plain.accuracy
    record = read_run(asked.folder)
    shown = ["ideal_distance", "parameter_0", "parameter_1"]
    for name in shown:
        assert len(set(record.metrics[name].to_pylist())) == 4  # of each round its own
    taken = {(row["round"], row["num_steps"]) for row in record.clients.to_pylist()}
    assert taken == {(1, 3), (2, 3), (3, 1), (4, 1)}
    assert np.abs(record.clients["gradient_1"].to_numpy()).max() > 0
    other = read_run(plain.folder)
    names = {*record.metrics.column_names} - {*other.metrics.column_names}
    assert names == {*shown, "accuracy_sel", "loss_sel"}


def test_a_finished_run_is_never_overwritten(whole):
    before = files(whole.folder)
    with pytest.raises(ValueError, match="finished; a finished run is never over"):
        run(whole)
    assert files(whole.folder) == before


def test_a_finished_run_that_is_resumed_has_its_summary(whole):
    before = {path: path.stat().st_mtime_ns for path in Path(whole.folder).rglob("*")}
    summary = run(whole, resume=True)
    assert summary.to_dict() == read_run(whole.folder).summary
    with pytest.raises(ValueError, match="holds a run with lr=0.1, not lr=0.2"):
        run(dataclasses.replace(whole, lr=0.2), resume=True)
    assert {p: p.stat().st_mtime_ns for p in Path(whole.folder).rglob("*")} == before


@pytest.mark.parametrize("name", [TEST, "validation accuracy"])
def test_a_summary_comes_back_from_what_is_written(whole, name):
    written = read_run(whole.folder).summary
    given = dataclasses.replace(from_dict(written), accuracy_name=name)
    assert from_dict(given.to_dict()) == given
    del written["memory"]
    assert from_dict(written) is None  # of an earlier version


@pytest.fixture(scope="module")
def half_folder(tmp_path_factory, whole):
    folder = tmp_path_factory.mktemp("half") / "run"
    with pytest.raises(Stop):
        run(dataclasses.replace(whole, folder=folder), progress=stop_after(3))
    return folder


@pytest.fixture
def half(half_folder, tiny):
    """A run that was stopped after three rounds, of one's own."""
    config = tiny()
    shutil.copytree(half_folder, config.folder)
    return config


@pytest.mark.slow
def test_a_folder_of_flat_settings_is_read_and_resumed(half, tmp_path):
    """As versions before tables wrote it: every setting, some prefixed with its kind."""
    folder = tmp_path / "before"
    shutil.copytree(half.folder, folder)
    tables = tomllib.loads((folder / "config.toml").read_text())
    flat = {n: v for n, v in tables.items() if n not in KINDS}
    for kind in KINDS:
        table = dict(tables[kind])
        flat[kind] = table.pop("name")
        flat |= {flat_name(f"{kind}.{own}"): value for own, value in table.items()}
    (folder / "config.toml").write_text(toml.dumps(flat))
    unlist(folder)
    with pytest.warns(
        UserWarning, match="before has no files.sha256, as earlier versi"
    ):
        assert read_run(folder).config == read_run(half.folder).config
    config = dataclasses.replace(half, folder=str(folder))
    assert first_change(folder, config) is None
    ended = run(config, resume=True)
    assert ended.config_hash == config_hash(half)


@pytest.mark.slow
def test_a_run_of_commit_af9c830_goes_on_as_it_went_on_there(tmp_path):
    """That commit made `run`, stopped after round 4, and tables of one never stopped.

    With jax 0.10.2 on an AMD EPYC, where all columns but train_loss and seconds came
    equal to the bit.
    """
    with zipfile.ZipFile(Path(__file__).with_name("af9c830.zip")) as written:
        written.extractall(tmp_path)
    folder = tmp_path / "run"
    saved = folder / store.CHECKPOINTS
    config = read_config(folder / "config.toml")
    config = dataclasses.replace(config, folder=str(folder))
    assert checkpoints.rounds(saved) == [4]
    ended = run(config, resume=True)
    told = json.loads((tmp_path / "summary.json").read_text())
    assert ended.config_hash == told["config_hash"]
    for name in ("metrics", "clients"):
        now, then = (store.read_table(place, name) for place in (folder, tmp_path))
        assert {*now.column_names} >= {*then.column_names}
        assert sorted({*now["round"].to_pylist()}) == [1, 2, 3, 4, 5, 6]
        for column in {*then.column_names} - {"seconds"}:
            values = now[column].to_pylist(), then[column].to_pylist()
            if pa.types.is_integer(then[column].type):
                assert values[0] == values[1], column
            else:
                np.testing.assert_allclose(*values, rtol=1e-5, err_msg=column)


def test_a_folder_with_a_half_finished_run_asks_for_resume(half):
    with pytest.raises(ValueError, match="half finished; write --resume"):
        run(half)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"lr": 0.2}, r"with lr=0.1, not lr=0.2; resume it with lr=0.1"),
        ({"rounds": 9}, r"with rounds=7, not rounds=9"),
        ({"algorithm": "fedavg"}, r"with algorithm=scaffold, not algorithm=fedavg"),
        ({"algorithm_options": {"option": "I"}}, r"algorithm.option=II, not algo"),
        ({"partition_options": {"concentration": 9.0}}, r"concentration=0.3, not"),
    ],
)
def test_resuming_with_a_changed_setting_says_which(half, changes, says):
    changed = dataclasses.replace(half, **changes)
    before = files(half.folder)
    with pytest.raises(ValueError, match=says):
        run(changed, resume=True)
    go_on = f"write fedjax-adapt run --folder {half.folder} --resume to go on with that"
    with pytest.raises(ValueError, match=f"holds another run .*; {go_on} one, or give"):
        run(changed)
    assert files(half.folder) == before


def test_a_run_may_be_resumed_with_other_targets_and_checkpoints(half):
    other = dataclasses.replace(half, targets=(0.5,), checkpoint_every=5)
    assert list(run(other, resume=True).rounds_to) == ["0.5"]


def test_lanes_that_are_cut_off_are_no_change(half):
    config = Path(half.folder) / "config.toml"
    begun = read_run(half.folder).config["lanes"]
    config.write_text(config.read_text().replace(f"lanes = {begun}", "lanes = 99"))
    relist(half.folder)
    said, other = [], dataclasses.replace(half, lanes=77)
    summary = run(other, resume=True, progress=lambda now: said.append(now.warning))
    assert summary.hardware["lanes"] <= 6 and not list(filter(None, said))


def test_a_run_that_goes_on_with_other_lanes_says_so(half):
    begun = read_run(half.folder).config["lanes"]
    said = []
    other = dataclasses.replace(half, lanes=begun % 3 + 1)
    summary = run(other, resume=True, progress=lambda now: said.append(now.warning))
    (warning,) = filter(None, said)
    assert warning == (
        f"the run was begun with lanes={begun} and goes on with lanes={other.lanes}; its "
        "numbers differ by rounding from those of a run that never stopped."
    )
    assert summary.hardware["lanes"] == other.lanes < 6
    assert read_run(half.folder).config["lanes"] == begun


@pytest.mark.slow
def test_resuming_where_nothing_lies_starts_afresh(tiny):
    assert run(tiny(rounds=1), resume=True).rounds == 1


@pytest.mark.slow
def test_a_folder_in_use_is_refused(half):
    with locked(Path(half.folder)), pytest.raises(ValueError, match="is in use"):
        run(half, resume=True)
    run(half, resume=True)


def test_a_folder_that_is_no_run_is_refused(tiny, tmp_path):
    path = tmp_path / "run"
    path.write_text("")
    with pytest.raises(ValueError, match=r"run is a file; give the path of a folder"):
        run(tiny())
    path.unlink()
    path.mkdir()
    (path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds files that are no run"):
        run(tiny())
    assert files(path) == ["thesis.tex"]


def test_what_a_kill_leaves_of_a_first_file_is_no_run_and_hinders_none(tiny, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", ".config.toml.tmp", ".files.sha256.tmp", ".own.json.tmp"):
        (folder / name).touch()
    assert run(tiny(rounds=1), resume=True).rounds == 1


def test_a_folder_that_cannot_be_made_is_refused(tiny, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file/run lies below .*file, a file"):
        run(tiny("file/run"))


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"num_clients": 5000}, "num_clients=5000 but there are only 1437"),
        ({"partition": "natural"}, "needs data whose rows have owners"),
        ({"dataset": "mnist", "data_dir": "/none"}, "data_dir=/none does not exist"),
        ({"dataset": "none.npz"}, "none.npz not found"),
        ({"lanes": 0}, "lanes=0 must be an integer >= 1"),
    ],
)
def test_a_mistake_leaves_nothing_behind(tiny, tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        run(tiny(**changes))
    assert files(tmp_path) == []


def test_the_default_folder_is_named_after_the_run():
    config = Config(dataset="some/where/my set.npz", algorithm="fedavg")
    assert str(run_folder(config)).startswith("runs/my_set-fedavg-")
    assert run_folder(config) == run_folder(dataclasses.replace(config, data_dir="x"))
    assert run_folder(config) != run_folder(dataclasses.replace(config, seed=1))


@pytest.mark.slow
def test_a_run_leaves_nothing_on_the_device(tiny):
    """Neither programs nor arrays: else a process aborts after some seventy runs."""

    def left(folder):
        MADE.clear()
        also = ("sel", "all")  # needs to know what clients hold
        run(tiny(folder, rounds=2, evaluate_clients=False, evaluate_also=also))
        gc.collect()
        return len(jax.devices()[0].client.live_executables()), len(jax.live_arrays())

    first, second = left("first"), left("second")
    assert second[0] <= first[0] and second[1] <= first[1]


@pytest.mark.slow
def test_a_program_that_is_gone_leaves_no_function_of_its_run(tiny):
    config = tiny(rounds=2, checkpoint_every=None)
    federation = build(config)
    function = weakref.ref(federation.algorithm.local.correct)
    compile_program(config, federation)
    del federation
    for kept in (train_module._chunk, evaluate_module._scores):  # at most 32 programs
        inspect.getclosurevars(kept).nonlocals["program"].cache_clear()
    gc.collect()
    assert function() is None


@pytest.mark.slow
@pytest.mark.campaign
def test_a_run_killed_again_and_again_ends_the_same(tiny):
    """SIGKILL from outside, at whatever it is doing."""
    whole, killed = (tiny(f, rounds=400, checkpoint_every=3) for f in ("a", "b"))
    run(whole)
    settings = Path(whole.folder) / "config.toml"
    command = [sys.executable, "-m", "fedjax_adapt", "run", "--config", settings]
    command += ["--folder", killed.folder, "--checkpoint-every", "3", "--resume"]
    for seconds in 4 * 1.2 ** np.arange(16):  # a busy machine needs long to begin
        try:
            subprocess.run(command, timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
        break
    if read_run(killed.folder).summary is None:
        run(killed, resume=True)
    assert same(final_state(killed), final_state(whole))
    assert numbers(killed.folder) == numbers(whole.folder)
