"""Simulated time and traffic of a run, from the settings to the rows."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import relist
from test_run import Stop, numbers, stop_after

from fedjax_adapt.costs import exponential, lognormal, normal, uniform
from fedjax_adapt.experiment import Config, read_run, run
from fedjax_adapt.experiment.algorithm import quantity
from fedjax_adapt.experiment.build import build_plan
from fedjax_adapt.experiment.config import from_settings, to_settings
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.report.plots import learning_curve

pytestmark = pytest.mark.usefixtures("shared_programs")

MODEL = 4 * 650  # bytes of the linear model


def test_a_text_is_the_law_it_names():
    import jax

    key = jax.random.key(0)
    for text in ("normal(2, 0)", "normal(mean=2.0, deviation=0)"):
        assert quantity("delay", text).sample(key) == 2
    assert quantity("delay", 0.25) == 0.25


@pytest.mark.parametrize(
    "text, says",
    [
        (
            "expontial(2)",
            "delay='expontial.*' is neither a number nor a law; write one ",
        ),
        ("exponential", r"write one of exponential\(mean\), uniform\(most\), normal"),
        ("exponential(1, 2)", "is neither a number nor a law"),
        ("exponential('a')", "is neither a number nor a law"),
        ("exponential(x)", "is neither a number nor a law"),
        ("uniform(2", "is neither a number nor a law"),
        ("uniform(" + 400 * "9" + ")", "is neither a number nor a law"),
        ("uniform(**{'most': 2})", "is neither a number nor a law"),
        (f"uniform({5000 * '-'}1)", "is neither a number nor a law"),
        ("uniform(1e999)", "most=inf must be a finite number above 0"),
        ("uniform(1e39)", r"most=1e\+39 must lie in \[1e-09, 1e\+15\]"),
        ("lognormal(1, 1e5)", r"sigma=100000.0 must lie in \[0, 10\]"),
        ("normal(1, nan)", "is neither a number nor a law"),
        ("1e999", "delay=inf must be a finite number of at least 0"),
        ("1e39", r"delay=1e\+39 must lie in \[0, 1e\+15\]"),
        ("nan", "delay=nan must be a finite number of at least 0"),
        ("", "delay='' is neither a number nor a law"),
        ("uniform(-2)", r"delay='uniform\(-2\)': most=-2.0 must be a finite number ab"),
    ],
)
def test_what_is_no_law_is_one_sentence(text, says):
    with pytest.raises(ValueError, match=says) as error:
        build_plan(Config(step_seconds=1.0, delay=text))
    assert "\n" not in str(error.value)


def test_a_number_in_quotes_is_the_number(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('step_seconds = "0.05"\ndelay = " 1e-2 "\nbandwidth = "5e6"\n')
    written = from_settings(read_settings(path))
    plain = Config(step_seconds=0.05, delay=0.01)
    assert to_settings(written) == to_settings(plain)
    assert Config(delay="0.0") == Config()


@pytest.mark.parametrize("most", [1e15, 1e-9])
def test_no_law_draws_a_time_that_a_float32_cannot_hold(most):
    import jax

    keys = jax.random.split(jax.random.key(0), 10_000)
    for law in (
        exponential(most),
        uniform(most),
        normal(1.0, most),
        lognormal(most, 10),
    ):
        drawn = np.asarray(jax.vmap(law.sample)(keys))
        assert np.isfinite(drawn).all()
        assert not law.positive or (drawn > 0).all()


@pytest.mark.slow
def test_without_a_clock_rows_count_bytes_and_no_seconds(whole, tmp_path):
    metrics = read_run(whole.folder).metrics.to_pydict()
    visits = np.cumsum(metrics["cohort"])
    assert metrics["bytes_up"] == metrics["bytes_down"]  # SCAFFOLD: 2 models each way
    np.testing.assert_array_equal(metrics["bytes_up"], 2 * MODEL * visits)
    assert set(metrics["simulated_seconds"]) == {0.0}
    learning_curve(whole.folder, tmp_path / "a.png", against="bytes_up")
    with pytest.raises(ValueError, match="has no simulated clock; train with --step-s"):
        learning_curve(whole.folder, against="simulated_seconds")
    with pytest.raises(ValueError, match="against='time' is unknown; write one of rou"):
        learning_curve(whole.folder, against="time")


@pytest.mark.slow
def test_a_timed_run_counts_on_and_resumes_to_the_bit(tiny):
    timed = dict(
        sampler="earliest",
        step_seconds="lognormal(0.05, 0.5)",
        delay="exponential(2)",
        bandwidth=1e6,
    )
    whole, broken = tiny("whole", **timed), tiny("broken", **timed)
    result = run(whole)
    with pytest.raises(Stop):
        run(broken, progress=stop_after(3))
    run(broken, resume=True)
    assert numbers(broken.folder) == numbers(whole.folder)
    metrics = read_run(whole.folder).metrics.to_pydict()
    assert set(metrics["cohort"]) == {3.0}
    np.testing.assert_array_equal(metrics["bytes_up"], 2 * MODEL * 3 * np.arange(1, 8))
    # all start, and each receives and sends two models
    late = np.array(metrics["wasted_bytes"]) / (4 * MODEL * np.arange(1, 8))
    assert late.tolist() == [whole.num_clients - 3] * 7
    assert result.wasted_steps == metrics["wasted_steps"][-1] > 0
    seconds = np.diff([0.0, *metrics["simulated_seconds"]])
    assert (seconds > 8 * 2 * MODEL / 1e6).all()
    assert result.simulated_seconds == metrics["simulated_seconds"][-1]


@pytest.mark.slow
def test_a_run_of_a_version_that_did_not_count_the_late_is_read_and_resumed(tiny):
    config = tiny("old", sampler="earliest", step_seconds="lognormal(0.05, 0.5)")
    with pytest.raises(Stop):
        run(config, progress=stop_after(3))
    lacking = ["wasted_bytes", "wasted_steps"]
    for part in Path(config.folder, "metrics").glob("*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(lacking), part)
    relist(Path(config.folder))
    before = read_run(config.folder).metrics
    assert before.num_rows and not set(lacking) & set(before.column_names)
    result = run(config, resume=True)
    late = read_run(config.folder).metrics["wasted_bytes"].to_pylist()
    assert late[: before.num_rows] == [None] * before.num_rows
    left = len(late) - before.num_rows
    assert (
        result.wasted_bytes == late[-1] == left * 4 * MODEL * (config.num_clients - 3)
    )


@pytest.mark.slow
def test_an_asynchronous_run_shows_its_server_and_resumes_to_the_bit(tiny):
    settings = dict(
        algorithm="fedbuff",
        algorithm_options={"concurrency": 5},
        sampler="uniform",
        step_seconds="lognormal(0.05, 1.0)",
    )
    whole, broken = tiny("whole", **settings), tiny("broken", **settings)
    result = run(whole)
    with pytest.raises(Stop):
        run(broken, progress=stop_after(3))
    run(broken, resume=True)
    assert numbers(broken.folder) == numbers(whole.folder)
    metrics = read_run(whole.folder).metrics.to_pydict()
    assert metrics["arrived"] == [1] + 6 * [3] and metrics["in_flight"] == 7 * [2]
    assert max(metrics["staleness"]) > 0
    seconds = metrics["simulated_seconds"]
    assert (np.diff([0.0, *seconds]) > 0).all()
    assert result.simulated_seconds == seconds[-1]
    # who waits for all of a round waits longer
    steady = tiny("steady", **settings | {"algorithm_options": {"concurrency": 3}})
    assert run(steady).simulated_seconds > seconds[-1]
