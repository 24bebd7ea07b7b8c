import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_adapt.cli import main
from fedjax_adapt.cli import sweep as cli_sweep
from fedjax_adapt.experiment import Config
from fedjax_adapt.experiment.config import all_options, identity
from fedjax_adapt.experiment.objects import KINDS, registry
from fedjax_adapt.experiment.summary import FIGURES, Summary
from fedjax_adapt.experiment.sweeps.grid import read_sweep, seed_hint
from fedjax_adapt.experiment.sweeps.results import (
    first_change,
    setting_columns,
    sweep_folder,
    to_toml,
)

GRID = {"algorithm": ["fedavg", "scaffold"], "lr": [0.1, 1]}


def written(tmp_path, text):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_every_combination_is_a_trial_and_grids_follow_one_another(tmp_path):
    text = """
folder = "here"
[run]
rounds = 3
lr = 0.7
[[grid]]
algorithm = ["fedavg", "scaffold"]
seed = [0, 1]
[[grid]]  # of the baseline
algorithm = ["fedprox"]
mu = [0.5]
"""
    found = read_sweep(written(tmp_path, text))
    points = [tuple(trial.point.values()) for trial in found.trials]
    assert points == [
        *(("fedavg", 0), ("fedavg", 1), ("scaffold", 0), ("scaffold", 1)),
        ("fedprox", 0.5),
    ]
    assert found.trials[3].config == Config(
        algorithm="scaffold", rounds=3, lr=0.7, seed=1
    )
    assert found.trials[4].config.algorithm_options == {"mu": 0.5}
    assert [trial.number for trial in found.trials] == list(range(5))
    assert (found.folder, found.names) == (
        "here",
        ["algorithm", "seed", "algorithm.mu"],
    )


def test_a_dict_says_what_a_file_does(tmp_path):
    text = "[run]\nrounds = 3\n[grid]\nclip_norm = ['none', 1.0]\n"
    ours = read_sweep({"run": {"rounds": 3}, "grid": {"clip_norm": [None, 1]}})
    theirs = read_sweep(written(tmp_path, text))
    assert first_change(ours, theirs) is None
    assert [t.config.clip_norm for t in ours.trials] == [None, 1.0]
    assert sweep_folder(ours) == sweep_folder(theirs) != sweep_folder(ours, "x")


@pytest.mark.parametrize(
    "sweep",
    [
        {"grid": GRID},
        {"run": {"algorithm": "fedprox", "mu": 0.3}, "grid": {"seed": [0, 1]}},
        {"run": {"partition_seed": 7, "clip_norm": "none"}, "grid": {"seed": [0, 1]}},
        {"run": {"lr": 0.7}, "grid": [{"lr": [0.2]}, {"seed": [5]}]},
        {"grid": {"clip_norm": [None, 3], "widths": [[4], [5, 6]]}},
        {"run": {"seed": 3}, "grid": {"partition": ["iid", "dirichlet"]}},
        {"run": {"data_dir": "/x"}, "grid": {"algorithm": ["fedprox"], "mu": [1, 2]}},
    ],
)
def test_the_resolved_sweep_is_the_sweep(tmp_path, sweep):
    sweep = read_sweep(sweep)
    text = to_toml(sweep)
    again = read_sweep(written(tmp_path, text))
    assert [identity(t.config) for t in again.trials] == [
        identity(t.config) for t in sweep.trials
    ]
    assert "data_dir" not in text and "batch_size = 20" in text


@pytest.mark.parametrize(
    "text, says",
    [
        (
            "x = 1",
            "line 1: x is not a part of a sweep; write one of folder, run, grid.",
        ),
        ("rounds = 1", "line 1: rounds is a setting of runs; write it below [run], or"),
        ("folder = 3", "line 1: folder=3; write a text."),
        (
            "first_trial = -1\n[grid]\nlr = [0.1]",
            "line 1: first_trial=-1; write a number",
        ),
        (
            "first_trial = true\n[grid]\nlr = [0.1]",
            "line 1: first_trial=True; write a nu",
        ),
        ("run = 3", "line 1: run=3; write [run] above settings."),
        ("[run]\nrounds = 3", " has no grid; write [grid] and below it what varies"),
        ("[grid]", " has no grid; write [grid] and below it what varies"),
        ("grid = 3", " has no grid; write [grid] and below it what varies"),
        ("[run]\nfolder = 'x'\n[grid]\nlr = [1]", "line 2: folder is that of the swee"),
        ("[grid]\nlr = []", "line 2: lr=[] is empty; write the values to try, as in"),
        (
            "[grid]\nlr = 0.3",
            "line 2: lr=0.3 is not a list; write the values to try, as ",
        ),
        ("[grid]\nlrr = [1]", "line 2: lrr is unknown; did you mean lr?"),
        ("[run]\nseed = 1\n[grid]\nlr = ['x']", "line 4: lr='x'; write a number."),
        (
            "[run]\nseed = 1\nlr = 1\n[grid]\nlr = [1, 2]",
            "line 3: lr stands below [run] and below [grid]; leave it out of one of them.",
        ),
        (
            "[run]\nlr = 1\n[[grid]]\nlr = [1, 2]\n[[grid]]\nseed = [3]\nlr = [1]",
            "line 2: lr stands below [run] and below [grid]; leave it out of one of them.",
        ),
        ("[run]\nlr = 'x'\n[grid]\nseed = [1]", "line 2: lr='x'; write a number."),
        (
            "[[grid]]\nlr = [1]\n[[grid]]\nlr = [2, 0]",
            "line 4: lr=0.0 must be a finite",
        ),
        ("[grid]\nalgorithm = ['fedprox']\nmu = [-1]", "line 3: mu=-1.0 must be a fin"),
        ("[grid]\nalgorithm = ['fedavgg']", "line 2: algorithm='fedavgg' is unknown; "),
        (
            "[run]\nmu = 1\n[grid]\nalgorithm = ['fedprox', 'fedavg']",
            "line 2: mu is unknown; it is an option of algorithm ditto, fednova, fedprox,",
        ),
        (
            "[grid]\nfolder = ['a']",
            "line 2: folder changes no number of a run, so noth",
        ),
        (
            "[grid]\ndata_dir = ['a']",
            "line 2: data_dir changes no number of a run, so ",
        ),
        (
            "[grid]\nresume = [true]",
            "line 2: resume changes no number of a run, so not",
        ),
        ("[grid]\nmatch = ['a']", "line 2: match names one finished run, whose steps"),
        (
            "[grid]\nseed = [0, 1]\nlr = [1, 1.0]",
            ": two trials are the same run (seed=0, lr=1.0); leave one of them out.",
        ),
        (
            "[grid]\nseed = [" + "1," * 10_001 + "]",
            " has 10001 trials, more than 10000",
        ),
        (
            "[run]\nnum_steps = 1\n[grid]\nepochs = [2]",
            "line 4: epochs=2 and num_steps=",
        ),
        ("lr = [", " is not valid TOML: "),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as error:
        read_sweep(path)
    said = str(error.value)
    assert said.startswith(f"{path}{'' if says[0] in ' :' else ', '}{says}")
    assert "\n" not in said and said.endswith((".", "?"))


def test_arrays_and_ranges_are_lists():
    arrays = {"lr": np.array([0.5, 0.25]), "seed": range(2), "mu": [np.float64(0.5)]}
    run = {"algorithm": "fedprox", "rounds": np.int64(3), "momentum": jnp.zeros(())}
    found = read_sweep({"run": run, "grid": arrays})
    lists = {"lr": [0.5, 0.25], "seed": [0, 1], "algorithm.mu": [0.5]}
    assert found.grids == [lists]
    same = {"algorithm": "fedprox", "rounds": 3, "momentum": 0.0}
    assert found.trials == read_sweep({"run": same, "grid": lists}).trials
    assert "seed = [0, 1]" in to_toml(found)


@pytest.mark.parametrize(
    "source, says",
    [
        (
            [1],
            r"sweep=\[1\] is not a sweep; write the path of a TOML file, or a dict as",
        ),
        (
            None,
            "sweep=None is not a sweep; write the path of a TOML file, or a dict as in",
        ),
        (
            {"grid": {"lr": np.array(0.1)}},
            r"sweep: lr=0.1 is not a list; .* lr = \[0.1\]",
        ),
        ({"grid": {"lr": np.array([])}}, r"sweep: lr=\[\] is empty; write the values"),
        (
            {"grid": {"lr": None}},
            r"sweep: lr=None is not a list; write .* lr = \[1, 2\]",
        ),
        (
            {"grid": {"lr": {0.1}}},
            r"sweep: lr=\{0.1\} is not a list; write the values to",
        ),
        ({"grid": {"lr": np.ones((2, 2))}}, r"sweep: lr=\[1.0, 1.0\]; write a number"),
    ],
)
def test_a_sweep_in_python_that_is_none_is_one_sentence(source, says):
    with pytest.raises(ValueError, match=says):
        read_sweep(source)


def test_a_file_that_is_not_there_is_a_sentence():
    with pytest.raises(ValueError, match="sweep=none.toml cannot be read"):
        read_sweep("none.toml")


def test_another_sweep_is_told_apart_by_its_first_change():
    ours = read_sweep({"grid": {"lr": [0.1, 0.2]}})
    assert first_change(ours, ours) is None
    other = read_sweep({"grid": {"lr": [0.1, 0.3]}})
    assert first_change(ours, other) == "its trial 1 has lr=0.2, here lr=0.3"
    more = read_sweep({"grid": {"lr": [0.1, 0.2, 0.3]}})
    assert first_change(ours, more) == "it has 2 trials, here 3"
    aside = read_sweep({"run": {"data_dir": "/x"}, "grid": {"lr": [0.1, 0.2]}})
    assert first_change(ours, aside) is None


@pytest.mark.parametrize(
    "run, says",
    [
        ({"algorithm": "fnr"}, "sets other public examples apart"),
        ({"public": "holdout"}, "sets other public examples apart"),
        ({"corrupt": "random_labels"}, "corrupts other examples"),
        ({"dataset": "synthetic"}, "generates the data of dataset=synthetic anew"),
    ],
)
def test_seeds_that_change_examples_are_told(run, says):
    seeds = {"seed": [0, 1]}
    told = seed_hint(read_sweep({"run": run, "grid": seeds}))
    assert told is not None and told.startswith(f"every seed {says}, so that trials of")
    fixed = {"run": {"partition_seed": 0, **run}, "grid": seeds}
    assert seed_hint(read_sweep(fixed)) is None
    assert seed_hint(read_sweep({"run": run, "grid": {"lr": [1, 2]}})) is None


def test_seeds_that_deal_out_the_same_examples_are_not_worth_a_word():
    assert seed_hint(read_sweep({"grid": {"seed": [0, 1]}})) is None


def test_settings_and_figures_have_columns_of_their_own():
    """But for `rounds`, which is both, and the same."""
    names = set()
    for kind in KINDS:
        for choice in registry(kind):
            default = dict(zip(KINDS, ("fedavg", "mlp", "iid", "digits"), strict=True))
            names |= set(all_options(default | {kind: choice}))
    figures = {*FIGURES, *Summary.__dataclass_fields__} - {"folder", "public", "data"}
    found = setting_columns(names)
    assert set(found.values()) & figures - {"public"} == {"rounds"}
    assert found["algorithm.rho"] == "algorithm_rho"
    assert (found["algorithm.mu"], found["dataset.alpha"]) == ("mu", "dataset_alpha")
    assert len(setting_columns(["algorithm.x", "model.x", "lr"])) == 3
    assert setting_columns(["algorithm.x", "model.x"]) == {
        n: n for n in ("algorithm.x", "model.x")
    }


@pytest.mark.parametrize(
    "text",
    [
        "[run]\ndataset='synthetic'\n[grid]\nalgorithm=['fedprox']\nmu=[1, 2]\n"
        "dataset_alpha = [1, 2]",
        "[run.dataset]\nname = 'synthetic'\n[grid]\nalgorithm.name = ['fedprox']\n"
        "algorithm.mu = [1, 2]\ndataset.alpha = [1, 2]",
    ],
)
def test_a_sweep_of_tables_is_that_of_flat_names(tmp_path, text):
    found = read_sweep(written(tmp_path, text))
    assert found.names == ["algorithm", "algorithm.mu", "dataset.alpha"]
    assert [t.config.algorithm_options["mu"] for t in found.trials] == [1, 1, 2, 2]
    assert sweep_folder(found).name == "sweep-6f2e113e"
    again = read_sweep(written(tmp_path, to_toml(found)))
    assert first_change(again, found) is None


def test_a_short_name_that_is_another_setting_in_another_trial_is_refused(tmp_path):
    text = (
        "[run]\ndataset.name = 'synthetic'\n[grid]\nalgorithm = ['feddyn', 'fedavg']\n"
    )
    with pytest.raises(
        ValueError, match="line 5: alpha is an option of algorithm and o"
    ):
        read_sweep(written(tmp_path, text + "alpha = [1, 2]"))


def test_more_than_a_thousand_trials_need_a_yes(tmp_path, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(
        cli_sweep, "run_sweep", lambda asked, *_, **__: ran.append(asked)
    )
    monkeypatch.setattr(cli_sweep, "_show", lambda *_: 0)
    file = tmp_path / "sweep.toml"
    told = ["sweep", str(file), "--folder", str(tmp_path / "runs")]
    assert cli_sweep.ASKS == 1000
    monkeypatch.setattr(cli_sweep, "ASKS", 4)
    for count, words, code in [(4, [], 0), (5, [], 2), (5, ["--yes"], 0)]:
        file.write_text(f"[grid]\nseed = {list(range(count))}\n")
        assert main([*told, *words]) == code, (count, words)
    assert [len(asked.trials) for asked in ran] == [4, 5]
    assert "has 5 trials; write --yes to run them all." in capsys.readouterr().err
