import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_adapt.core import Info, Metrics
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import Config, rows, store
from fedjax_adapt.experiment.loop import new_warning, of_trials
from fedjax_adapt.experiment.sweeps.grid import Trial
from fedjax_adapt.experiment.sweeps.groups import Group
from fedjax_adapt.experiment.sweeps.sweep import notes_of

sweep_module = sys.modules["fedjax_adapt.experiment.sweeps.sweep"]  # not the function

# two rounds, three slots, five clients: round 1 has an empty slot, in round 2 client 4
# sits out
INFOS = Info(
    cohort=np.array([[2, 0, 5], [1, 4, 3]], np.int32),
    num_steps=np.array([[4, 2, 0], [3, 0, 1]], np.int32),
    loss=np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 4.0]], np.float32),
    clipped=np.array([[0.5, 0.0, 0.0], [1.0, 0.0, 0.0]], np.float32),
    num_active=np.array([2, 2], np.int32),
    delta_norm=np.array([0.5, 0.25], np.float32),
    seconds=np.array([1.5, 0.25], np.float32),
    bytes_down=np.array([8e9, 8e9], np.float32),
    bytes_up=np.array([4.0, 6.0], np.float32),
    public_steps=np.array([0, 9], np.float32),
    wasted_bytes=np.array([4, 5], np.float32),
    wasted_steps=np.array([3, 3], np.float32),
    clients={"gate": np.arange(6.0).reshape(2, 3), "pair": np.zeros((2, 3, 2))},
)
BEFORE = {"local_steps": 100, "public_steps": 1, "bytes_down": 5, "bytes_up": 7}
BEFORE |= {"simulated_seconds": 2.0, "wasted_bytes": 0, "wasted_steps": 30}
BEFORE |= {"left_out": 2}
METRICS = Metrics(np.float32(0.75), np.float32(0.5))
MEASURED = rows.Measured(METRICS, np.array([0.5, 1.0], np.float32), also={})


def test_a_metrics_row_counts_only_clients_that_trained():
    row = rows.metrics_row(INFOS, MEASURED, 12, BEFORE)
    assert [column.tolist() for column in row.pop("class_accuracy")] == [[0.5, 1.0]]
    assert row == {
        "round": 12,
        "accuracy": 0.75,
        "loss": 0.5,
        "train_loss": 2.5,
        "cohort": 2.0,
        "local_steps": 110,
        "public_steps": 10,
        "bytes_down": 16_000_000_005,
        "bytes_up": 17,
        "simulated_seconds": 3.75,
        "wasted_bytes": 9,
        "wasted_steps": 36,
        "left_out": 2,
        "clipped": 0.5,  # 2 of 4, none of 2, 3 of 3, none of 1
        "cut": 0,
        "delta_norm": 0.25,
    }


def test_a_metric_is_called_by_its_name_wherever_it_is_measured():
    named = {"accuracy_of_5": np.float32(0.9), "class_f1": np.float32(0.8)}
    measured = MEASURED._replace(named=named, also={"sel": METRICS})
    row = rows.Tally(BEFORE, store.VALIDATED).row(10, INFOS, measured, 1.0)
    assert (row["accuracy_of_5"], row["class_f1"]) == tuple(named.values())
    assert row["validation_accuracy_sel"] == 0.75 and "accuracy_sel" not in row
    figures = rows.of_rounds(10, INFOS, BEFORE, row)[-1]
    assert set(named) < set(figures) and "class_validation_accuracy" not in figures


OUT = np.array([[False, True, False], [False, False, True]])
WITHOUT = INFOS._replace(
    left_out=OUT, loss=np.where(OUT, np.nan, INFOS.loss).astype(np.float32)
)


def test_updates_that_were_left_out_are_counted_and_their_losses_are_not():
    row = rows.metrics_row(WITHOUT, MEASURED, 12, BEFORE)
    assert (row["left_out"], row["train_loss"], row["cohort"]) == (2 + 2, 2.0, 2.0)
    columns = rows.client_rows(WITHOUT, first_round=11, num_clients=5)
    assert columns["left_out"].tolist() == [False, True, False, False, True]
    assert "left_out" not in rows.client_rows(INFOS, 11, 5)
    tally = rows.Tally(dict(BEFORE))
    tally.row(10, INFOS, MEASURED, 1.0)
    assert tally.left_out is None
    tally.row(10, WITHOUT._replace(left_out=OUT & [[False], [True]]), MEASURED, 1.0)
    tally.row(12, WITHOUT, MEASURED, 1.0)
    assert tally.left_out == (12, [3]) and tally.totals["left_out"] == 2 + 1 + 2


def test_other_models_have_columns_of_their_own():
    measured = MEASURED._replace(also={"sel": Metrics(0.25, 2.0)})
    row = rows.metrics_row(INFOS, measured, 12, BEFORE)
    assert (row["accuracy"], row["loss"]) == (0.75, 0.5)
    assert (row["accuracy_sel"], row["loss_sel"]) == (0.25, 2.0)


def test_what_policy_refinement_and_server_report_has_columns():
    of_round, of_clients = np.array([1.0, 2.0]), np.arange(6).reshape(2, 3)
    reports = {
        part: {f"{part}_once": of_round, f"{part}_each": of_clients}
        for part in ("policy", "refine", "server")
    }
    infos = INFOS._replace(**reports)
    row = rows.metrics_row(infos, MEASURED, 12, BEFORE)
    columns = rows.client_rows(infos, first_round=11, num_clients=5)
    for part in reports:
        assert row[f"{part}_once"] == 2 and f"{part}_each" not in row
        assert columns[f"{part}_each"].tolist() == [0, 1, 3, 4, 5]


OF_ROUND, OF_CLIENTS = np.array([1.0, 2.0]), np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    "shown, says",
    [
        (
            {"policy": {"cohort": OF_ROUND}},
            "StepPolicy.report shows 'cohort' of each r",
        ),
        (
            {"server": {"accuracy": OF_ROUND}},
            "is the name of a figure of the run itself",
        ),
        ({"server": {"settings": OF_ROUND}}, "'settings'"),
        (
            {"server": {"loss": OF_CLIENTS}},
            "ServerRule.report shows 'loss' of each client",
        ),
        ({"clients": {"num_steps": OF_CLIENTS}}, "Upload.info shows 'num_steps'"),
        (
            {"policy": {"k": OF_ROUND}, "server": {"k": OF_ROUND}},
            "ServerRule.report shows 'k' .* is the name of what StepPolicy.report shows; g",
        ),
        (
            {"refine": {"k": OF_CLIENTS}, "clients": {"k": OF_CLIENTS}},
            "Upload.info shows 'k' of each client, .* what the refinement's report shows",
        ),
    ],
)
def test_what_is_shown_under_a_name_of_something_else_is_refused(shown, says):
    with pytest.raises(SettingError, match=says):
        rows.check_columns(INFOS._replace(**shown))


def test_no_figure_of_a_run_can_be_shown_by_a_part():
    """Every name that a row of either table may have, but for those of the parts."""
    also = {name: METRICS for name in ("sel", "all", "result")}
    row = rows.metrics_row(INFOS, MEASURED._replace(also=also), 12, BEFORE)
    tested = [name for name in row if "accuracy" in name]
    names = {*row, "seconds", "trial", "diverged_round", "stopped_round"}
    names |= {n.replace("accuracy", a) for n in tested for a in store.ACCURACIES}
    left_out = INFOS._replace(left_out=INFOS.num_steps > 9, clients=())
    of_clients = rows.client_rows(left_out, first_round=11, num_clients=5)
    for shown, leaf in ((names, OF_ROUND), ({*of_clients, "trial"}, OF_CLIENTS)):
        for name in shown:
            with pytest.raises(SettingError, match=f"shows {name!r}"):
                rows.check_columns(INFOS._replace(server={name: leaf}))


def test_a_figure_of_a_round_may_have_a_name_of_figures_of_clients():
    rows.check_columns(INFOS._replace(policy={"num_steps": OF_ROUND, "seen": OF_ROUND}))
    rows.check_columns(
        INFOS._replace(server={"k": OF_ROUND}, clients={"k": OF_CLIENTS})
    )


def test_client_rows_leave_empty_slots_out_and_keep_who_sat_out():
    columns = rows.client_rows(INFOS, first_round=11, num_clients=5)
    assert columns["round"].tolist() == [11, 11, 12, 12, 12]
    assert columns["client"].tolist() == [2, 0, 1, 4, 3]
    assert columns["num_steps"].tolist() == [4, 2, 3, 0, 1]
    assert columns["gate"].tolist() == [0, 1, 3, 4, 5]
    assert [len(row) for row in columns["pair"]] == [2] * 5


def test_concatenating_keeps_the_order_of_groups():
    columns = [rows.client_rows(INFOS, first, 5) for first in (1, 3)]
    both = rows.concatenate(columns)
    assert both["round"].tolist() == [1, 1, 2, 2, 2, 3, 3, 4, 4, 4]
    assert len(both["pair"]) == 10
    assert rows.concatenate([{"a": 1}, {"a": 2}])["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "change, round",
    [
        ({}, None),
        ({"loss": np.array([[np.nan, 2, 0], [np.inf, 0, 4]], np.float32)}, None),
        ({"delta_norm": np.array([0.5, np.nan], np.float32)}, 12),
        ({"delta_norm": np.array([np.inf, np.nan], np.float32)}, 11),
    ],
)
def test_the_first_round_after_which_the_model_is_not_finite_is_named(change, round):
    assert rows.first_diverged(INFOS._replace(**change), METRICS, 11) == round


def test_an_infinite_test_loss_is_divergence_after_the_last_round():
    metrics = METRICS._replace(loss=np.float32(np.inf))
    assert rows.first_diverged(INFOS, metrics, 11) == 12


@pytest.mark.parametrize(
    "loss, diverged, says",
    [
        ([[1, 2, 0], [3, 0, 4]], 12, ""),
        (
            [[1, np.nan, 0], [3, 0, 4]],
            12,
            " after the loss of client 0 was not in round 11",
        ),
        (
            [[1, 2, 0], [np.nan, 0, np.inf]],
            12,
            " after the losses of 2 of 2 clients were",
        ),
        ([[1, 2, np.nan], [3, np.nan, 4]], 12, ""),  # of nobody, and of who sat out
        ([[1, 2, 0], [np.nan, 0, 4]], 11, ""),  # afterwards
    ],
)
def test_whose_loss_was_the_first_that_is_not_finite_is_said(loss, diverged, says):
    infos = INFOS._replace(loss=np.array(loss, np.float32))
    assert rows.after_whom(infos, 11, diverged).startswith(says)
    assert bool(says) == bool(rows.after_whom(infos, 11, diverged))


def test_a_round_nobody_trained_in_has_a_row():
    idle = INFOS._replace(
        num_steps=np.zeros_like(INFOS.num_steps), num_active=np.zeros(2, np.int32)
    )
    row = rows.metrics_row(idle, MEASURED, 2, dict.fromkeys(BEFORE, 0))
    assert np.isnan(row["train_loss"])  # of nobody there is none
    assert (row["clipped"], row["local_steps"]) == (0.0, 0)


def test_a_diverged_group_leaves_the_rows_before_it(tmp_path):
    log = rows.Log(tmp_path, num_clients=5)
    bad = INFOS._replace(delta_norm=jnp.array([np.nan, 1.0]))
    one = np.ones(1, np.float32)
    after = rows.Measured(Metrics(one, one), classes=np.ones((1, 3)), also={})
    with pytest.raises(rows.Diverged, match="diverged in round 3: the model is not"):
        log.add(0, [(INFOS, after), (bad, after)], spent=2.0)
    again = rows.Log(tmp_path, num_clients=5)
    assert (again.tallies[None].totals["local_steps"], again.seconds) == (10, 1.0)
    assert again.tallies[None].totals["simulated_seconds"] == 1.75


def test_each_kind_of_warning_is_given_once_for_each_trial():
    configs = dict.fromkeys(range(6), Config(max_local_steps=3))
    log = rows.Log(None, num_clients=5, trials=dict.fromkeys(configs, {}))
    for trial in (1, 2, 4, 5):
        log.tallies[trial].cut, log.tallies[trial].asked = 2, 9
    log.tallies[4].cut = 4
    log.tallies[0].broken = 8
    log.over[0] = 0  # it diverged, and nothing was refused
    log.tallies[3].idle = log.tallies[5].broken = 8
    given = set()
    say = lambda done: new_warning(configs, 3, log, done, given, lambda i: i + 10)
    cut = (
        "max_local_steps=3 cut 2 of 9 local steps that fedssg asked for up to round 8; "
    )
    assert say(8).startswith(f"trials 11, 12, 15 and 1 more: {cut}")
    assert say(8).startswith("trial 13: nobody trained in round 8: fedssg gave every")
    assert say(8).startswith(
        "trial 15: a client's loss was not finite in the rounds up"
    )
    assert say(9) is None and {kind for kind, _ in given} == {"cut", "idle", "broken"}
    log.tallies[3].cut, log.tallies[3].asked = 1, 9  # which joins them later
    assert say(9).startswith("trial 13: max_local_steps=3 cut 1 of 9 local steps")
    assert say(9) is None


def test_a_public_set_that_nobody_used_is_said_at_the_end():
    log, config = rows.Log(None, num_clients=5, broadcast=9), Config(rounds=8)
    say = lambda done: new_warning({None: config}, None, log, done, set())
    assert say(4) is None
    assert say(8).startswith("fedssg trained no client on the public set in any round;")


def test_trials_of_a_search_are_called_by_their_numbers_there():
    config = Config(algorithm="gift", algorithm_options={"initial_steps": 2}, rounds=9)
    group = Group("000-gift", [Trial(0, {}, config, in_search=5)], [])
    (note,) = notes_of(group, SimpleNamespace(public=None))
    assert note.startswith("trial 5: with warmup=50 gift changes no local steps in 9")


def test_so_they_are_in_the_warnings_of_their_rounds(tmp_path, monkeypatch):
    config = Config(max_local_steps=3)
    group = Group("000", [Trial(i, {}, config, in_search=i + 5) for i in (0, 1)], [])
    log, said = rows.Log(None, num_clients=5, trials={0: {}, 1: {}}), []
    for tally in log.tallies.values():
        tally.cut, tally.asked = 2, 9
    report = lambda *given: given[-2](8, (0.5, 0.5), 1.0)
    monkeypatch.setattr(sweep_module, "new_log", lambda *_: log)
    monkeypatch.setattr(sweep_module, "train_in", report)
    program = SimpleNamespace(max_steps=3, init=lambda: None)
    compiled = SimpleNamespace(width=2, program_of=lambda rows: program)
    runner = sweep_module._Runner(tmp_path, group, 0, 16, said.append, None)
    runner.run_at_once(tmp_path, None, compiled, range(2), None, 0)
    assert said[0].warning.startswith("trials 5 and 6: max_local_steps=3 cut 2 of 9")


def test_a_warning_names_up_to_three_trials():
    listed = lambda *trials, also=0: of_trials("x.", trials, also)
    assert listed(0) == "trial 0: x."
    assert listed(0, 7) == "trials 0 and 7: x."
    assert listed(0, 7, also=2) == "trials 0, 7 and 2 more: x."
    assert listed(1, 2, 3) == "trials 1, 2 and 3: x."
    assert listed(1, 2, 3, 4, 5, also=1) == "trials 1, 2, 3 and 3 more: x."


def test_a_tally_begins_with_the_broadcast_and_goes_on_from_its_last_row():
    began = rows.Tally({}, broadcast=500, seconds=4.0).totals
    assert (began["bytes_down"], began["simulated_seconds"]) == (500, 4.0)
    went_on = rows.Tally(dict(BEFORE), broadcast=500, seconds=4.0).totals
    assert {name: went_on[name] for name in BEFORE} == BEFORE


def test_a_tally_goes_on_from_a_row_of_an_earlier_version():
    old = {k: v for k, v in BEFORE.items() if not k.startswith("wasted")}
    totals = rows.Tally(old).totals
    assert (totals["local_steps"], totals["wasted_steps"]) == (100, 0)
