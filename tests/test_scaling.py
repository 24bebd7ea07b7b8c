"""benchmarks/scaling.py and overhead.py: what they compute and keep, never their times."""

import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CLASSES, WIDTH, close, make_clients

import fedjax_adapt as fa
from fedjax_adapt.models import mlp

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = ("readings", "growth", "bare", "parts", "dispatch", "scaling", "overhead")


@pytest.fixture(scope="module")
def modules():
    """The benchmarks' modules by name."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.remove(str(FOLDER))


# the line through a series


def test_a_given_line_is_found_and_nothing_is_off_it(modules):
    growth, x = modules["growth"], np.array([1, 2, 10, 500])
    line = growth.fit(x, 0.003 + 0.0007 * x)
    np.testing.assert_allclose(line, (0.003, 0.0007), rtol=1e-9)
    assert abs(growth.deviations(line, x, 0.003 + 0.0007 * x)).max() < 1e-9


def test_a_bent_series_is_found_however_small_its_points_are(modules):
    growth, x = modules["growth"], np.array([1, 2, 5, 10, 20, 50, 100])
    for bent in (1e-3 * x**1.5, 1e-3 * x**0.5):
        assert abs(growth.deviations(growth.fit(x, bent), x, bent)).max() > 0.15
    straight = 1e-3 * x
    off = straight * np.where(x == 2, 1.2, 1)  # 0.0004 s, beside a last point of 0.1 s
    line = growth.fit(x, off)
    assert abs(growth.deviations(line, x, off)).argmax() == 1


def test_no_line_is_drawn_through_two_points(modules):
    of = lambda *x: [{"x": n, "seconds": n, "min": n, "max": n} for n in x]
    points = modules["growth"].points
    assert points({1: of(1, 1), 2: of(2)}).line is None
    assert points({1: of(1), 2: of(2), 3: of(3), 4: []}).line is not None
    assert points({1: []}) is None


def test_a_point_is_the_median_of_its_passes_with_all_their_range(modules):
    lines = [
        {"x": 4, "seconds": s, "min": s - 0.1, "max": s + 0.2} for s in (3.0, 1.0, 2.0)
    ]
    of = modules["growth"].points({7: lines})
    np.testing.assert_allclose(np.ravel(of), (7, 4, 2.0, 0.9, 3.2))


# readings


@pytest.fixture
def counted(modules):
    """(take, what was called): two cases; b raises KeyboardInterrupt when told to."""
    readings, called = modules["readings"], []

    def ready(name):
        called.append(f"build {name}")
        return readings.Ready(lambda: called.append(name) or jnp.zeros(()), units=2)

    def take(path, passes=2, stop=False):
        def build(name):
            if name == "b" and stop:
                raise KeyboardInterrupt
            return ready(name)

        cases = [readings.Case({"what": n}, lambda n=n: build(n)) for n in ("a", "b")]
        ledger = readings.Ledger(path)
        readings.take(cases, ledger, readings.Effort(passes, 1, 0.0))
        return ledger

    return take, called


def test_cases_are_read_in_turn_each_once_untimed_before(counted, tmp_path):
    take, called = counted
    ledger = take(tmp_path / "lines.jsonl")
    assert called == ["build a", "a", "a", "build b", "b", "b", "a", "a", "b", "b"]
    assert [(line["what"], line["pass"]) for line in ledger.lines] == [
        *(("a", 0), ("b", 0), ("a", 1), ("b", 1))
    ]
    line = ledger.lines[0]
    assert line["n"] == 1 and 0 < line["min"] <= line["seconds"] <= line["max"]
    assert {"commit", "hardware", "other_cores", "versions"} <= set(line)


def test_what_has_been_read_is_not_read_again(counted, tmp_path):
    take, called = counted
    path = tmp_path / "lines.jsonl"
    with pytest.raises(KeyboardInterrupt):
        take(path, stop=True)
    kept = path.read_text()
    assert len(kept.splitlines()) == 1
    path.write_text(kept + '{"what": "b", "pa')  # a kill in the middle of a line
    called.clear()
    take(path)
    assert called == ["build b", "b", "b", "build a", "a", "a", "b", "b"]
    assert path.read_text().startswith(kept)
    assert len(path.read_text().splitlines()) == 4
    called.clear()
    take(path)
    assert called == []


def test_ratios_are_taken_within_a_pass(modules, tmp_path):
    readings = modules["readings"]
    ledger = readings.Ledger(tmp_path / "lines.jsonl")
    for i, (a, b) in enumerate([(1.0, 2.0), (30.0, 20.0), (5.0, 4.0)]):
        ledger.add({"what": "a", "pass": i, "seconds": a})
        ledger.add({"what": "b", "pass": i, "seconds": b})
    ledger.add({"what": "a", "pass": 3, "seconds": 1.0})  # b is missing
    cases = {n: readings.Case({"what": n}, lambda: None) for n in ("a", "b")}
    read = readings.Read(ledger, cases)
    assert read.value(str, "a", by="b") == "1.25 (0.5 to 1.5)"
    assert read.value(str, "a", less="b") == "1.0 (-1.0 to 10.0)"


# scaling


TINY = {"clients": 6, "cohort": 2, "steps": 2, "width": 3, "inputs": 4, "examples": 6}


@pytest.mark.slow
def test_the_whole_of_it_in_small_and_nothing_twice(
    modules, tmp_path, monkeypatch, capsys
):
    scaling, path = modules["scaling"], tmp_path / "scaling.jsonl"
    tiny = scaling.BASE | TINY | {"batch": 3}
    monkeypatch.setattr(scaling, "BASE", tiny)
    words = [
        *("--series", "cohort", "clients, SCAFFOLD", "--cohort", "1", "3"),
        *("--clients", "700", "--devices", "2", "--passes", "1", "--calls", "1"),
        *("--seconds", "0", "--results", str(path)),
    ]
    found = scaling.measure(scaling.parser().parse_args(words))
    cohort = found["cohort"]
    assert cohort.value.tolist() == [1, 3]
    assert cohort.x.tolist() == [2, 4]  # two devices wait for the one that is busy
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["num_devices"] for line in lines if line["cohort"] == 3} == {2}
    assert {line["clients"] for line in lines} == {6, 700}  # 700 share 500's examples
    assert path.with_suffix(".png").stat().st_size > 1000
    assert "| clients, SCAFFOLD | 700 | 700 |" in capsys.readouterr().out

    monkeypatch.setattr(scaling, "one_round", None)  # which would be called
    scaling.measure(scaling.parser().parse_args(words))
    assert len(path.read_text().splitlines()) == len(lines)


@pytest.mark.slow
def test_a_case_that_cannot_be_is_left_out_in_a_sentence(
    modules, tmp_path, monkeypatch, capsys
):
    scaling, path = modules["scaling"], tmp_path / "scaling.jsonl"
    monkeypatch.setattr(scaling, "BASE", scaling.BASE | TINY)
    words = ["--series", "cohort", "--cohort", "7", "--passes", "1"]
    found = scaling.measure(
        scaling.parser().parse_args([*words, "--results", str(path)])
    )
    assert found == {} and not path.exists()
    assert (
        "left out: cohort_size=7 but the data set has 6 clients"
        in capsys.readouterr().err
    )


# the bare loop


@pytest.fixture(scope="module")
def small():
    """(task, data, params): clients of six examples each, a network of one hidden layer."""
    task = fa.classification(mlp((WIDTH,), CLASSES, (5,)), (WIDTH,))
    data = fa.FederatedDataset.from_clients(
        make_clients((6, 6, 6, 6)), num_classes=CLASSES
    )
    return task, data, task.init(jax.random.key(3))


@pytest.mark.slow
def test_the_bare_loop_computes_what_one_client_of_the_engine_computes(modules, small):
    task, data, params = small
    alone = fa.FederatedDataset.from_clients(make_clients((6,)), num_classes=CLASSES)
    plan = fa.Plan(batch_size=2, lr=0.3, weight_decay=0.01, shuffle="none")
    algorithm = fa.with_steps(fa.algorithms.fedavg(), fa.epochs(2))
    state = fa.init_state(algorithm, task, alone, plan, jax.random.key(0))
    state = state._replace(params=params)
    state, info = fa.make_round(algorithm, task, alone, plan)(state, jax.random.key(1))
    assert info.num_steps.tolist() == [6]

    rows = jnp.tile(jnp.arange(6).reshape(3, 2), (2, 1))[None]  # two epochs in order
    models = modules["bare"].models
    gathered = models(task, plan, 1, params, (alone.x, alone.y), rows)
    ready = models(task, plan, 1, params, (), (alone.x[rows], alone.y[rows]))
    only = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)
    close(only(gathered), state.params, atol=1e-6, rtol=1e-5)
    close(only(ready), only(gathered), atol=1e-7)
    moved = jax.tree.map(lambda a, b: abs(a - b).max(), state.params, params)
    assert max(map(float, jax.tree.leaves(moved))) > 0.1  # so equal says something


@pytest.mark.slow
def test_models_side_by_side_are_as_each_is_alone(modules, small):
    task, data, params = small
    bare, plan = modules["bare"], fa.Plan(batch_size=2, cohort_size=4, lr=0.3)
    rows = bare.rows_of_a_round(data, 4, 2, num_models=4)
    assert rows.shape == (4, 3, 2)
    assert sorted(rows.ravel()) == list(range(24))  # an epoch of everybody
    examples = data.x, data.y
    two_each = bare.models(task, plan, 2, params, examples, jnp.asarray(rows))
    for i, own in enumerate(rows):
        alone = bare.models(task, plan, 1, params, examples, jnp.asarray(own[None]))
        one = jax.tree.map(lambda leaf, i=i: leaf[i], two_each)
        close(one, jax.tree.map(lambda leaf: leaf[0], alone), rtol=1e-5)
    with pytest.raises(ValueError, match="12 steps cannot be divided among 5 models"):
        bare.rows_of_a_round(data, 4, 2, num_models=5)


# the parts of a round


@pytest.fixture(scope="module")
def work(modules, small):
    task, data, params = small
    plan = fa.Plan(batch_size=2, cohort_size=4, lr=0.3, devices=2, lanes=1)
    return modules["parts"].Work(task, data, plan, params, steps=3)


@pytest.mark.slow
def test_a_round_that_sends_nothing_trains_and_stays_where_it_was(modules, work):
    parts = modules["parts"]
    for row in (False, True):
        ready = parts.round_of(work, parts.without_uploads(row))
        ready.call()
        state, info = ready.call()
        close(state.params, work.params, atol=0, rtol=0)
        assert info.num_steps.tolist() == [3] * 4 and info.loss.min() > 0
        tables = jax.tree.leaves(state.clients)
        assert bool(tables) == row
        assert all((leaf == 2).all() for leaf in tables)  # each writes once a round


@pytest.mark.slow
def test_the_batches_of_a_round_are_summed_up(modules, work):
    total = modules["parts"].batches(work).call()
    expected = work.data.x.sum() + work.data.y.sum()  # an epoch of everybody
    np.testing.assert_allclose(total, expected, rtol=1e-5)


@pytest.mark.slow
def test_every_part_of_the_profile_can_be_timed(modules, work):
    parts = modules["parts"]
    cases = parts.cases(work, {"workload": "tiny"})
    named = {x for _, *names in modules["overhead"].SHARES.values() for x in names}
    assert named - {None} <= set(cases)
    for name in ("evaluation", "results", "checkpoint, SCAFFOLD", "local steps"):
        ready = cases[name].build()
        for _ in range(2):
            jax.block_until_ready(ready.call())
    model = fa.num_parameters(
        work.params
    )  # with its table and the server's own control
    assert ready.about["parameters"] == model
    saved = cases["checkpoint, SCAFFOLD"].build().about["megabytes"]
    np.testing.assert_allclose(saved, 4e-6 * (2 + 4) * model, rtol=0.02)


@pytest.mark.slow
def test_the_whole_of_the_overhead_in_small(modules, tmp_path, monkeypatch, capsys):
    overhead, path = modules["overhead"], tmp_path / "overhead.jsonl"
    layers = {"hidden.0": (200, 4), "hidden.1": (200, 200), "out": (10, 200)}
    small = overhead.rounds.WORKLOADS["w2"]._replace(
        shape=(4,), clients=4, examples=6, cohort=4, batch=3, layers=layers
    )
    monkeypatch.setitem(overhead.rounds.WORKLOADS, "w2", small)
    overhead.data_of.cache_clear()
    words = [
        *("--workloads", "w2", "--devices", "1", "2", "--chunks", "1"),
        *("--empty-rounds", "2", "--passes", "1", "--calls", "1", "--seconds", "0"),
        *("--results", str(path)),
    ]
    try:
        overhead.measure(overhead.parser().parse_args(words))
    finally:
        overhead.data_of.cache_clear()
    told = capsys.readouterr()
    assert told.err == ""  # nothing was left out
    assert all(f"| {name} |" in told.out for name in overhead.SHARES)
    assert "|  |" not in told.out  # no cell is empty
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    # lanes of one device: 4 and 1, of two: 1; two numbers of devices, three ways, two sizes
    parts = [line["part"] for line in lines]
    assert [parts.count(p) for p in overhead.PARTS] == [3 * 3, 2 * 3 * 2, 11]


@pytest.mark.slow
def test_empty_rounds_are_sent_in_chunks(modules, tmp_path):
    dispatch = modules["dispatch"]
    state, infos = dispatch.through_train(2, 4, 1).call()
    assert infos.num_steps.tolist() == [[1]] * 4
    for rows in (False, True):
        assert int(dispatch.through_run(2, 4, 2, rows).call().round) == 4
    with pytest.raises(ValueError, match="chunks of 3 do not divide 4 rounds"):
        dispatch.cases([3], 4, [1])
