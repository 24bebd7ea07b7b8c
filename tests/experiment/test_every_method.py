"""Every method of the list, from settings to the table of a finished run."""

import io

import numpy as np
import pytest
from rich.console import Console

from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.engine import calibrate
from fedjax_adapt.engine.build import make_round
from fedjax_adapt.experiment import read_run, run
from fedjax_adapt.experiment.build import build, uses_public
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.report.tables import summary_table

SMALL = {
    **{"model": "mlp", "model.widths": [8], "num_clients": 4, "partition": "dirichlet"},
    **{"rounds": 1, "num_steps": 2, "batch_size": 16, "devices": 1},
    "evaluate_clients": False,
}
ASYNCHRONOUS = {
    **{"step_seconds": 1.0, "sampler": "uniform", "participation": 0.5},
    "algorithm.concurrency": 3,
}
NEEDS = {
    "adacomm": {"algorithm.initial_steps": 2, "num_steps": None},
    "afl": {"algorithm.budget": 60.0, "num_steps": None},
    "fedasync": ASYNCHRONOUS,
    "fedbuff": ASYNCHRONOUS,
    "feddf": {"algorithm.distill_steps": 3, "algorithm.validate_every": 2},
    "fedftg": {"algorithm.iterations": 1, "algorithm.generated_batch": 4},
    "fedgen": {"algorithm.generator_steps": 1},
    "fedgsnr": {"num_steps": None},
    "fedveca": {"num_steps": None},
    "gift": {"algorithm.initial_steps": 2, "num_steps": None},
}
OF_PUBLIC = ("feddf", "fnr", "fedavg_pubft", "public_only")
# that show more than the others
SHOWING = (*NEEDS, *OF_PUBLIC[1:], "ditto", "fedssg")
# that command lines of pages run and show, in test_readme.py
ON_PAGES = ("fedbuff", "fedgsnr", "fedveca", "fnr", "gift")


def of_each(mark, but=()):
    marks = lambda name: () if name in SHOWING and name not in but else mark
    return [pytest.param(name, marks=marks(name)) for name in ALGORITHMS]


def config_of(name, **more):
    settings = SMALL | more | {"algorithm": name} | NEEDS.get(name, {})
    settings |= {"public": "holdout"} if name in OF_PUBLIC else {}
    return from_settings({k: v for k, v in settings.items() if v is not None})


@pytest.mark.parametrize("name", of_each(pytest.mark.slow))
def test_a_long_run_may_try_lanes(name, monkeypatch):
    def seconds(setup):  # traced, not timed
        make_round(*setup[:4])
        return 1.0

    alike = lambda setup: np.ones(setup.data.num_clients)
    monkeypatch.setattr(calibrate, "_seconds", seconds)
    monkeypatch.setattr(calibrate, "_steps_of_a_real_round", alike)
    for sampler in ("uniform", "bernoulli") if name == "fedssg" else ("uniform",):
        config = config_of(name, sampler=sampler, participation=0.5)
        assert calibrate.fastest_lanes(*build(config)[:4]) in (1, 2, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", of_each(pytest.mark.campaign, ON_PAGES))
def test_a_run_ends_with_a_record_and_a_table(name, tmp_path):
    config = config_of(name, folder=str(tmp_path / "run"))
    assert uses_public(build(config).algorithm) == (name in OF_PUBLIC)
    result = run(config)
    record = read_run(config.folder)
    assert record.metrics["round"].to_pylist()[-1] == result.rounds == 1
    assert record.metrics["accuracy"][-1].as_py() == result.accuracy
    assert np.isfinite(record.metrics["loss"].to_numpy()).all()
    assert result.local_steps > 0 or name == "public_only"
    console = Console(file=io.StringIO(), width=120)
    console.print(summary_table(config.folder))
    assert f"{100 * result.accuracy:.2f} % after 1 round" in console.file.getvalue()
