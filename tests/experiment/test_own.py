"""A user's own algorithm, model, partition and data set, by name."""

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from test_run import Stop, numbers, stop_after
from tiny_runs import TINY

import fedjax_adapt as fa
from fedjax_adapt import cli
from fedjax_adapt.cli.run import parse
from fedjax_adapt.data import Source
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import Config, build, files, load_run, read_run, run, sweep
from fedjax_adapt.experiment.algorithm import build_algorithm
from fedjax_adapt.experiment.config import (
    config_hash,
    from_settings,
    kind_options,
    to_settings,
    to_toml,
)
from fedjax_adapt.experiment.folder import check_origins
from fedjax_adapt.experiment.objects import KINDS, REGISTERED
from fedjax_adapt.experiment.options import catalogue
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.experiment.sweeps.grid import read_sweep
from fedjax_adapt.experiment.sweeps.groups import groups_of
from fedjax_adapt.experiment.user_functions import origins
from fedjax_adapt.report.compare import sheets
from fedjax_adapt.report.tables import comparison_tables


@pytest.fixture(autouse=True)
def forgotten(tmp_path, monkeypatch):
    """What a test registers; it works in an empty folder."""
    for kind in KINDS:
        monkeypatch.setitem(REGISTERED, kind, {})
    monkeypatch.chdir(tmp_path)


def leash(strength: float = 0, grows: bool = False) -> fa.Algorithm:
    """A pull back to the broadcast model.

    Args:
      strength: of the pull.
      grows: whether it does with the drift.
    """

    def correct(grads, view):
        drift = optax.tree.sub(view.params, view.anchor)
        scale = strength * optax.tree.norm(drift) if grows else strength
        return optax.tree.add_scale(grads, scale, drift)

    return fa.Algorithm(local=fa.LocalRule(correct=correct))


def broken(strength: float = 0.1) -> fa.Algorithm:
    """An algorithm with a field that there is not."""
    return fa.Algorithm(local=fa.LocalRule(end=strength))


def test_an_error_in_an_own_algorithm_is_one_sentence_with_its_line():
    fa.register("algorithm")(broken)
    line = broken.__code__.co_firstlineno + 2
    with pytest.raises(
        fa.SettingError, match=rf"raised TypeError at test_own.py:{line}"
    ):
        build_algorithm(Config(algorithm="broken"))


def test_an_error_in_an_own_data_set_partition_or_model_is_one_sentence_with_its_line():
    def ragged(data_dir, *, examples: int = 90) -> Source:
        return Source("ragged", np.zeros(examples))

    def torn(labels, num_clients, *, seed):
        return labels[seed, num_clients]

    def flat(input_shape, num_classes):
        return input_shape.size

    own = {"dataset": ragged, "partition": torn, "model": flat}
    for kind, function in own.items():
        fa.register(kind)(function)
        line = function.__code__.co_firstlineno + 1
        match = rf"{kind}={function.__name__} raised \w+ at test_own.py:{line}: "
        with pytest.raises(fa.SettingError, match=match):
            build(Config(**{kind: function.__name__}))


def measured(strength: float = 0.1, bend: float = 0.1) -> fa.Algorithm:
    """An algorithm that asks Python for one of its numbers."""
    return fa.algorithms.fedprox(mu=strength if float(bend) else 0.0)


@pytest.mark.slow
def test_a_number_that_an_own_algorithm_asks_python_for_is_not_traced():
    fa.register("algorithm")(measured)
    settings = {**TINY, "algorithm": "measured", "checkpoint_every": None}
    grid = {"strength": [0.1, 1], "bend": [0.1, 1]}
    groups = groups_of(read_sweep({"run": settings, "grid": grid}).trials)
    assert [(len(g.trials), g.traced) for g in groups] == [
        (2, ["algorithm.strength"])
    ] * 2


def tiny_net(input_shape, num_classes, breadth: int = 4):
    """One breadth layer."""
    size = int(np.prod(input_shape))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(size, breadth, rngs=rngs)
            self.last = nnx.Linear(breadth, num_classes, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.relu(self.first(x.reshape(len(x), -1))))

    return Net


def stripes(labels, num_clients, *, seed, offset: int = 0):
    """Every so-manieth example."""
    rows = np.random.default_rng(seed).permutation(len(labels))
    return [np.roll(rows, offset)[i::num_clients] for i in range(num_clients)]


def blobs(data_dir, *, examples: int = 90, seed: int = 0) -> Source:
    """Three clouds."""
    rng = np.random.default_rng(seed)
    y = np.arange(examples, dtype=np.int32) % 3
    x = (rng.normal(size=(examples, 4)) + y[:, None]).astype(np.float32)
    return Source("blobs", x[:60], y[:60], x[60:], y[60:], 3, 0.0, 1.0)


OWN = {"algorithm": leash, "model": tiny_net, "partition": stripes, "dataset": blobs}
FEW = {"num_clients": 4, "rounds": 3, "batch_size": 5, "epochs": 1.0}


@pytest.mark.slow
def test_what_is_registered_runs_sweeps_and_is_listed_as_ours_is(tmp_path, capsys):
    for kind, function in OWN.items():
        assert fa.register(kind)(function) is function
    names = {kind: function.__name__ for kind, function in OWN.items()}
    options = {"strength": 0.5, "breadth": 3, "offset": 7, "examples": 75}
    config = from_settings({**names, **options, **FEW})
    assert config.algorithm_options == {"strength": 0.5}
    federation = build(config)
    assert len(federation.source.y_train) == 60 and federation.data.num_clients == 4
    assert federation.source.y_test.shape == (15,)
    rows = [row.tolist() for row in federation.data.rows()]
    labels = federation.source.y_train
    assert rows == [r.tolist() for r in stripes(labels, 4, seed=0, offset=7)]
    summary = run(config)
    assert summary.method == "leash(strength=0.5)" and summary.data["name"] == "blobs"
    assert set(summary.own) == {f"{kind}={name}" for kind, name in names.items()}
    assert "leash" in str(
        comparison_tables(sheets([summary.folder]))[0].columns[1]._cells
    )
    grid = {"strength": [0.0, 0.5], "lr": [0.1, 0.05]}
    settings = {**names, **FEW, "breadth": 3, "offset": 7, "examples": 75}
    found = sweep({"run": settings, "grid": grid}, tmp_path / "sweep")
    rows = found.results.to_pylist()
    assert {row["group"] for row in rows} == {"000-leash"}  # one program
    assert [row["config_hash"] for row in rows].count(summary.config_hash) == 1
    same = next(r for r in rows if r["config_hash"] == summary.config_hash)
    assert same["loss"] == pytest.approx(summary.loss, rel=1e-4)
    assert len({round(row["loss"], 6) for row in rows}) == 4
    own = json.loads((found.folder / "summary.json").read_text())["own"]
    assert own == summary.own
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "  leash              A pull back to the broadcast model." in listed
    assert "  blobs              Three clouds." in listed
    lines = catalogue()
    assert lines["models"]["tiny_net"] == "One breadth layer."


@pytest.mark.slow
def test_numbers_of_an_own_constructor_are_one_program():
    fa.register("algorithm")(leash)
    settings = {**TINY, "algorithm": "leash", "checkpoint_every": None}
    grid = {"strength": [0, 0.1, 1], "grows": [False, True]}
    groups = groups_of(read_sweep({"run": settings, "grid": grid}).trials)
    assert [(len(g.trials), g.traced) for g in groups] == [
        (3, ["algorithm.strength"])
    ] * 2


def test_an_integer_default_of_a_float_is_the_same_run_when_it_is_read_back(tmp_path):
    fa.register("algorithm")(leash)
    config = Config(algorithm="leash")
    (tmp_path / "run.toml").write_text(to_toml(config))
    again = from_settings(read_settings(tmp_path / "run.toml"))
    assert config_hash(again) == config_hash(config)
    assert config_hash(config) == config_hash(Config(algorithm="leash", epochs=5))


def test_flags_of_what_is_registered_come_with_its_help(capsys):
    fa.register("algorithm")(leash)
    line = "--algorithm leash --strength 0.25 --grows --rounds 2"
    settings = parse(line.split()).settings
    assert (settings["algorithm.strength"], settings["algorithm.grows"]) == (0.25, True)
    with pytest.raises(SystemExit):
        parse(["--algorithm", "leash", "--help"])
    assert "of the pull" in capsys.readouterr().out


def same_name(function, name):
    function.__name__ = name
    return function


def variable(**options): ...
def required(strength: float): ...
def bare(strength=0.1): ...
def unlike(strength: float = "much"): ...
def named(base: str = "fedavg"): ...
def on_any(base: fa.Algorithm): ...
def unknown(strength: "Number" = 1): ...  # noqa: F821
def no_shape(width: int = 3): ...
def set_shape(input_shape=(3,), num_classes=2): ...
def seedless(labels, num_clients, *, skew: float = 0.1): ...
def by_place(labels, num_clients, seed=0, skew: float = 0.1): ...
def no_star(data_dir, size: int = 3): ...


@pytest.mark.parametrize(
    "kind, function, says",
    [
        ("algoritm", leash, "kind='algoritm' is unknown; did you mean 'algorithm'?"),
        ("algorithm", leash(), "algorithm got an Algorithm; give a function, def na"),
        ("algorithm", variable, "algorithm variable takes other arguments than a run"),
        ("algorithm", required, "argument strength has no default; write strength: fl"),
        ("algorithm", bare, "argument strength has no annotation; write strength: flo"),
        (
            "algorithm",
            named,
            "a run gives base as an Algorithm; write base: fa.Algorit",
        ),
        ("algorithm", on_any, "a run gives base as an Algorithm; write base: fa.Algor"),
        (
            "algorithm",
            unlike,
            "argument strength: 'much' is not a number, as its annot",
        ),
        (
            "algorithm",
            unknown,
            "an annotation is not a type (name 'Number' is not defined",
        ),
        (
            "model",
            no_shape,
            "model no_shape takes other arguments than a run gives; wr",
        ),
        ("model", set_shape, "model set_shape takes other arguments than a run gives;"),
        (
            "partition",
            seedless,
            "partition seedless takes no seed; write def seedless(",
        ),
        (
            "partition",
            by_place,
            "partition by_place: seed is given by name; write * be",
        ),
        ("dataset", no_star, "size is given by name; write * before it, as in def no_"),
    ],
)
def test_what_cannot_be_registered_is_refused_in_a_sentence(kind, function, says):
    with pytest.raises(ValueError, match=".") as error:
        fa.register(kind)(function)
    assert says in str(error.value) and str(error.value).count(". ") == 0
    assert not any(REGISTERED.values())


def test_a_name_that_is_taken_is_refused_but_for_the_same_function_again():
    def again(mu: float = 0.1): ...

    fa.register("algorithm")(again)
    newer = type(again)(again.__code__, {}, "again", (0.2,))
    newer.__annotations__, newer.__module__ = again.__annotations__, again.__module__
    newer.__qualname__ = again.__qualname__
    fa.register("algorithm")(newer)  # as a cell of a notebook that is run again
    assert REGISTERED["algorithm"]["again"] is newer
    for name in ("again", "fedavg", "object"):
        other = same_name(lambda: fa.Algorithm(), name)
        with pytest.raises(ValueError, match=f"algorithm {name} is there already"):
            fa.register("algorithm")(other)


# of the version before functions of a user's own
HASHES = {
    ("algorithm", "fedssg"): "b473d71a",
    ("algorithm", "fedprox"): "5f083e9d",
    ("algorithm", "fedveca"): "4372b83a",
    ("model", "vgg16"): "ca4d5c34",
    ("partition", "shards"): "915c047c",
    ("dataset", "synthetic"): "39b7932b",
}


@pytest.mark.parametrize("kind, name", HASHES)
def test_configs_of_ours_keep_their_hash(kind, name):
    assert config_hash(from_settings({kind: name})) == HASHES[kind, name]


@pytest.mark.slow
def test_two_options_of_one_name_are_told_apart_by_their_full_names():
    def split_by(labels, num_clients, *, seed, strength: float = 0.1): ...

    fa.register("algorithm")(leash)
    fa.register("partition")(split_by)
    both = ["--algorithm", "leash", "--partition", "split_by"]
    says = (
        "^--strength is an option of algorithm leash and of partition split_by; write "
    )
    says += "--algorithm.strength or --partition.strength.$"
    with pytest.raises(ValueError, match=says):
        parse([*both, "--strength", "1"])
    for first in ("--algorithm.strength", "--algorithm-strength"):
        found = parse([*both, first, "1", "--partition_strength=2"]).settings
        assert found["algorithm.strength"] == 1 and found["partition.strength"] == 2
    for flag in ("--strength", "--algorithm.strength", "--algorithm-strength"):
        found = parse(["--algorithm", "leash", flag, "2"]).settings
        assert found["algorithm.strength"] == 2
    with pytest.raises(
        ValueError, match="^--strength and --algorithm.strength are the"
    ):
        parse(["--algorithm", "leash", "--strength", "1", "--algorithm.strength=1"])
    for wrong, meant in (
        ("--strenth", "--strength"),
        ("--algorithm.strenth", "strength"),
    ):
        with pytest.raises(ValueError, match=f"did you mean .*{meant}.?"):
            parse(["--algorithm", "leash", wrong, "1"])


@pytest.mark.parametrize(
    "kind, made, says",
    [
        (
            "algorithm",
            None,
            "algorithm=wrong returned None; its function must return a",
        ),
        (
            "dataset",
            [1],
            "dataset=wrong returned a list; its function must return a So",
        ),
        ("model", None, "^model=wrong returned None; its function must return a model"),
        (
            "partition",
            [[0]],
            "partition=wrong returned 1 clients; return a list of the",
        ),
        (
            "partition",
            4 * [[0.5]],
            "for client 0 what are no rows; return integers fro",
        ),
        (
            "partition",
            [[], [], [0], [9999]],
            "for client 3 what are no rows; return in",
        ),
    ],
)
def test_what_own_functions_return_is_looked_at(kind, made, says):
    given = {
        "algorithm": lambda: made,
        "dataset": lambda data_dir: made,
        "model": lambda input_shape, num_classes: made,
        "partition": lambda labels, num_clients, *, seed: made,
    }
    fa.register(kind)(same_name(given[kind], "wrong"))
    with pytest.raises(ValueError, match=says):
        build(Config(**{kind: "wrong"}, num_clients=4))


def names_it_loss() -> fa.Algorithm:
    """FedAvg, whose server shows a figure by a name that every run has."""
    plain = fa.algorithms.fedavg()
    report = lambda extra, upload, cohort: {"loss": cohort.num_active}
    server = plain.server._replace(report=report)
    return plain._replace(server=server)


@pytest.mark.slow
def test_a_figure_with_the_name_of_a_column_is_refused_before_anything_is_written():
    fa.register("algorithm")(names_it_loss)
    settings = {**TINY, "algorithm": "names_it_loss"}
    with pytest.raises(
        ValueError, match="ServerRule.report shows 'loss' of each round"
    ):
        run(Config(folder="clash", **settings))
    with pytest.raises(
        ValueError, match="ServerRule.report shows 'loss' of each round"
    ):
        sweep({"run": settings, "grid": {"lr": [0.1, 0.2]}}, "clashes")
    assert not os.path.exists("clash") and not os.path.exists("clashes")


# --- files ---------------------------------------------------------------------------

MINE = """
import optax

import fedjax_adapt as fa


def fedexp(strength: float = 0.1, label: str = "plain") -> fa.Algorithm:
    '''A leash of a file.

    Args:
      strength: of the pull of a file.
      label: says nothing.
    '''

    def correct(grads, view):
        drift = optax.tree.sub(view.params, view.anchor)
        return optax.tree.add_scale(grads, strength, drift)

    return fa.Algorithm(local=fa.LocalRule(correct=correct))
"""
QUICK = {**TINY, "algorithm": "mine.py:fedexp", "strength": 0.5}
PICKY = """
import jax
import optax

import fedjax_adapt as fa


def fedexp(strength: float = 0.1, length: float = 0.1) -> fa.Algorithm:
    known = [not isinstance(x, jax.core.Tracer) for x in (strength, length)]
    CONSTRUCTOR

    def correct(grads, view):
        HOOK
        return optax.tree.scale(1 - strength * length, grads)

    return fa.Algorithm(local=fa.LocalRule(correct=correct))
"""


def groups_of_picky(constructor="", hook=""):
    """The numbers of each group of four trials of an algorithm that looks at its own."""
    text = PICKY.replace("CONSTRUCTOR", constructor).replace("HOOK", hook)
    Path("mine.py").write_text(text)
    grid = {"strength": [0.1, 0.5], "length": [0.2, 0.4]}
    asked = read_sweep({"run": {**TINY, "algorithm": "mine.py:fedexp"}, "grid": grid})
    return [
        (len(group.trials), [name.partition(".")[2] for name in group.traced])
        for group in groups_of(asked.trials)
    ]


@pytest.mark.slow
def test_numbers_that_an_own_algorithm_needs_in_python_are_not_traced():
    assert groups_of_picky() == [(4, ["strength", "length"])]
    # where it is built, or in a hook, whose errors the engine makes its own
    for place in ("constructor", "hook"):
        found = groups_of_picky(**{place: "assert strength > 0"})
        assert found == [(2, ["length"])] * 2
    both = "if not any(known): assert strength > 0"
    assert groups_of_picky(both) == [(1, [])] * 4


@pytest.mark.parametrize(
    "place, line, says",
    [
        ("hook", "if strength > 0.3: raise ValueError('too strong')", "2 .*too strong"),
        (
            "constructor",
            "if not any(known): assert strength > 0\n"
            "    if not all(known): raise ValueError('both must be known')",
            "0 .*both must be known",
        ),
    ],
    ids=["a value", "the second look"],
)
def test_what_an_own_algorithm_refuses_names_the_trial(place, line, says):
    with pytest.raises(ValueError, match=f"^trial {says}"):
        groups_of_picky(**{place: line})


@pytest.mark.slow
def test_a_function_of_a_file_runs_from_the_command_line_and_is_resumed(capsys):
    Path("mine.py").write_text(MINE)
    line = (
        "run --algorithm mine.py:fedexp --strength 0.5 --model linear --num-clients 6 "
        "--participation 0.5 --rounds 7 --epochs 1 --batch-size 100 "
        "--checkpoint-every 2"
    )
    assert cli.main(["run", "--algorithm", "mine.py:fedexp", "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "--strength FLOAT" in help_text and "of the pull of a file" in help_text
    assert cli.main([*line.split(), "--folder", "runs/mine"]) == 0
    assert "mine.py:fedexp" in capsys.readouterr().out
    written = read_settings(Path("runs/mine/config.toml"))
    assert (written["algorithm"], written["algorithm.strength"]) == (
        "mine.py:fedexp",
        0.5,
    )
    sha = hashlib.sha256(MINE.encode()).hexdigest()
    summary = read_run("runs/mine").summary
    assert summary["own"] == {"algorithm=mine.py:fedexp": f"SHA-256 {sha}"}
    config = from_settings(QUICK | {"folder": "runs/other"})
    assert summary["config_hash"] == config_hash(config)
    devices = read_settings(Path("runs/mine/config.toml"))["devices"]
    config = dataclasses.replace(config, devices=devices)
    with pytest.raises(Stop):
        run(config, progress=stop_after(3))
    assert cli.main("run --folder runs/other --resume".split()) == 0
    assert numbers("runs/other")[1:] == numbers("runs/mine")[1:]
    assert cli.main("compare runs/mine runs/other".split()) == 0


@pytest.mark.slow
def test_a_file_that_is_gone_or_has_changed_is_no_longer_that_of_the_run(capsys):
    Path("mine.py").write_text(MINE)
    config = from_settings(QUICK | {"folder": "runs/mine"})
    with pytest.raises(Stop):
        run(config, progress=stop_after(3))
    Path("mine.py").rename("there.py")
    assert cli.main("run --folder runs/mine --resume".split()) == 2
    said = capsys.readouterr().err
    assert ": algorithm=mine.py:fedexp: the file " in said
    assert "mine.py cannot be read (No such file or directory); write its path" in said
    Path("mine.py").write_text(MINE.replace("strength, drift", "2 * strength, drift"))
    with pytest.raises(ValueError, match=r"begun with another algorithm=mine.py:fede"):
        run(config, resume=True)
    with pytest.raises(ValueError, match=r"it was SHA-256 \w+, and is SHA-256 \w+ now"):
        load_run("runs/mine")
    Path("there.py").rename("mine.py")
    assert run(config, resume=True).rounds == 7
    assert cli.main("run --folder runs/mine --resume".split()) == 0
    Path("mine.py").write_text(f"{MINE}\n# otherwise\n")
    assert cli.main("run --folder runs/mine --resume".split()) == 2
    assert "begun with another algorithm=mine.py:fede" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_is_resumed_with_the_file_it_was_begun_with(capsys):
    Path("mine.py").write_text(MINE)
    asked = {
        "run": {**QUICK, "devices": 1, "rounds": 4},
        "grid": {"strength": [0, 1], "partition_seed": [0]},
    }
    del asked["run"]["strength"]
    with pytest.raises(Stop):
        sweep(asked, "runs/sweep", progress=stop_after(4))
    Path("mine.py").write_text(MINE + "\n# otherwise\n")
    with pytest.raises(ValueError, match="begun with another algorithm=mine.py:fedexp"):
        sweep(asked, "runs/sweep", resume=True)
    Path("mine.py").write_text(MINE)
    found = sweep(asked, "runs/sweep", resume=True)
    assert len(found.results) == 2
    assert (found.folder / "groups" / "000-fedexp").is_dir()
    assert cli.main("sweep --folder runs/sweep --resume".split()) == 0
    Path("mine.py").write_text(MINE + "\n# otherwise\n")
    assert cli.main("sweep --folder runs/sweep --resume".split()) == 2
    assert "begun with another algorithm=mine.py:fede" in capsys.readouterr().err


REVISED = {
    "model=svm": {"model": "svm", "labels": "parity"},
    "model=fedveca_cnn": {"model": "fedveca_cnn"},
    "partition=fedveca_case": {"partition": "fedveca_case"},
}


def test_what_was_another_thing_in_an_earlier_version_is_recorded():
    assert origins([from_settings(TINY)]) == {}
    for choice, changes in REVISED.items():
        (found,) = origins([from_settings({**TINY, **changes})]).items()
        assert found[0] == choice and found[1].startswith("AFL's ")


def test_a_list_of_ones_own_that_is_gone_is_said_to_be(tmp_path):
    files.write_listed(tmp_path / "own.json", "{}")
    (tmp_path / "own.json").unlink()
    changes = REVISED["partition=fedveca_case"]
    with pytest.raises(
        SettingError, match=r"own\.json is missing \(.*; put it back as"
    ):
        check_origins(tmp_path, [from_settings({**TINY, **changes})])


@pytest.mark.filterwarnings("ignore:runs/mine has no files.sha256")
@pytest.mark.slow
def test_what_was_another_thing_in_an_earlier_version_is_not_gone_on_with():
    brief = {"rounds": 3, "checkpoint_every": 1, "evaluate_clients": False}
    choice = "partition=fedveca_case"
    config = from_settings({**TINY, **brief, **REVISED[choice], "folder": "runs/mine"})
    with pytest.raises(Stop):
        run(config, progress=stop_after(2))
    own, sums = Path("runs/mine/own.json"), Path("runs/mine/files.sha256")
    written, listed = own.read_text(), sums.read_text()
    own.unlink()  # an earlier version wrote neither
    sums.unlink()
    says = (
        f"begun with another {choice}: it was not recorded, and is AFL's .* now; go on"
    )
    with pytest.raises(ValueError, match=says):
        run(config, resume=True)
    with pytest.raises(ValueError, match=says):
        load_run("runs/mine")
    own.write_text(written)
    sums.write_text(listed)
    assert run(config, resume=True).own[choice].startswith("AFL's ")


@pytest.mark.slow
@pytest.mark.parametrize("at_first", [True, False])
def test_a_run_of_another_random_generator_is_not_gone_on_with(at_first):
    brief = {"rounds": 3, "checkpoint_every": 1, "evaluate_clients": False}
    config = from_settings({**TINY, **brief, "folder": "runs/mine"})
    with jax.threefry_partitionable(at_first), pytest.raises(Stop):
        run(config, progress=stop_after(2))
    says = f"it was {at_first}, and is {not at_first} now; put it back as it was"
    with jax.threefry_partitionable(not at_first):
        with pytest.raises(ValueError, match=f"JAX_THREEFRY_PARTITIONABLE: {says}"):
            run(config, resume=True)
        with pytest.raises(ValueError, match=says):
            load_run("runs/mine")
    with jax.threefry_partitionable(at_first), jax.enable_x64(True):
        with pytest.raises(ValueError, match="X64: it was False, and is True now"):
            run(config, resume=True)
    with jax.threefry_partitionable(at_first):
        own = run(config, resume=True).own
        assert own == ({} if at_first else {"JAX_THREEFRY_PARTITIONABLE": "False"})
    with jax.default_prng_impl("rbg"):
        assert origins([config]) == {"JAX_DEFAULT_PRNG_IMPL": "rbg"}


def test_what_was_another_thing_in_an_earlier_version_has_another_hash():
    of_the_version_before = ["6d90be93", "855a2c7a", "ad0c8573"]
    for before, changes in zip(of_the_version_before, REVISED.values(), strict=True):
        assert config_hash(from_settings(changes)) != before


@pytest.mark.slow
def test_a_file_that_is_edited_is_loaded_anew_but_not_during_a_run():
    Path("mine.py").write_text(MINE)
    assert "strength" in kind_options("algorithm", "mine.py:fedexp")
    config = from_settings(QUICK | {"folder": "runs/mine", "rounds": 3})
    edited = MINE.replace("strength", "tightness")

    def edit(progress):
        Path("mine.py").write_text(edited)

    summary = run(config, progress=edit)
    assert summary.method == "mine.py:fedexp(strength=0.5)"
    sha = hashlib.sha256(MINE.encode()).hexdigest()
    assert summary.own == {"algorithm=mine.py:fedexp": f"SHA-256 {sha}"}
    assert "tightness" in kind_options("algorithm", "mine.py:fedexp")
    with pytest.raises(ValueError, match="has no option strength; write one of tight"):
        run(config)


@pytest.mark.parametrize(
    "text, content, says",
    [
        ("mine.py:fedexpp", MINE, "algorithm=mine.py:fedexpp is unknown; did you mean"),
        ("mine.py:fa", MINE, "algorithm got a module; give a function, def name"),
        (
            "mine.py:fedexp",
            "import nowhere",
            "ModuleNotFoundError: No module named 'no",
        ),
        ("mine.py:fedexp", "def (", "cannot be loaded (SyntaxError: invalid syntax"),
        ("mine.py:fedexp", "raise SystemExit(3)", "cannot be loaded (SystemExit: 3)."),
        (
            "other.py:fedexp",
            MINE,
            "other.py cannot be read (No such file or directory)",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_a_sentence(text, content, says, capsys):
    Path("mine.py").write_text(content)
    assert cli.main(["run", "--algorithm", text]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert not os.path.exists("runs")


def test_a_partition_of_a_file_is_shown_without_training(capsys):
    Path("cut.py").write_text(
        "import numpy as np\n"
        "def halves(labels, num_clients, *, seed, step: int = 1):\n"
        "    return np.array_split(np.arange(0, len(labels), step), num_clients)\n"
    )
    line = "partition --partition cut.py:halves --num-clients 3 --step 2"
    assert cli.main(line.split()) == 0
    assert "3 clients with 239 to 240 examples" in capsys.readouterr().out
    assert Path("partition-digits-halves-3.png").exists()
    shutil.rmtree("runs", ignore_errors=True)


def test_settings_of_own_choices_come_back_from_a_file(tmp_path):
    Path("mine.py").write_text(MINE)
    config = from_settings(QUICK)
    (tmp_path / "run.toml").write_text(to_toml(config))
    again = from_settings(read_settings(tmp_path / "run.toml"))
    assert to_settings(again) == to_settings(config)
    assert again.algorithm_options["strength"] == 0.5


def test_a_default_of_ones_own_is_not_the_runs(tmp_path):
    """Of an own function only what is None by default follows from the run."""
    got = []

    @fa.register("algorithm")
    def own_rate(lr: float = 1.0, total_rounds: int | None = None) -> fa.Algorithm:
        got.append((lr, total_rounds))
        return fa.algorithms.fedavg()

    build_algorithm(Config(algorithm="own_rate", lr=0.5, rounds=7))
    assert got[-1] == (1.0, 7)
