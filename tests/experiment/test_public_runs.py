"""Public sets in runs: who gets one, and what accuracy is called then."""

import io

import numpy as np
import optax
import pytest
from helpers import constructed
from rich.console import Console

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS, fedavg
from fedjax_adapt.cli.partition import preview
from fedjax_adapt.data import load
from fedjax_adapt.experiment import read_run, run
from fedjax_adapt.experiment.build import (
    accuracy_name,
    auxiliary,
    broadcast_seconds,
    build,
    uses_public,
)
from fedjax_adapt.experiment.config import from_settings, to_toml
from fedjax_adapt.experiment.loop import new_log
from fedjax_adapt.experiment.store import ACCURACY, TRAINED
from fedjax_adapt.report.plots import learning_curve
from fedjax_adapt.report.progress import live
from fedjax_adapt.report.tables import summary_table

NAME = "training accuracy on the public set"
SMALL = {"algorithm": "fedavg", "num_clients": 5, "model": "linear", "devices": 1}


def nodding() -> fa.Algorithm:
    """Needs a public set, and looks at it without doing anything."""

    def server(params, state, view, key):
        assert view.public.x.shape[1:] == (8, 8, 1)
        return params, state, {}

    return fa.with_refinement(fedavg(), fa.Refinement(server=server))


def choosing() -> fa.Algorithm:
    """Needs a public set and validation examples."""
    return fa.with_refinement(fedavg(), fa.Refinement(needs_validation=True))


def indifferent() -> fa.Algorithm:
    """Has a refinement that asks for no public set."""
    return fa.with_refinement(fedavg(), lambda params, view, key: params)


@pytest.fixture
def nods(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "nodding", nodding)
    monkeypatch.setitem(ALGORITHMS, "indifferent", indifferent)
    monkeypatch.setitem(ALGORITHMS, "choosing", choosing)


def built(**settings):
    return build(from_settings(SMALL | settings))


def test_without_a_public_set_everything_is_as_it_was():
    source = load("digits")
    found = built()
    assert found.data.public is None
    np.testing.assert_array_equal(found.source.x_train, source.x_train)


@pytest.mark.slow
def test_clients_hold_what_the_public_set_leaves(nods):
    for algorithm in ("fedavg", "nodding"):
        found = built(algorithm=algorithm, public="holdout", validation_examples=20)
        assert found.public.num_examples == 143 and found.public.num_validation == 20
        assert len(found.data.x) == int(found.data.size.sum()) == 1437 - 163
        assert len(found.data.test[1]) == 360
    half = built(public="split_test", public_examples=100).data
    assert len(half.test[1]) == 260 and len(half.x) == 1437
    assert built(public="published").public.num_examples == 360


def test_who_asks_for_no_public_set_sees_none(nods):
    for algorithm in ("fedavg", "indifferent"):
        found = built(algorithm=algorithm, public="holdout")
        assert found.public.num_examples == 143 and found.data.public is None
        assert built(algorithm=algorithm).public is None


def test_who_needs_a_public_set_gets_a_holdout_unless_told_otherwise(nods):
    assert built(algorithm="nodding").data.public.protocol == "holdout"
    few = built(algorithm="nodding", public_examples=30).data.public
    assert few.num_examples == 30
    told = built(algorithm="nodding", public="split_test")
    assert told.data.public.protocol == "split_test"


def test_who_chooses_a_model_gets_validation_examples_unless_told_otherwise(nods):
    found = built(algorithm="choosing").data.public
    assert found.num_examples == found.num_validation == 143
    told = built(algorithm="choosing", validation_examples=0).data.public
    assert told.num_validation == built(algorithm="nodding").public.num_validation == 0


def test_the_preview_shows_what_the_public_set_leaves():
    config = from_settings(SMALL | {"public": "holdout", "public_examples": 37})
    assert preview(config).sizes.sum() == 1400


def test_every_algorithm_that_asks_for_a_public_set_says_what_it_needs_of_it():
    for name in ALGORITHMS:
        if uses_public(constructed(name)):
            assert "public" in constructed(name).refine.given, name


def test_the_public_set_follows_the_seed_of_the_partition(nods):
    sets = [
        set(map(bytes, built(public="holdout", **seeds).public.x))
        for seeds in ({"seed": 1}, {"seed": 2, "partition_seed": 1}, {"seed": 2})
    ]
    assert sets[0] == sets[1] != sets[2]


def test_parity_reaches_the_public_set(nods):
    public = built(algorithm="nodding", labels="parity", model="svm").data.public
    assert set(np.asarray(public.y)) == {0, 1}


@pytest.mark.parametrize(
    "settings, says",
    [
        (
            {"public_examples": 9},
            "public_examples=9 needs a public set, and algorithm=f",
        ),
        ({"validation_examples": 9}, "write public=holdout to take one out of the"),
        (
            {"public": "holdout", "public_examples": 1437},
            "leaves nothing of 1437 train",
        ),
        (
            {"public": "split_test", "public_examples": 999},
            "leaves nothing of 360 test",
        ),
        ({"public": "published", "public_examples": 9}, "takes the whole test set"),
        ({"public": "holdout", "public_examples": 0}, "must be an integer >= 1"),
        (
            {"public": "hold_out"},
            "write one of 'holdout', 'split_test', 'published' or",
        ),
        ({"public": "holdout", "validation_examples": -1}, "must be an integer >= 0"),
        (
            {"public": "holdout", "validation_examples": 1294},
            "validation_examples=1294 leaves nothing of 1294 remaining training",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings, says):
    with pytest.raises(ValueError, match=says) as error:
        built(**settings)
    assert "\n" not in str(error.value)


def test_only_who_trains_on_the_test_set_loses_the_word_test(nods):
    named = lambda **settings: accuracy_name(built(**settings))
    assert named(algorithm="nodding", public="published") == TRAINED
    for settings in (
        {"algorithm": "nodding"},
        {"algorithm": "nodding", "public": "split_test"},
        {"public": "published"},  # fedavg never looks at it
        {},
    ):
        assert named(**settings) == ACCURACY


@pytest.fixture
def finished(tiny, nods):
    """The folder of a finished run and all that was said meanwhile."""

    def make(**settings):
        config = tiny(**{"rounds": 3, "targets": (0.01,)} | settings)
        console = Console(file=io.StringIO(), width=200)
        with live(console) as show:

            def progress(now):
                if now.warning:
                    console.print(now.warning)
                show(now)

            result = run(config, progress=progress)
        console.print(summary_table(config.folder))
        return config, result, console.file.getvalue()

    return make


@pytest.mark.slow
def test_training_accuracy_is_called_so_wherever_it_is_shown(finished):
    config, result, said = finished(
        algorithm="nodding", public="published", evaluate_also=("sel",)
    )
    record = read_run(config.folder)
    assert result.accuracy_name == NAME
    assert "test accuracy" not in said and "test loss" not in said
    assert f"round 3/3  {NAME} {100 * result.accuracy:5.2f} %" in said
    assert f"{NAME}" in said.partition("after 3 rounds")[0].rpartition("\n")[2]
    rows = [line for line in said.splitlines() if line.startswith("│")]
    for name in ("last 3 evaluations", "best", "rounds to", "by class", "sel: cohort"):
        assert any(f"│ training accuracy, {name}" in row for row in rows), name
    assert any("│ 10,000 x training accuracy" in row for row in rows)
    shown = [row for row in rows if "%" in row and not row.startswith("│   ")]
    own = ("training accuracy", "by client")  # and that is on the clients' own examples
    assert all(row.removeprefix("│ ").startswith(own) for row in shown)
    # nothing that looks for an accuracy finds it
    names = set(record.metrics.column_names) | set(record.summary)
    others = {name for name in names if "accuracy" in name and TRAINED not in name}
    assert others == {"accuracy_name", "client_accuracy", "personal_accuracy"}
    assert record.accuracy == TRAINED and f"class_{TRAINED}" in names
    below = record.summary[TRAINED]
    assert below["accuracy"] == result.accuracy == record.metrics[TRAINED][-1].as_py()
    assert "last_mean" in below and "last_mean" not in record.summary
    picture = learning_curve(config.folder, f"{config.folder}.svg").read_text()
    assert f"{NAME} (%)" in picture and "test" not in picture


@pytest.fixture(autouse=True)
def words_in_pictures():
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        yield


@pytest.mark.slow
def test_an_honest_run_says_what_it_was_given(finished):
    config, result, said = finished(algorithm="nodding", validation_examples=7)
    summary = read_run(config.folder).summary
    assert result.accuracy_name == "test accuracy" and TRAINED not in summary
    assert summary["public"] == {
        "protocol": "holdout",
        "origin": "held out of the training set",
        "examples": 143,
        "validation": 7,
        "bytes": 143 * 64,
        "broadcast_bytes": 0,  # the server alone trains on it
        "used": True,
    }
    assert summary["data"]["train"] == 1437 - 150
    assert "public examples (143, held out of the training set)" in said
    assert "validation examples" not in said  # which are set apart and not asked for
    assert summary["rho"] == pytest.approx(
        1e4 * result.accuracy / (summary["bytes_up"] + summary["bytes_down"]) * 2**20
    )
    assert summary["kappa"] is None and f"{summary['rho']:.4g} per MiB" in said


@pytest.mark.slow
def test_a_public_set_nobody_uses_is_said(finished):
    config, result, said = finished(algorithm="fedavg", public="published")
    assert "fedavg uses no public set: public=published (360 examples, the test" in said
    assert result.accuracy_name == "test accuracy" and result.auxiliary == []
    assert result.public["used"] is False


@pytest.mark.slow
@pytest.mark.parametrize("on", ["test", "validation"])
def test_a_run_of_feddf_shows_how_good_its_student_is(finished, on):
    config, result, _ = finished(
        algorithm="feddf",
        public="holdout",
        rounds=1,
        algorithm_options={"distill_steps": 2, "validate_every": 1},
        evaluate_on=on,
    )
    record = read_run(config.folder)
    assert result.accuracy_name == f"{on} accuracy"
    assert record.metrics[record.accuracy][-1].as_py() == result.accuracy
    assert 0 < record.metrics["student_accuracy"][-1].as_py() <= 1


def test_auxiliary_data_are_named_for_bases_too(nods):
    settings = {"algorithm": "feddisco", "base": "fedavg"}
    federation = build(from_settings(SMALL | settings))
    assert auxiliary(federation) == ["label counts of every client"]


SPECIFIED = {  # what a method is given beside its clients' training
    **dict.fromkeys(("feddisco", "fedgen", "fedftg"), "label counts of every client"),
    "feddf": "unlabelled public examples",
    "fnr": "labelled public examples",
    "fedavg_pubft": "labelled public examples, at the server alone",
    "public_only": "labelled public examples, at the server alone",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_method_is_given_is_said_by_its_parts(name):
    algorithm = constructed(name)
    refine = algorithm.refine
    given = {algorithm.server.given, refine.given if refine else None} - {None}
    assert given == ({SPECIFIED[name]} if name in SPECIFIED else set())


@pytest.mark.parametrize(
    "around",
    [
        lambda base: fa.algorithms.fedexp(base=base),
        lambda base: fa.with_server_optimizer(base, optax.adam(0.1)),
        lambda base: fa.with_steps(base, fa.epochs(2)),
        fa.with_averages,
        lambda base: fa.with_compression(base, fa.top_k(0.5)),
    ],
)
def test_a_wrapper_says_what_its_base_is_given(around):
    assert around(fa.algorithms.feddisco()).server.given == SPECIFIED["feddisco"]
    refined = around(fa.algorithms.feddf())
    assert refined.refine.given == SPECIFIED["feddf"]
    other = fa.with_refinement(refined, fa.algorithms.fnr())
    assert other.refine.given == SPECIFIED["fnr"]
    late = fa.algorithms.fedbuff(base=fa.algorithms.feddisco())  # refines nothing
    assert late.server.given == SPECIFIED["feddisco"]


def test_settings_of_public_sets_survive_their_toml(tmp_path):
    config = from_settings({**SMALL, "public": "holdout", "public_examples": 7})
    assert 'public = "holdout"\npublic_examples = 7' in to_toml(config)


@pytest.mark.slow
def test_who_trains_on_the_public_set_is_sent_it_once(finished):
    """Clients of FNR-FL hold P: n (|P| 65) bytes, and its steps are not local ones."""
    config, result, said = finished(
        algorithm="fnr",
        algorithm_options={"epochs": 2, "fraction": 0.4},
        public_examples=30,
        batch_size=16,
        participation=1,
    )
    sizes = {"cohort": config.num_clients, "refined": int(0.4 * config.num_clients)}
    summary = read_run(config.folder).summary
    broadcast = sizes["cohort"] * 30 * (64 + 1)
    assert summary["public"]["broadcast_bytes"] == broadcast
    model = summary["bytes_up"] // 3 - 4 * 11 * sizes["cohort"]
    means = 4 * 10 * sizes["refined"]
    assert summary["bytes_down"] == broadcast + 3 * (model + means)
    assert summary["public_steps"] == 3 * sizes["refined"] * 2 * 1  # 30 at once
    assert f"{summary['public_steps']} on the public set" in said
    control = finished(
        algorithm="fedavg_pubft",
        folder=f"{config.folder}-control",
        algorithm_options={"epochs": 2, "fraction": 0.4},
        public_examples=30,
        batch_size=16,
        participation=1,
    )[1]
    assert control.public["broadcast_bytes"] == 0
    assert control.bytes_down == control.bytes_up == 3 * model
    assert control.public_steps == result.public_steps


@pytest.mark.parametrize("algorithm, each", [("fnr", 65 * 30), ("fedavg_pubft", 0)])
def test_the_first_round_waits_for_the_public_set(algorithm, each):
    """8 |P| 65 bits at 1000 bits a second, if clients train on it."""
    asked = {"algorithm": algorithm, "public_examples": 30, "step_seconds": 0.1}
    config = from_settings({**SMALL, **asked, "download_bandwidth": 1000})
    assert broadcast_seconds(config, build(config)) == pytest.approx(8 * each / 1000)
    free = from_settings({**SMALL, **asked})
    assert broadcast_seconds(free, build(free)) == 0


@pytest.mark.slow
def test_each_trial_waits_for_the_public_set_as_long_as_its_run(tmp_path):
    """Whose clients' bandwidths are drawn by its own seed."""
    asked = {"algorithm": "fnr", "public_examples": 30, "step_seconds": 0.1}
    asked |= {"download_bandwidth": "lognormal(1000, 0.5)"}
    configs = {n: from_settings({**SMALL, **asked, "seed": n}) for n in (0, 1)}
    federation = build(configs[0])
    log = new_log(tmp_path, federation, configs, None, {0: {}, 1: {}})
    waited = [tally.totals["simulated_seconds"] for tally in log.tallies.values()]
    assert waited == [broadcast_seconds(configs[n], federation) for n in (0, 1)]
    assert 0 < waited[0] != waited[1] > 0
