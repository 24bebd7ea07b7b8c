import dataclasses
import inspect
import re
import tomllib
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import constructed

from fedjax_adapt import Algorithm, Traffic, Upload, check
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.algorithms.afl import afl_fixed
from fedjax_adapt.core import traffic_for
from fedjax_adapt.data import SOURCES
from fedjax_adapt.experiment import config, schema
from fedjax_adapt.experiment.build import build_algorithm, build_plan
from fedjax_adapt.experiment.config import (
    Config,
    common_options,
    config_hash,
    from_settings,
    kind_options,
    method_of,
    registry,
    to_settings,
    to_toml,
)
from fedjax_adapt.experiment.objects import KINDS
from fedjax_adapt.experiment.options import argument_help, catalogue
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.experiment.toml import convert, plain, wanted


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "fedprox", "mu": 0.25, "batch_size": None, "clip_norm": None},
        {"algorithm": "fedssg", "total_rounds": 12, "gate": "current"},
        {"dataset": "synthetic", "partition": "natural", "dataset_alpha": 0.5},
        {"model": "mlp", "widths": (3, 5), "targets": (), "lanes": 3, "seed": 9},
        {"dataset": 'a "b"\\.npz', "num_steps": 4, "sampler": "uniform"},
        {"evaluate_also": ("all", "sel")},
        {"sampler": "earliest", "step_seconds": 0.1, "delay": "exponential(2)"},
        {"shuffle": "none", "augment": "none", "max_local_steps": 3},
        {"num_steps": 9, "later_steps": (20, 1, 30, 4), "watch": 2, "ideal_steps": 3},
    ],
)
def test_a_config_survives_its_own_toml(settings, written):
    config = from_settings(settings)
    again = from_settings(read_settings(written(to_toml(config))))
    assert to_settings(again) == to_settings(config)
    assert config_hash(again) == config_hash(config)


def test_every_common_option_says_what_it_is_for():
    assert all(option.help for option in common_options().values())


def test_a_run_resumes_with_other_settings_that_change_no_number():
    where = {"data_dir", "folder", "devices", "client_memory", "lanes", "convolutions"}
    what = {"targets", "checkpoint_every", "evaluate_clients", "track"}
    assert {*schema.settings_that_are("incidental")} == where | what
    assert not where & {
        *schema.settings_that_are("matched"),
        *schema.settings_that_are("untimed"),
    }
    left_open = {"lanes", "devices", "convolutions"}
    assert {*schema.settings_that_are("settled")} == left_open | {"num_clients"}
    assert what >= {*schema.settings_that_are("at_end")} == what - {"checkpoint_every"}


def test_runs_from_before_a_setting_have_its_default():
    """Another default is another run, and would have the hash of the old ones."""
    before = {"evaluate_on": "test", "nonfinite_updates": "stop", "later_steps": ()}
    before |= {"ideal_steps": None, "watch": None}
    later = schema.settings_that_are("later")
    assert {name: common_options()[name].default for name in later} == before


def test_a_number_that_means_nothing_alone_names_what_it_needs():
    for name, setting in schema.settings().items():
        needed = setting.needs.partition(",")[0]
        assert not needed or needed in schema.settings(), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_and_choice_of_a_constructor_is_an_option(name):
    simple = {
        parameter.name
        for parameter in inspect.signature(ALGORITHMS[name]).parameters.values()
        if isinstance(parameter.default, bool | int | float | str)
    }
    assert simple <= set(kind_options("algorithm", name))


BOTH = {  # ways to write two options of one name, beside one that is alone in its
    "old": 'dataset = "synthetic"\ndataset_alpha = 0.5\nalpha = 0.25\nconcentration = 1',
    "full": "dataset.name = 'synthetic'\ndataset.alpha = 0.5\nalgorithm.alpha = 0.25\n"
    "partition.concentration = 1",
    "tables": "concentration = 1\n[algorithm]\nname = 'fedssg'\nalpha = 0.25\n"
    "[dataset]\nname = 'synthetic'\nalpha = 0.5\n",
    "mixed": "dataset = 'synthetic'\npartition_concentration = 1\ndataset_alpha = 0.5\n"
    "[algorithm]\nalpha = 0.25",
}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'algorithm = "feddyn"\ndataset = "synthetic"\nalpha = 0.1',
            "line 3: alpha is an option of algorithm feddyn and of dataset synthetic",
        ),
        (
            '[algorithm]\nname = "fedprox"\nlr = 0.05',
            "line 3: lr is not an option of algorithm fedprox but a setting of "
            "the run; write "
            "it above the tables",
        ),
        (
            '[algorithm]\nname = "fedprox"\nconcentration = 0.1',
            "line 3: concentration is not an option of algorithm fedprox but of partition "
            r"dirichlet; write it below \[partition\]",
        ),
    ],
)
def test_an_option_in_the_wrong_place_is_told_where_it_belongs(written, text, says):
    with pytest.raises(ValueError, match=says):
        read_settings(written(text))


@pytest.mark.parametrize("way", BOTH)
def test_every_way_to_write_an_option_is_the_same_config(written, way):
    config = from_settings(read_settings(written(BOTH[way])))
    assert dict(config.dataset_options) == {"alpha": 0.5}
    assert dict(config.algorithm_options) == {"alpha": 0.25}
    assert dict(config.partition_options) == {"concentration": 1.0}
    assert from_settings(tomllib.loads(BOTH[way])) == config
    again = from_settings(read_settings(written(to_toml(config))))
    assert config_hash(again) == config_hash(config)


@pytest.mark.parametrize(
    "text, says",
    [
        (
            "mu = 1\n[algorithm]\nname = 'fedprox'\nmu = 2",
            "line 4: mu and algorithm.mu are the same setting; write one of them.",
        ),
        (
            "dataset.name = 'synthetic'\n\nalpha = 2",
            "line 3: alpha is an option of algorithm fedssg and of dataset synthetic; "
            "write algorithm.alpha or dataset.alpha.",
        ),
        ("[algorithm]\nname = 'fedprox'\nmu = -1", "line 3: mu=-1.0 must be a finite"),
        ("[algorithm]\nname = 'fedprox'\nmuu = 1", "did you mean mu?"),
        ("[algorithm]\nname = 'fedprox'\nzeal = 1", "write one of mu, weights, vari"),
        ("[algorithm]\nname = 'fedprocs'", "algorithm='fedprocs' is unknown"),
        ("seed = 1\nalgorithm.epochs = 1\nalgorithm.name = 'fnr'\nlr = 'x'", "line 4"),
    ],
)
def test_a_mistake_in_a_table_is_named_with_its_line(written, text, says):
    path = written(text)
    with pytest.raises(ValueError) as error:
        read_settings(path)
    assert str(error.value).startswith(str(path)) and says in str(error.value)


def test_a_new_algorithm_renames_nothing(monkeypatch):
    """Whatever its options are called."""
    before = Config(partition_options={"concentration": 0.7})
    settings, text = to_settings(before), to_toml(before)
    hashes = [config_hash(from_settings({"dataset": name})) for name in ("synthetic",)]

    def newest(concentration: float = 1.0, widths: int = 2, lr: float = 0.5):
        return ALGORITHMS["fedavg"]()

    monkeypatch.setitem(ALGORITHMS, "newest", newest)
    assert (to_settings(before), to_toml(before)) == (settings, text)
    assert config_hash(before) == "c237ea68", "is a new setting not later?"
    assert hashes == [config_hash(from_settings({"dataset": "synthetic"}))]
    own = {"algorithm": "newest", "algorithm.concentration": 3.0}
    both = from_settings({**own, "partition.concentration": 0.7})
    assert both.partition_options == before.partition_options
    other = from_settings({**own, "partition.concentration": 0.6})
    assert config_hash(both) != config_hash(other)
    with pytest.raises(ValueError, match="concentration is an option of algorithm new"):
        from_settings({"concentration": 0.7, **own})


def test_every_setting_that_a_plan_has_arrives_in_it():
    other = {"batch_size": 7, "lr": 0.3, "lr_decay": 0.9, "momentum": 0.5}
    other |= {"weight_decay": 0.1, "clip_norm": 3.0, "shuffle": "none", "lanes": 2}
    other |= {"devices": 2, "client_memory": "host", "nonfinite_updates": "leave_out"}
    plan = build_plan(Config(**other, max_local_steps=5))
    assert {name: getattr(plan, name) for name in other} == other
    both = {field.name for field in dataclasses.fields(plan)} & {*common_options()}
    assert other.keys() == both - {"participation", "rounds"} and plan.max_steps == 5
    assert plan.participation is not None and plan.rounds is None


def test_a_new_setting_has_the_name_of_no_option():
    """Files of before would be read otherwise, and the hashes of their runs change."""
    short = {
        f"{kind}.{option}"
        for kind in KINDS
        for choice in registry(kind)
        for option in kind_options(kind, choice)
        if option in common_options()
    }
    both = (
        *("participation", "batch_size", "shuffle", "epochs", "momentum", "num_steps"),
        *("lr", "step_seconds", "augment"),
    )
    assert short == {f"algorithm.{name}" for name in both}


def test_the_hash_sees_numbers_and_not_places():
    base = Config()
    moved = dataclasses.replace(
        base, folder="x", data_dir="y", targets=(), checkpoint_every=3
    )
    assert config_hash(moved) == config_hash(base)
    for change in (
        {"seed": 1},
        {"lr": 0.2},
        {"rounds": 61},
        {"algorithm_options": {"alpha": 0.06}},
    ):
        assert config_hash(dataclasses.replace(base, **change)) != config_hash(base)


def test_writing_a_default_out_does_not_change_the_hash():
    assert config_hash(Config(algorithm_options={"beta": 1.0})) == config_hash(Config())


def test_options_of_a_config_cannot_be_changed():
    given = {"alpha": 0.1}
    config = Config(algorithm_options=given)
    given["alpha"] = 0.2
    assert config.algorithm_options["alpha"] == 0.1
    with pytest.raises(TypeError):
        config.algorithm_options["alpha"] = 0.3


@pytest.mark.parametrize(
    "text, says",
    [
        (
            "rounds = 3\n\nnum_cliens = 4\n",
            r"line 3: num_cliens .*mean num_clients\?",
        ),
        ("rounds = 3\nlr = 'x'\n", r"line 2: lr='x'; write a number\."),
        ("lr = -1" + 400 * "0", "line 1: lr=-inf must be a finite number above 0"),
        ("rounds = 2.5\n", r"line 1: rounds=2.5; write an integer\."),
        ("rounds = true\n", r"line 1: rounds=True; write an integer\."),
        ("algorithm = 'fedsg'\n", r"line 1: algorithm='fedsg' .*did you mean 'fedssg'"),
        ("dataset = 3\n", r"line 1: dataset=3; write a text\."),
        ("gate = 'totl'\n", r"line 1: gate='totl'; write one of 'total', 'current', "),
        ("model = 'mlp'\nwidths = [1, 'a']\n", r"line 2: widths=.*; write integers\."),
        ("algorithm = 'fedavg'\nmu = 1.0\n", r"line 2: mu is unknown"),
        ("rounds = 3\nlr = -0.1\n", r"line 2: lr=-0.1 must be a finite number above 0"),
        ("seed = 1\nparticipation = 1.5\n", r"line 2: participation=1.5 must lie in"),
        ("alpha = -1.0\n", r"line 1: alpha=-1.0 must be a finite number of at least 0"),
        (
            "participation = 0.3\nseed = 1\nalgorithm_participation = 1.5\n",
            r"line 3: algorithm.participation=1.5 must lie in",
        ),
        ("seed = 1\nstep_seconds = 'lognormal(0)'\n", r"line 2: step_seconds='lognorm"),
        ("a = 1\n[rounds]\nx = 1\n", r"line 1: a is unknown"),
        ("[rounds]\nx = 1\n", r"line 1: rounds=.*; write an integer\."),
    ],
)
def test_a_wrong_key_is_named_with_file_and_line(written, text, says):
    path = written(text)
    with pytest.raises(ValueError, match=rf"{path}, {says}"):
        read_settings(path)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"participation": 1.5}, r"participation=1.5 must lie in \(0, 1\]"),
        ({"participation": 0.0}, r"participation=0.0 must lie in \(0, 1\]"),
        ({"rounds": 0}, "rounds=0 must be an integer >= 1"),
        ({"rounds": 2.5}, r"rounds=2.5; write an integer\."),
        ({"evaluate_every": 0}, "evaluate_every=0 must be an integer >= 1"),
        ({"targets": (0.9, 97.0)}, r"targets=97.0 must lie in \[0, 1\]"),
        ({"seed": -1}, "seed=-1 must lie in"),
        ({"sampler": "coin"}, "sampler='coin'; write one of 'bernoulli', 'uniform'"),
        ({"evaluate_also": ("al",)}, r"also=\('al',\); write some of 'sel', 'all'\."),
        ({"epochs": 2.0, "num_steps": 9}, "epochs=2 and num_steps=9 both say how long"),
        ({"epochs": 2.0, "match": "a"}, "match=a and epochs=2 both say how long"),
        ({"num_steps": 2, "match": "a"}, "match=a and num_steps=2 both say how long"),
        ({"later_steps": (2, 1)}, r"later_steps=\(2, 1\) needs num_steps, the local"),
        *(
            (
                {"num_steps": 9, "later_steps": pairs},
                rf"later_steps={re.escape(str(pairs))} {says}",
            )
            for pairs, says in [
                (
                    (2,),
                    r"says no local steps after round 2; write pairs of a round and",
                ),
                ((2, 1, 5), r"says no local steps after round 5; write pairs"),
                ((2, 1, 2, 3), r"has round 2 after round 2; write each round once, in"),
                ((4, 1, 2, 3), r"has round 2 after round 4; write each round once, in"),
                (
                    (0, 1),
                    r"begins after round 0; write a round from 1 on, since num_st",
                ),
                ((2, 0), r"has 0 local steps after round 2; write an integer from 1"),
                ((2, 2**31), r"has 2147483648 local steps after round 2; write an int"),
            ]
        ),
        (
            {"num_steps": 9, "later_steps": (2, 1, 60, 3)},
            "begins after round 60, but rounds=60; write fewer",
        ),
        ({"watch": 0}, "watch=0 must be an integer >= 1, or None for no parameter"),
        ({"ideal_steps": 0}, "ideal_steps=0 must be an integer >= 1, or None for no"),
        ({"match_by": "steps"}, "match_by=steps needs match, the folder of the run"),
        ({"sampler": "earliest"}, "sampler=earliest needs step_seconds, the simulated"),
        ({"delay": 3.0}, "delay=3.0 needs step_seconds, the simulated seconds of a"),
        ({"rounds": 2**31}, "rounds=2147483648 must be at most 1073741824"),
        ({"epochs": 1e300}, r"epochs=1e\+300 must lie in \(0, 1000000\]"),
        ({"epochs": 0.0}, r"epochs=0.0 must lie in \(0, 1000000\]"),
        ({"folder": ""}, "folder='' is empty; write the path of a folder, or leave"),
        ({"data_dir": ""}, "data_dir='' is empty; write the path of a folder, or"),
        ({"match": ""}, "match='' is empty; write the path of a folder, or leave"),
        ({"feature_noise": 10**400}, "feature_noise=inf must be a finite number of at"),
        (
            {"clock_seed": 3},
            "clock_seed=3 needs step_seconds, the simulated seconds of",
        ),
        ({"max_local_steps": 0}, "max_local_steps=0 must be an integer >= 1, or None"),
        ({"algorithm": "fedsg"}, "algorithm='fedsg' is unknown; did you mean 'fedssg'"),
        (
            {"algorithm": "mine.py"},
            "^algorithm='mine.py' names no function; write mine.py:FUNCTION.$",
        ),
        ({"dataset": "minst"}, "dataset='minst' is unknown; did you mean 'mnist'"),
        ({"partition": "dirichle"}, "partition='dirichle' is unknown; .*'dirichlet'"),
        ({"model": "mpl"}, "model='mpl' is unknown; did you mean 'mlp'"),
        (
            {"algorithm_options": {"alpa": 1.0}},
            "^algorithm=fedssg has no option alpa; did you mean 'alpha'",
        ),
        (
            {"model": "linear", "model_options": {"widths": 3}},
            "^model=linear has no option widths; there are none.$",
        ),
        ({"algorithm_options": {"alpha": "x"}}, r"alpha='x'; write a number\."),
    ],
)
def test_a_wrong_setting_is_one_sentence(changes, says):
    with pytest.raises(ValueError, match=says) as error:
        Config(**changes)
    assert "\n" not in str(error.value)


def test_fedssg_is_told_the_rounds_and_the_share_of_a_uniform_cohort(monkeypatch):
    told = {}

    def fake(total_rounds: int = 300, participation: float = 0.15, mu: float = 0.0):
        told.update(total_rounds=total_rounds, participation=participation, mu=mu)
        return ALGORITHMS["fedavg"]()

    monkeypatch.setitem(ALGORITHMS, "fedssg", fake)
    uniform = {
        "rounds": 12,
        "participation": 0.4,
        "num_clients": 10,
        "sampler": "uniform",
    }
    build_algorithm(Config(**uniform))
    assert told == {"total_rounds": 12, "participation": 0.4, "mu": 0.0}
    options = {"total_rounds": 99, "mu": 1.0}
    build_algorithm(Config(**uniform, algorithm_options=options))
    assert told == {"total_rounds": 99, "participation": 0.4, "mu": 1.0}
    # of coins the plan knows what is expected, as no cohort is empty
    build_algorithm(Config(rounds=12, participation=0.4))
    assert told == {"total_rounds": 12, "participation": 0.15, "mu": 0.0}


@pytest.mark.parametrize(
    "given, says",
    [
        (
            {"algorithm": Algorithm()},
            "algorithm is an Algorithm, no name; write one that fedjax-adapt list "
            "shows. Objects go to run(config, algorithm=",
        ),
        (
            {"algorithm_options": [1]},
            "algorithm_options=[1] is not a dict; write one of opt",
        ),
    ],
)
def test_what_is_no_name_or_no_dict_of_options_is_refused(given, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Config(**given)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_the_local_steps_it_is_told_or_refuses(name):
    decides = constructed(name).policy is not Algorithm().policy
    options = {"budget": 1e6} if name == "afl" else {}  # which it cannot do without
    timed = {"step_seconds": 1.0, "sampler": "uniform"}
    timed = timed if name in ("fedbuff", "fedasync") else {}
    for settings, steps in (({"epochs": 3.0}, 30), ({"num_steps": 7}, 7)):
        config = Config(algorithm=name, algorithm_options=options, **settings, **timed)
        if decides:
            with pytest.raises(ValueError, match=f"algorithm={name} chooses them itse"):
                build_algorithm(config)
        else:
            algorithm = build_algorithm(config)
            assert algorithm.policy.mean_steps(jnp.int32(10)) == steps


@pytest.mark.parametrize(
    "base, says",
    [
        ("fedyn", "base='fedyn' is unknown; did you mean 'feddyn'"),
        ("feddyn(", r"base='feddyn\(' is not an algorithm; write its name, or"),
        ("feddyn(0.1)", "is not an algorithm; write its name"),
        ("feddyn(alpha=hello)", "has an option that is not a value; write a number"),
        ("feddyn(**{})", "is not an algorithm; write its name"),
        ("public_only(epochs=1)", "^base=public_only trains no client, so that"),
        ("-" * 5000 + "1", "is not an algorithm; write its name"),
        (
            "feddyn(alpa=1)",
            r"^base=feddyn\(alpa=1\) has no option alpa; did you mean 'alpha'\?",
        ),
        (
            "feddyn(beta=1)",
            r"^base=feddyn\(beta=1\) has no option beta; write one of alpha,",
        ),
        ("feddyn(alpha='x')", "alpha='x' of base feddyn; write a number"),
        ("feddyn(alpha=-1)", r"^base=feddyn\(alpha=-1\): alpha=-1.* must be a finite"),
        ("scaffold", "feddisco weighs the mean of the cohort's models anew"),
    ],
)
def test_a_base_that_cannot_be_is_one_sentence(base, says):
    with pytest.raises(ValueError, match=says):
        build_algorithm(from_settings({"algorithm": "feddisco", "base": base}))


def test_an_algorithm_may_stand_on_another_by_name():
    settings = {"algorithm": "feddisco", "base": "feddyn(alpha=0.5)", "a": 0.3}
    algorithm = build_algorithm(from_settings(settings))
    assert algorithm.local.correct is not ALGORITHMS["feddisco"]().local.correct
    assert algorithm.local.init is ALGORITHMS["feddyn"]().local.init
    inside = from_settings({"algorithm": "fedadam", "base": "feddisco(base='feddyn')"})
    server = build_algorithm(inside).server.init(jnp.ones(3))
    assert server.optimizer.second.shape == (3,)  # FedAdam's, around FedDyn's memory
    np.testing.assert_array_equal(server.inner, 0)


@pytest.mark.parametrize("name", ["fedgsnr", "fedveca", "gift", "adacomm", "afl"])
def test_every_policy_stands_on_any_base_by_name(name):
    options = {"budget": 100.0} if name == "afl" else {}
    settings = {"algorithm": name, "base": "scaffold", **options}
    algorithm = build_algorithm(from_settings(settings))
    scaffold, model = ALGORITHMS["scaffold"](), jnp.zeros(3)
    upload = Upload(model, model)  # theta_i - w and c_i' - c_i
    assert traffic_for(algorithm.local, model, upload) == Traffic(2, 2, round_trips=1)
    assert algorithm.server.combine == scaffold.server.combine
    assert algorithm.policy is not Algorithm().policy


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_what_an_asynchronous_server_needs_is_one_sentence(name):
    needs = {"step_seconds": 1.0, "sampler": "uniform", "participation": 0.5}
    seconds = r"step_seconds \(the simulated seconds of a local step, as in 0.05\)"
    for lacks, says in {
        ("step_seconds",): seconds,
        ("sampler",): "sampler=uniform",
        ("participation",): "participation below 1",
        tuple(needs): f"{seconds} and sampler=uniform and participation below 1",
    }.items():
        given = {name: value for name, value in needs.items() if name not in lacks}
        given |= {"participation": 1.0} if "participation" in lacks else {}
        with pytest.raises(ValueError, match=f"^algorithm={name} .*; set {says}\\.$"):
            build_algorithm(Config(algorithm=name, **given))
    assert build_algorithm(Config(algorithm=name, **needs))


@pytest.mark.slow
def test_afl_with_constants_has_one_tau_for_the_learning_rate_of_the_run():
    constants = {"budget": 100.0, "beta": 1.0, "delta": 2.0, "rho": 3.0}
    for lr in (0.1, 0.001):
        config = from_settings({"algorithm": "afl", "lr": lr, **constants})
        tau = build_algorithm(config).policy.mean_steps(jnp.int32(7))
        assert tau == afl_fixed(**constants, lr=lr).mean_steps(jnp.int32(7))
    assert tau > 3


def test_a_policy_that_learns_is_told_the_cap():
    """It would go on from steps that nobody takes."""
    capped = lambda **settings: (
        build_algorithm(
            from_settings({"max_local_steps": 7, **settings})
        ).policy.max_steps
    )
    assert capped(algorithm="gift") == capped(algorithm="adacomm") == 7
    assert capped(algorithm="fedveca") == capped(algorithm="fedgsnr") == 7
    assert capped(algorithm="fedveca", max_steps=5) == 5
    assert capped(algorithm="fedgsnr", base="fednova") == 7
    assert (
        build_algorithm(from_settings({"algorithm": "gift"})).policy.max_steps is None
    )


def test_a_plan_is_told_the_cap_the_shuffle_and_the_seed_of_its_clock():
    plan = build_plan(Config(max_local_steps=7, shuffle="none", step_seconds=1.0))
    assert (plan.max_steps, plan.shuffle, plan.clock.seed) == (7, "none", 0)
    timed = {"step_seconds": 1.0, "partition_seed": 3}
    assert build_plan(Config(**timed)).clock.seed == 3
    assert build_plan(Config(**timed, clock_seed=0)).clock.seed == 0


@pytest.mark.parametrize(
    "sampler, participation, slots",
    [
        *(("uniform", 0.3, 3), ("uniform", 0.01, 1), ("uniform", 1.0, None)),
        *(("earliest", 0.3, 3), ("earliest", 0.31, 4)),
    ],
)
def test_participation_is_a_rounded_number_of_clients(sampler, participation, slots):
    config = Config(
        num_clients=10, sampler=sampler, participation=participation, step_seconds=1.0
    )
    chosen = build_plan(config).participation
    assert (chosen and chosen.slots(10)) == slots


def test_conversion_promotes_integers_and_lists_but_nothing_else():
    assert convert(float, 3) == 3.0 and isinstance(convert(float, 3), float)
    assert convert(tuple[int, ...], [1, 2]) == (1, 2)
    assert convert(float | None, "none") is None
    for annotation, value in [
        (int, True),
        (int, 1.0),
        (float, "1"),
        (bool, 1),
        (str, 1),
        (Literal["a"], "b"),
        (Literal[1], True),
        (Literal[1], 1.0),
        (tuple[int, ...], 3),
        (int | None, "x"),
    ]:
        with pytest.raises(TypeError):
            convert(annotation, value)


def test_numbers_of_numpy_and_jax_are_those_of_python():
    lr, seed, targets = np.float64(0.1), np.int64(3), np.array([0.5, 0.75])
    given = {"algorithm": "fedprox", "algorithm_options": {"mu": np.float32(0.5)}}
    found = Config(lr=lr, seed=seed, targets=targets, momentum=jnp.zeros(()), **given)
    assert type(found.lr) is float and type(found.seed) is int
    given["algorithm_options"] = {"mu": 0.5}
    same = Config(lr=0.1, seed=3, targets=(0.5, 0.75), momentum=0.0, **given)
    assert found == same and config_hash(found) == config_hash(same)
    with pytest.raises(ValueError, match="; write an integer"):
        Config(seed=np.float64(3))


def test_what_to_write_is_said_in_words():
    assert wanted(float | None) == "a number or none"
    assert wanted(tuple[int, ...]) == "integers"
    assert wanted(int | Literal["auto"]) == "an integer or 'auto'"


def test_only_plain_types_become_options():
    import jax

    assert plain(float | jax.Array) is float
    assert plain(jax.Array) is None
    assert plain(list[int]) == tuple[int, ...]


def test_argument_help_reads_entries_of_several_lines():
    doc = "Does.\n\nArgs:\n  a: one\n    more.\n  b_c: two: three\n\nReturns:\n  x: no"
    assert argument_help(doc) == {"a": "one more.", "b_c": "two: three"}


def test_the_catalogue_has_a_line_for_everything():
    lines = catalogue()
    assert set(lines["algorithms"]) == set(ALGORITHMS)
    assert {*SOURCES} < {*lines["data sets"]}
    assert all(line for group in lines.values() for line in group.values())


@pytest.mark.parametrize(
    "algorithm, options, name",
    [
        ("fedavg", {}, "fedavg"),
        ("fnr", {"variant": "sq", "base": "moon"}, "fnr on moon"),
        (
            "fnr",
            {"variant": "literal", "weight": 0.0},
            "fnr(variant=literal, weight=0.0)",
        ),
    ],
)
def test_a_method_is_named_by_what_is_not_its_default(algorithm, options, name):
    config = Config(algorithm=algorithm, algorithm_options=options)
    assert method_of(config) == name


@pytest.mark.parametrize(
    "written, meant",
    [
        ("lrate", "lr"),
        ("learning-rate", "lr"),
        ("lr_dcay", "lr_decay"),
        ("local_epochs", "epochs"),
        ("local-steps", "num_steps"),
        ("random_seed", "seed"),
        ("LR", "lr"),
        ("clients", "num_clients"),
        ("batchsize", "batch_size"),
        ("rat", "rate"),
        ("nope", None),
        ("5", None),
        ("", None),
    ],
)
def test_a_name_is_guessed_only_where_it_is_near(written, meant):
    known = ["rate", "lr", "lr_decay", "num_clients", "batch_size", "latency", "copies"]
    known += ["seed", "epochs", "num_steps"]
    assert check.closest(written, known) == meant
    assert check.closest(written, []) is None


def test_the_first_setting_in_which_two_runs_differ_is_found_on_both_sides():
    then = {"lr": 0.1, "seed": 1, "gone": 2}
    assert config.first_difference(then, {"lr": 0.1, "seed": 1}) == ("gone", 2, None)
    now = {"new": 3, "lr": 0.2, "seed": 0, "gone": 2}
    assert config.first_difference(then, now) == ("new", None, 3)
    assert config.first_difference(then, now, ["new"]) == ("lr", 0.1, 0.2)
    assert config.first_difference(then, now, ["new", "lr", "seed"]) is None
