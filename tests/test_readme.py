"""What the README says is what the project does."""

import contextlib
import importlib.util
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import benchmark, constructed
from matplotlib.figure import Figure

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.cli import (
    COMMANDS,
    completion,
    doctor,
    finished,
    list_choices,
    main,
    partition,
    reproduce,
)
from fedjax_adapt.cli import run as cli_run
from fedjax_adapt.cli import sweep as cli_sweep
from fedjax_adapt.cli import tune as cli_tune
from fedjax_adapt.experiment.objects import REGISTERED
from fedjax_adapt.experiment.sweeps.grid import read_sweep

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")])


def blocks(language, page="README.md"):
    """The fenced blocks of a page in one language, in order."""
    text = (ROOT / page).read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README


def test_ci_runs_the_two_commands_to_the_letter():
    run = (ROOT / ".ci" / "run").read_text()
    install, test = (block.strip() for block in blocks("bash")[:2])
    assert "fedjax-adapt run" in install and "pytest" in test
    assert f"\n{install}\n" in run
    assert f"\n{test}\n" in run


def test_every_algorithm_has_a_row_and_every_row_an_algorithm():
    methods = (ROOT / "docs" / "methods.md").read_text()
    families = README[README.index("| family |") : README.index("Where a paper")]
    for page, found in {
        "docs/methods.md": re.findall(r"^\| `(\w+)` \|", methods, re.MULTILINE),
        "README.md": re.findall(r"`(\w+)`", families),
    }.items():
        wrong = sorted({*found} ^ {*ALGORITHMS})
        assert not wrong, f"{wrong}: in the table of {page} or the list, not in both"
        assert len(found) == len(ALGORITHMS), f"{page} has an algorithm twice"


def test_the_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 100


PAGES = [ROOT / "README.md", *DOCS, *sorted((ROOT / "benchmarks").glob("*.md"))]


def test_the_guide_of_step_policies_has_all():
    made = [getattr(fa, name) for name in fa.__all__]
    found = [
        one.__name__
        for one in made
        if inspect.isfunction(one)
        and inspect.signature(one).return_annotation in (fa.StepPolicy, "StepPolicy")
    ]
    text = (ROOT / "docs/guides/step-policies.md").read_text()
    assert len(found) > 5
    assert [n for n in found if not re.search(rf"fa\.{n}\b", text)] == []


def anchors(page):
    """What headings of a page are called in links, as GitHub makes it."""
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_links_exist(page):
    for path, anchor in re.findall(
        r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()
    ):
        there = page.parent / path if path else page
        assert there.exists(), path
        if anchor:
            assert anchor in anchors(there), f"{path}#{anchor}"


def test_current_figures_are_on_one_page_of_200_lines():
    assert len((ROOT / "benchmarks" / "README.md").read_text().splitlines()) <= 200


def test_the_readme_links_to_every_guide():
    pages = {str(page.relative_to(ROOT)) for page in DOCS}
    pages -= {"docs/index.md", "docs/tried.md"}
    assert pages <= {*re.findall(r"\]\(([^)#]+)\)", README)}


def test_every_promise_names_a_test_that_exists():
    page = (ROOT / "docs" / "reliability.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20 and len(page.splitlines()) <= 100
    for row in rows:
        found = re.search(r"`([\w/]+\.py)`: `(test_\w+)` \|$", row)
        assert found, row
        assert f"\ndef {found[2]}(" in (ROOT / "tests" / found[1]).read_text(), row


@pytest.fixture
def equations(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import equations

    return equations


@pytest.mark.parametrize(
    "text, shown",
    [
        ("theta_i^2 - mu", "θ<sub>i</sub><sup>2</sup> − μ"),
        ("server_lr max_steps lr_0", "server_lr max_steps lr<sub>0</sub>"),
        ("sum_{l < tau_i} <x>", "∑<sub>l &lt; τ<sub>i</sub></sub> &lt;x&gt;"),
        ("s_i' - mean_{b,k} z", "s<sub>i</sub>' − mean<sub>b,k</sub> z"),
        ("(a)^(3/2) sum_{i in S}", "(a)<sup>3/2</sup> ∑<sub>i ∈ S</sub>"),
        (
            "rho^tau_i, e^{s_g/T}",
            "ρ<sup>τ<sub>i</sub></sup>, e<sup>s<sub>g</sub>/T</sup>",
        ),
        ("e^{(s_p - s_g)/T}", "e<sup>(s<sub>p</sub> − s<sub>g</sub>)/T</sup>"),
        ("||grad F|| <= 1", "‖∇ F‖ ≤ 1"),
    ],
)
def test_an_equation_is_typeset(equations, text, shown):
    assert equations.formatted(text) == shown


def test_the_sides_of_an_equation_and_its_remark_stand_apart(equations):
    block = (
        "    w   <- w + D,     at the server\n         + 1       in all\n"
        "         = 2\n    name    w <- 1\n"
    )
    found = re.findall("<tr>(.*?)</tr>", equations.typeset(block))
    assert [re.findall("<td>(.*?)</td>", row) for row in found] == [
        ["w", "←", "w + D", "at the server"],
        ["", "", "+ 1", "in all"],
        ["", "=", "2"],
        ["name", "", "w ← 1"],
    ]


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pages

    return pages


@pytest.mark.slow
def test_the_pages_of_methods_have_the_curves_of_the_sweep(
    pages, tmp_path, monkeypatch
):
    seeds = {}
    for trial in read_sweep(ROOT / "benchmarks" / "methods.toml").trials:
        seeds.setdefault(trial.config.algorithm, []).append(trial.config.seed)
    assert seeds == dict.fromkeys(seeds, [0, 1, 2]) and {*seeds} <= {*ALGORITHMS}
    personal = {name for name in seeds if constructed(name).local.personal is not None}
    assert {*pages.NOTES} == {*personal, "gift"}
    with monkeypatch.context() as patch:  # writing all takes seconds
        patch.setattr(Figure, "savefig", lambda figure, path: path.touch())
        said = {name: pages._curve(name, tmp_path) for name in seeds}
    assert {path.stem for path in tmp_path.glob("*.svg")} == {*seeds}
    for name in ("fedavg", "scaffold", "public_only", "fedbuff"):
        assert pages._curve(name, tmp_path) == said[name]
        assert "</svg>" in (tmp_path / f"{name}.svg").read_text()
    assert pages._curve("of_tomorrow", tmp_path) == ""
    assert "The digits on 20 clients, 50% of them in a round, lr 0.1" in said["fedavg"]
    # a client sends and is sent a control variate besides the model
    twice = "It took 2.00 times the bytes to clients, 2.00 times the bytes from them, "
    assert f"{twice}1.00 times the local steps of FedAvg." in said["scaffold"]
    assert "1.00 times the local steps of FedAvg. C fell" in said["gift"]
    # no client, and on the public set as many steps as one of FNR in a round
    assert "0.00 times the local steps of FedAvg, and " in said["public_only"]
    # the first rounds of an asynchronous server only send clients off
    assert "It took 0.98 times the bytes to clients" in said["fedbuff"]


def test_a_curve_is_the_mean_in_a_band_of_a_deviation(pages, tmp_path, monkeypatch):
    rows = "algorithm,round,n,accuracy,deviation,bytes_down,bytes_up,local_steps,"
    rows += "public_steps\nfedavg,1,3,0.5,0.1,1,1,1,0\nfedavg,2,3,0.7,0.2,2,2,2,0\n"
    (tmp_path / "curves.csv").write_text(f"# commit 0, a machine\n{rows}")
    monkeypatch.setattr(pages, "newest_curves", lambda: tmp_path / "curves.csv")
    drawn = []
    monkeypatch.setattr(pages, "Figure", lambda **_: drawn.append(Figure()) or drawn[0])
    said = pages._curve("fedavg", tmp_path)
    assert "After round 2: 70.00 ± 20.00 %." in said and said.endswith("a machine.\n")
    (axes,) = drawn[0].axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50, 70])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((40, 90))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_page_of_a_method_says_all_that_its_docstring_says(pages, name):
    module = inspect.getmodule(ALGORITHMS[name])
    text = inspect.getdoc(module)
    page = pages._method(name, ALGORITHMS[name])
    blocks = re.findall(r"(?m)(?<=\n\n)(?:^    .*\n)+", text)
    assert page.count('<table class="equations">') == len(blocks)
    assert page.count("<tr>") == sum(block.count("\n") for block in blocks)
    words = re.findall(r"\b[a-z]{4,}", re.sub(r"\S*[_^<>/]\S*", " ", text))
    symbols = {"alpha", "beta", "gamma", "delta", "theta", "kappa", "lambda", "sigma"}
    symbols |= {"epsilon", "grad", "sqrt"}
    for word in {*words} - symbols:
        assert word in page, word


@pytest.mark.slow
def test_the_picture_of_step_counts_is_of_a_run(monkeypatch):
    script = benchmark("step_counts")
    monkeypatch.setattr(script, "ROUNDS", 3)
    steps = script.step_counts()
    assert steps.shape == (3, 10) and len(np.unique(steps[-1])) > 3
    # the budget is that of 20 steps for everyone
    np.testing.assert_allclose(steps.mean(1), 20, atol=1)


def test_a_table_of_your_own_becomes_clients():
    output, names = io.StringIO(), {}
    with contextlib.redirect_stdout(output):
        for code in blocks("python", "docs/guides/own-data.md"):
            exec(compile(code, "own-data.md", "exec"), names)
    assert "3 clients, 125 examples float32[8], 3 classes" in output.getvalue()
    assert names["held"].client_tests.size.tolist() == [10, 10, 10]
    assert "3 clients, 3 examples float32[2], 2 classes" in output.getvalue()
    assert "('ann', 'bob', 'cy') ('no', 'yes')" in output.getvalue()
    assert names["mine"].client_tests.size.tolist() == [1, 1, 1]
    assert "\n20 71 72\n" in output.getvalue()  # as the command of the page says
    assert "240 training and 60 test examples float32[4]" in output.getvalue()


@pytest.mark.slow
def test_a_model_of_your_own_trains(capsys):
    names = {}
    with jax.numpy_rank_promotion("allow"):  # as a user has it
        for code in blocks("python", "docs/guides/own-model.md"):
            exec(compile(code, "own-model.md", "exec"), names)
    net, functions = map(float, capsys.readouterr().out.split())
    assert net > 0.8 and functions > 0.8
    assert names["task"].apply_train is not None  # dropout


@pytest.mark.slow
def test_gifts_first_figure_stops_where_the_page_says(capsys):
    """The closed form: sum of a_i x_i / sum of a_i, a_i = 1 - (1 - lr L_i)^steps."""
    (code,) = blocks("python", "docs/reproductions.md")
    with jax.numpy_rank_promotion("allow"):  # as a user has it
        exec(compile(code, "reproductions.md", "exec"), {})
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    steps = np.array([int(steps) for steps, _ in shown])
    one, other = 1 - 0.8**steps, 1 - 0.96**steps
    stops = (10 * other - 2 * one) / (one + other)
    np.testing.assert_allclose([float(at) for _, at in shown], stops, atol=1e-3)
    said = (ROOT / "docs/reproductions.md").read_text()
    first, *middle, last = [at for _, at in shown]
    assert f"prints {', '.join([first, *middle])} and {last}." in said


def test_every_page_with_a_snippet_is_executed():
    executed = {"README.md", "data.md", "own-algorithm.md", "performance.md"}
    executed |= {"step-policies.md", "personal-and-private.md", "callbacks.md"}
    executed |= {"peers.md", "own-data.md", "own-model.md", "methods.md"}
    executed |= {"reproductions.md"}
    # in test_shards.py and test_tune.py
    executed |= {"machines.md", "choosing-settings.md"}
    with_code = {
        page.name for page in (ROOT / "README.md", *DOCS) if blocks("python", page)
    }
    assert with_code == executed


PEERS = {"fedjax": "fedjax-jax0.10", "flwr": "flower", "pfl": "pfl"}
PLACE = "FEDJAX_ADAPT_PEERS"  # the folder of run.py --venvs


def programs():
    """The blocks of the page of peers: the task, ours, and theirs by package."""
    task, *others = blocks("python", "docs/guides/peers.md")
    first = lambda code: re.search(
        rf"^(?:from|import) ({'|'.join(PEERS)})\b", code, re.M
    )
    theirs = {found[1]: code for code in others if (found := first(code))}
    return task, [code for code in others if not first(code)], theirs


def claimed(code):
    """What comments say that a program prints."""
    return [*map(float, re.findall(r"^print.*  # ([\d.]+)$", code, re.MULTILINE))]


def test_every_simulator_gets_what_this_one_gets():
    _, ours, theirs = programs()
    base, *second = (number for code in ours for number in claimed(code))
    assert [*theirs] == [*PEERS] and len({base, *second}) == 4
    found = [claimed(code) for code in theirs.values()]
    assert found == [[base, number] for number in second]


@pytest.mark.slow
def test_what_others_train_is_trained_here(capsys):
    task, ours, _ = programs()
    names = {}
    for code in (task, *ours):
        exec(compile(code, "peers.md", "exec"), names)
    printed = [*map(float, capsys.readouterr().out.split())]
    expected = [number for code in ours for number in claimed(code)]
    # of 500 examples; other processors round otherwise
    assert printed == pytest.approx(expected, abs=0.004)


def python_of(package):
    """A Python that has it: this one, or that of benchmarks/peers/locks."""
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    if place := os.environ.get(PLACE):
        python = Path(place).absolute() / PEERS[package] / "bin" / "python"
        assert python.exists(), f"{PLACE}={place} has no {python}"
        return python
    pytest.skip(
        f"there is no {package} here: after `python benchmarks/peers/run.py --venvs DIR "
        f"--make-venvs --check` write {PLACE}=DIR"
    )


@pytest.mark.slow
@pytest.mark.parametrize("package", PEERS)
def test_the_program_for_another_simulator_prints_what_it_says(package, tmp_path):
    task, _, theirs = programs()
    (tmp_path / "theirs.py").write_text(task + theirs[package])
    silent = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [python_of(package), "theirs.py"],
        cwd=tmp_path,
        env=os.environ | silent | {"JAX_PLATFORMS": "cpu", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = [*map(float, re.findall(r"^[\d.]+$", done.stdout, re.MULTILINE))]
    assert printed == pytest.approx(claimed(theirs[package]), abs=0.004), done.stdout


LINES = [
    (page.relative_to(ROOT), line.partition(" > ")[0])
    for page in (ROOT / "README.md", *DOCS)
    for block in blocks("bash", page)
    for line in block.splitlines()
    if line.startswith("fedjax-adapt ")
]


@pytest.mark.parametrize("page, line", LINES, ids=lambda value: str(value)[:60])
def test_every_command_line_is_one(page, line, tmp_path, monkeypatch):
    check_command_line(line, tmp_path, monkeypatch)


@pytest.mark.parametrize("command", [*COMMANDS, "list"])
def test_the_help_of_a_command_ends_with_examples_that_are_read(
    command, capsys, tmp_path, monkeypatch
):
    assert main([command, "--help"]) == 0
    about, _, text = capsys.readouterr().out.rpartition("examples:\n")
    examples = [line.strip() for line in text.splitlines()]
    assert about and 2 <= len(examples) <= 3
    assert main(["--help"]) == 0
    assert f"  {examples[0]}\n" in capsys.readouterr().out
    for line in examples:
        assert line.split()[:2] == ["fedjax-adapt", command]
        words = re.split(r" \| | >>? ", line)[0]
        check_command_line(words, tmp_path, monkeypatch)


def write_files(tmp_path):
    """Writes the files that command lines name."""
    (tmp_path / "my_file.py").write_text(
        "import fedjax_adapt as fa\n"
        "def leash(strength: float = 0.3) -> fa.Algorithm:\n"
        '    """A method."""\n'
        "    return fa.Algorithm()\n"
        "def net(input_shape, num_classes):\n"
        '    """A model."""\n'
        "    return fa.models.linear(input_shape, num_classes)\n"
    )
    run_file, sweep_file = blocks("toml", "docs/runs.md")
    (space,) = blocks("toml", "docs/guides/choosing-settings.md")
    (tmp_path / "run.toml").write_text(run_file)
    (tmp_path / "sweep.toml").write_text(sweep_file)
    (tmp_path / "space.toml").write_text(space)


def check_command_line(line, tmp_path, monkeypatch):
    """Its flags are read; where it would train or look for runs, nothing is done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    write_files(tmp_path)
    run_file = (tmp_path / "run.toml").read_text()
    (tmp_path / "DIR").mkdir(exist_ok=True)  # of data
    for folder in re.findall(r"runs/[\w/]+", line):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "config.toml").write_text(run_file)
        (tmp_path / folder / "sweep.toml").write_text("")
    line = line.replace("[", "").replace("]", "")
    _, command, *words = shlex.split(os.path.expandvars(line), comments=True)
    reached = lambda *given, **named: 7
    for module, names in {
        reproduce: ("_reproduce", "list_items"),
        reproduce.process: ("take_devices", "import_rest"),
        finished: (
            *("print_comparison", "comparison_curves", "sheets", "as_text"),
            *("report_page", "write_text"),
        ),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, reached)
    if line.startswith("fedjax-adapt sweep merge runs/"):
        return  # one folder, and no flags; see test_shards.py
    if "--help" in words:
        with pytest.raises(SystemExit, match="^0$"):
            READERS[command](words)
    else:
        READERS[command](words)


# what is not here: data, packages, other machines, hours
ELSEWHERE = (
    *("mnist", "cifar10", "mine.npz", "DIR", "wandb", "--coordinator-address", "SLURM"),
    *("sweep merge", "reproduce fedssg-table4"),
    *("runs/reproduce", "runs/clients", "runs/table2"),
)
HERE = [
    (page, line) for page, line in LINES if not any(word in line for word in ELSEWHERE)
]


def small(words):
    """Flags that make a run of these words shorter and change no other of them."""
    clients = "20" if "fedbuff" in words else "6"  # of which so many are under way
    given = {"--rounds": "2", "--num-clients": clients, "--devices": "1"}
    if "--personal" not in words:  # which names layers of the model
        given["--model"] = "linear"
    told = {"--resume", "--help", "--config"} & {*words}
    pairs = [] if told else [pair for pair in given.items() if pair[0] not in words]
    return [word for pair in pairs for word in pair]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("page", dict.fromkeys(page for page, _ in HERE), ids=str)
def test_the_command_lines_of_a_page_run_one_after_the_other(
    page, elsewhere, monkeypatch, capsys
):
    """On the digits, of two rounds and trials; runs that a page does not make are made.

    Where a page names no model, it is a linear one of six clients, on one device.
    """
    monkeypatch.setitem(REGISTERED, "algorithm", {})
    write_files(elsewhere)
    for file in ("run.toml", "sweep.toml", "space.toml"):
        tiny = 'rounds = 2\nmodel = "linear"\nnum_clients = 6\ndevices = 1'
        text = re.sub(r"(?m)^rounds *=.*", tiny, Path(file).read_text())
        text = text.replace("500", "10").replace('"mnist"', '"digits"')
        Path(file).write_text(text.replace("seed = [0, 1, 2]", "seed = [0, 1]"))
    for line in [line for of, line in HERE if of == page]:
        _, command, *words = shlex.split(re.sub(r"[\[\]]", "", line), comments=True)
        short = {"--rounds": "2", "--trials": "2", "--orders": "2"}
        pairs = zip(["", *words], words, strict=False)
        words = [short.get(before, word) for before, word in pairs]
        if command == "run":
            words += small(words)
        if command == "tune" and "--trials" not in words:
            words += ["--trials", "2"]
        if command in ("compare", "report"):
            for folder in (word for word in words if word.startswith("runs/")):
                if not Path(folder).exists():
                    assert main(["run", "--folder", folder, *small([])]) == 0
        code = main([command, *words])
        assert code == 0, f"{line}: {capsys.readouterr().err}"


READERS = {
    "run": cli_run.parse,
    "sweep": cli_sweep.parse,
    "tune": cli_tune.parse,
    "partition": partition.parse,
    "contributions": finished.parse_contributions,
    "compare": finished.compare,
    "report": finished.report,
    "replay": finished.parse_replay,
    "reproduce": reproduce.reproduce,
    "list": list_choices,
    "doctor": doctor.parse,
    "completion": completion.completion,
}


@pytest.mark.parametrize("page", ["docs/runs.md", "docs/guides/many-clients.md"])
def test_the_sweep_of_a_page_is_one(page, tmp_path):
    (tmp_path / "sweep.toml").write_text(blocks("toml", page)[-1])
    assert len(read_sweep(tmp_path / "sweep.toml").trials) == 12


@pytest.mark.slow
def test_the_example_prints_its_number_and_the_others_go_on_from_it(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(REGISTERED, "algorithm", {})
    (code,) = blocks("python")
    steps, policy = blocks("python", "docs/guides/step-policies.md")
    personal, around = blocks("python", "docs/guides/personal-and-private.md")
    (callback,) = blocks("python", "docs/guides/callbacks.md")
    own, with_state, of_server, runs = blocks("python", "docs/own-algorithm.md")
    (memory,) = blocks("python", "docs/performance.md")
    (local,) = blocks("python", "docs/methods.md")
    (skews,) = blocks("python", "docs/data.md")
    printed = blocks("")[0]
    assert len([line for line in code.splitlines() if line]) == 15
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        names = {}
        exec(compile(code, "README.md", "exec"), names)
    claimed, got = (
        float(re.search(r"[\d.]+", text)[0]) for text in (printed, output.getvalue())
    )
    # other processors round otherwise; 360 test examples, so 0.01 is four of them
    assert got == pytest.approx(claimed, abs=0.01)
    with contextlib.redirect_stdout(output):
        exec(compile(callback, "README.md", "exec"), names)
        assert len(names["losses"]) == 3 and int(names["state"].round) == 63
        exec(compile(steps, "README.md", "exec"), names)
        assert isinstance(names["algorithm"], names["fa"].Algorithm)
        exec(compile(policy, "README.md", "exec"), names)
        parts = [names[n] for n in ("algorithm", "task", "data", "plan")]
        begun = names["fa"].init_state(*parts, jax.random.key(0))
        _, info = names["fa"].make_round(*parts)(begun, jax.random.key(1))
        whole = -(-names["data"].size[info.cohort] // names["plan"].batch_size)
        assert (info.num_steps == (whole + 1) // 2).all()
        trained = names["state"]
        exec(compile(personal, "README.md", "exec"), names)
        personal = names["own"].accuracy  # a head is good for its client's own labels
        assert personal.shape == (30,) and personal.mean() > 0.9
        exec(compile(around, "README.md", "exec"), names)
        assert 5 < names["spent"] < 7
        names["state"] = trained
        for name in ("small", "robust", "private"):
            fa, task, data = (names[given] for given in ("fa", "task", "data"))
            fa.make_round(names[name], task, data, names["plan"])  # traces every part
        exec(compile(own, "README.md", "exec"), names)
        assert isinstance(names["leash"](), names["fa"].Algorithm)
        exec(compile(local, "README.md", "exec"), names)
        fa.make_round(names["local_adam"](), task, data, names["plan"])
        exec(compile(with_state, "README.md", "exec"), names)
        round_fn = fa.make_round(names["inertia"](), task, data, names["plan"])
        keys = jax.random.split(jax.random.key(1), 2)
        begun = fa.init_state(names["inertia"](), task, data, names["plan"], keys[0])
        moved = fa.train(round_fn, begun, keys)[0].clients
        assert any(leaf.any() for leaf in jax.tree.leaves(moved))
        exec(compile(of_server, "README.md", "exec"), names)
        for norm, cut in ((1e-3, 1e-3), (1e3, 0.1)):
            clipped = names["clipped"](norm)
            round_fn = fa.make_round(clipped, task, data, names["plan"])
            begun = fa.init_state(clipped, task, data, names["plan"], keys[0])
            far = float(fa.train(round_fn, begun, keys[:1])[1].delta_norm[0])
            assert far == pytest.approx(cut, rel=1e-3) if norm < 1 else far > cut, far
        exec(compile(runs, "README.md", "exec"), names)
        figures = names["loaded"].summary
        assert figures["stopped_round"] < 20 and figures["accuracy"] > 0.9
        assert int(names["more"].round) == figures["stopped_round"] + 5
        assert names["swept"].num_rows == 9
        exec(compile(memory, "README.md", "exec"), names)
        assert "client state 6.32 MiB" in output.getvalue()
        exec(compile(skews, "README.md", "exec"), names)
    assert names["models"].keys() == {"sel", "all"}
    fa, task, data = (names[name] for name in ("fa", "task", "data"))
    assert fa.evaluate(task, names["models"]["all"], data.test).accuracy > 0.93
    own = fa.evaluate_clients(task, names["state"].params, data).accuracy
    assert sorted(own.argsort()[:2].tolist()) == [0, 3]
    assert sorted(own.tolist())[15] > 0.93
