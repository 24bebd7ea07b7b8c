import io
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

import jax
import pytest
from helpers import QUICK_RUN, fedjax_adapt

from fedjax_adapt import __version__, cli
from fedjax_adapt.cli import process
from fedjax_adapt.cli.flags import Request
from fedjax_adapt.cli.output import print_json
from fedjax_adapt.cli.process import nothing_to_resume, reporting
from fedjax_adapt.cli.run import parse
from fedjax_adapt.experiment import checkpoint, read_run
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.folder import run_folder
from fedjax_adapt.experiment.loop import Stopped
from fedjax_adapt.experiment.run import Progress

pytestmark = pytest.mark.usefixtures("elsewhere")

QUICK = f"{QUICK_RUN} --checkpoint-every 2"
ON_ALL_DEVICES = QUICK.replace(" --devices 1", "")
shares_programs = pytest.mark.usefixtures("shared_programs")


@pytest.mark.parametrize(
    "line, says",
    [
        ("rn", "'rn' is not a command; did you mean 'run'?"),
        ("list all", "list takes no arguments, so leave 'all' out."),
        ("run --num-cliens 3", "--num-cliens is not a flag of this run; did you mean"),
        ("run --num-clients x", "--num-clients x: write an integer or none."),
        ("run --rounds 1e3", "--rounds 1e3: write an integer."),
        (
            "run --num_clients",
            "--num-clients: it needs a value; write an integer or none.",
        ),
        ("run --lr 1 2", "--lr 1 2: it takes one value; write a number."),
        ("run --gate totl", "--gate totl: write one of 'total', 'current', 'none'."),
        ("run --widths 3 x", "--widths 3 x: write integers."),
        ("run --clip-norm off", "--clip-norm off: write a number or none."),
        (
            "run --no-resume",
            "--no-resume is not a flag of this run; did you mean --res",
        ),
        (
            "run --algorithm fedprox --no-algorithm.mu",
            "--no-algorithm.mu is not a flag of this run; did you mean --mu?",
        ),
        (
            "run --no-evaluate-clients true",
            "--no-evaluate-clients true: it takes no value, so leave 'true' out.",
        ),
        ("run --resume 3", "--resume 3: it takes no value, so leave '3' out."),
        ("nonsense", "'nonsense' is not a command; write one of run, sweep,"),
        (
            "run digits",
            "digits is not a flag; flags begin with --; fedjax-adapt run --h",
        ),
        (
            "run 5",
            "5 is not a flag; flags begin with --; fedjax-adapt run --help shows",
        ),
        ("run lr 3", "lr is not a flag; did you mean --lr?"),
        ("run --lr 3 --lr=3", "--lr is given twice; write it once."),
        ("run --lr=3 --lr 3", "--lr is given twice; write it once."),
        (
            "run --evaluate-clients --no-evaluate-clients",
            "--evaluate-clients and --no-evaluate-clients are the same setting; write",
        ),
        ("run -lr 3", "-lr is not a flag; did you mean --lr?"),
        ("run --lrate 3", "--lrate is not a flag of this run; did you mean --lr?"),
        (
            "run --num-processs 2",
            "--num-processs is not a flag of this run; did you mean",
        ),
        (
            "compare a --lr 1",
            "--lr is a setting of runs, not of compare; leave it out.",
        ),
        (
            "run --folder=",
            "--folder '' is empty; write a value, or leave --folder out.",
        ),
        ("run --partition nope", "partition='nope' is unknown; write one of"),
        (
            "compare nosuch",
            "nosuch holds no run: it has no config.toml; write the fold",
        ),
        ("contributions nosuch", "nosuch holds no run: it has no config.toml; write"),
        ("run --epochs 1e12", "epochs=1000000000000.0 must lie in (0, 1000000]."),
        (
            "run --algorithm fedavg --alpha 1",
            "--alpha is not a flag of this run; it is an option of algorithm fedasync, ",
        ),
        ("run --algorithm", "--algorithm: it needs a value"),
        (
            "run --algorithm fedsg",
            "algorithm='fedsg' is unknown; did you mean 'fedssg'",
        ),
        ("run --dataset minst", "dataset='minst' is unknown; did you mean 'mnist'?"),
        ("run --partition dirichle", "partition='dirichle' is unknown; did you mean"),
        ("run --model mpl", "model='mpl' is unknown; did you mean 'mlp'?"),
        ("run --participation 1.5", "participation=1.5 must lie in (0, 1]."),
        ("run --lr -0.1", "lr=-0.1 must be a finite number above 0."),
        ("run --num-clients 5000", "num_clients=5000 but there are only 1437"),
        ("run --dataset mnist --data-dir nowhere", "data_dir=nowhere does not exist"),
        (
            "run --step-seconds fast",
            "step_seconds='fast' is neither a number nor a law",
        ),
        (
            "run --bandwidth 1e6",
            "bandwidth=1000000.0 needs step_seconds, the simulated seconds",
        ),
        (
            "run --match runs/none",
            "match=runs/none holds no run; write the folder of a",
        ),
        (
            "run --algorithm fedavg --controls",
            "controls are those of algorithm=fnr, but algorithm=fedavg; leave --con",
        ),
        (
            "run --folder none --resume --controls",
            "--folder none holds no run to resume; write the folder of one",
        ),
        (
            "run --algorithm fnr --controls --json",
            "--json is of one run, and --controls makes several; leave it out, and",
        ),
        (
            "run --dry-run --coordinator-address here:1 --num-processes 2 --process-id 1",
            "--dry-run is about the devices of one process; leave it out, or the flags",
        ),
        ("run --algorithm fnr --controls 3", "--controls 3: it takes no value, so"),
        (
            "run --num-processes 2 --process-id 0",
            "processes that make a run together need --coordinator-address HOST:PORT, "
            "--num-processes and --process-id each; write --coordinator-address as well.",
        ),
        (
            "run --coordinator-address here:1 --num-processes 2 --process-id 2",
            "process_id=2 but the processes of num_processes=2 are numbered 0 to 1; give",
        ),
        (
            "run --coordinator-address here:1 --num-processes 0 --process-id 0",
            "num_processes=0 must be an integer >= 1.",
        ),
        (
            "run --coordinator-address here --num-processes 2 --process-id 0",
            "coordinator_address=here names no port from 1 to 65535; write HOST:PORT of",
        ),
        (
            "run --coordinator-address here:65536 --num-processes 2 --process-id 0",
            "coordinator_address=here:65536 names no port from 1 to 65535; write HOST:",
        ),
        (
            "run --coordinator-address auto --process-id 0",
            "coordinator_address=auto finds out num_processes and process_id by itself;",
        ),
        (
            "run --coordinator-address here:1 --num-processes 2 --process-id 0 --devices 1",
            "devices=1 are too few for num_processes=2, which share them; write devices=2",
        ),
        (
            "run --algorithm fnr --controls --coordinator-address here:1 "
            "--num-processes 2 --process-id 0",
            "controls are run by one process; leave --controls out, or the flags about",
        ),
        ("run --config none.toml", "config=none.toml cannot be read"),
        (
            "run --algorithm feddf --patience 0",
            "patience=0 must be an integer >= 1, or none for no early stopping.",
        ),
        (
            "run --algorithm feddf --patience none --return-best-incl-init",
            "return_best_incl_init=true chooses by validation, but patience=none valid",
        ),
        (
            "run --initialization-timeout 9",
            "processes that make a run together need --coordinator-address HOST:PORT, ",
        ),
    ],
)
def test_a_mistake_is_one_sentence_exit_code_2_and_nothing_written(
    capsys, elsewhere, line, says
):
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, out) == (2, "")
    assert err.startswith("fedjax-adapt: " + says)
    assert err.count("\n") == 1 and err.endswith("\n")
    assert list(elsewhere.iterdir()) == []


def test_a_line_in_one_text_is_no_list_of_words(capsys):
    assert cli.main("run --rounds 3") == 2
    says = "main got 'run --rounds 3'; give its words, main(['run', '--rounds', '3'])."
    assert capsys.readouterr().err == f"fedjax-adapt: {says}\n"


@pytest.mark.parametrize("command", ["compare", "contributions", "report", "sweep"])
def test_a_path_that_is_empty_is_one_sentence(capsys, command):
    assert cli.main([command, "", "--devices", "1"]) == 2
    says = "a path before the flags is empty; write that of a file or a folder.\n"
    assert capsys.readouterr().err == f"fedjax-adapt: {command}: {says}"


def test_a_mistake_in_the_file_names_file_and_line(capsys, elsewhere):
    (elsewhere / "run.toml").write_text("seed = 1\nround = 3\n")
    code, _, err = fedjax_adapt(capsys, "run --config run.toml")
    sentence = "run.toml, line 2: round is unknown; did you mean rounds?"
    assert (code, err) == (2, f"fedjax-adapt: {sentence}\n")


def test_a_sweep_is_no_configuration_of_a_run(capsys, elsewhere):
    (elsewhere / "sweep.toml").write_text("[run]\nrounds = 1\n[grid]\nlr = [0.1]\n")
    code, _, err = fedjax_adapt(capsys, "run --config sweep.toml")
    says = "sweep.toml is a sweep, no run; write fedjax-adapt sweep sweep.toml."
    assert (code, err) == (2, f"fedjax-adapt: {says}\n")


def settings(line):
    return parse(line.split()).settings


def test_flags_may_be_written_with_dashes_or_underscores():
    assert settings("--num_clients 3") == settings("--num-clients=3")
    assert settings("--num-clients 3")["num_clients"] == 3


@pytest.mark.parametrize(
    "line, name, value",
    [
        ("--folder 5", "folder", "5"),
        ("--folder a=b", "folder", "a=b"),
        ("--folder none", "folder", None),
        ("--num-clients none", "num_clients", None),
        ("--rounds 1_000", "rounds", 1000),
        ("--lr 5", "lr", 5.0),
        ("--lr -.5", "lr", -0.5),
        ("--lr -inf", "lr", -math.inf),
        ("--lr -Infinity", "lr", -math.inf),
        ("--clip-norm=none", "clip_norm", None),
        ("--devices auto", "devices", "auto"),
        ("--devices 2", "devices", 2),
        ("--targets=0.5 1", "targets", (0.5, 1.0)),
        ("--targets", "targets", ()),
        ("--corrupt-clients 4", "corrupt_clients", (4,)),
        ("--partition fedveca_case --case 2", "partition.case", 2),
        ("--algorithm fedper --personal 5", "algorithm.personal", "5"),
        ("--algorithm fedper --personal 5 a", "algorithm.personal", ("5", "a")),
        ("--algorithm feddisco --reference none", "algorithm.reference", None),
        ("--algorithm feddisco --reference 0.5", "algorithm.reference", (0.5,)),
        ("--no_evaluate_clients", "evaluate_clients", False),
        ("--no-algorithm.gate-alignment", "algorithm.gate_alignment", False),
        ("--algorithm.no-gate-alignment", "algorithm.gate_alignment", False),
    ],
)
def test_a_value_is_what_its_words_say_to_the_type_of_its_flag(line, name, value):
    found = settings(line)[name]
    assert (type(found), found) == (type(value), value)


def test_the_command_line_wins_over_the_file(elsewhere):
    (elsewhere / "a.toml").write_text("algorithm = 'fedprox'\nmu = 0.5\nrounds = 3\n")
    both = settings("--config a.toml --rounds 4")
    assert (both["algorithm"], both["algorithm.mu"], both["rounds"]) == (
        "fedprox",
        0.5,
        4,
    )
    other = settings("--config a.toml --algorithm fedssg")
    assert "algorithm.mu" not in other and other["rounds"] == 3
    namesake = settings("--config a.toml --algorithm moon")
    assert namesake["algorithm.mu"] == 1  # its own


@pytest.mark.slow
def test_what_of_the_file_a_flag_leaves_without_an_owner_is_said(capsys, elsewhere):
    file = "algorithm = 'fedprox'\nmu = 0.5\nmodel = 'mlp'\nwidths = [9]\nlr = 0.2\n"
    (elsewhere / "a.toml").write_text(file)
    note = lambda line: parse(f"--config a.toml {line}".split()).note
    assert note("") is note("--algorithm fedprox --model mlp") is None
    assert note("--algorithm fedssg") == (
        "the file's mu=0.5 of algorithm=fedprox is left out: a flag chooses another."
    )
    both = note("--algorithm fedavg --model linear")
    assert "mu=0.5 of algorithm=fedprox and widths=(9,) of model=mlp is left" in both
    (elsewhere / "a.toml").write_text("algorithm = 'fedprox'\nmu = 1e-4\n")
    assert note("--algorithm fedavg") is None  # the default, as a run's file has it
    line = "run --config a.toml --algorithm fedavg --folder x --num-clients 5000"
    (elsewhere / "a.toml").write_text(file)
    _, _, err = fedjax_adapt(capsys, line)
    assert err.splitlines()[0].startswith("fedjax-adapt: the file's mu=0.5 of algo")


def test_a_quantity_is_a_number_or_a_text():
    read = settings("--step-seconds lognormal(0.05,0.5) --bandwidth 1e6")
    assert (read["step_seconds"], read["bandwidth"]) == ("lognormal(0.05,0.5)", 1e6)


@pytest.mark.slow
def test_a_file_may_set_what_a_flag_takes_back(elsewhere):
    (elsewhere / "a.toml").write_text("gate_alignment = true\nclip_norm = 'none'\n")
    assert settings("--config a.toml")["algorithm.gate_alignment"] is True
    assert settings("--config a.toml")["clip_norm"] is None
    taken_back = settings("--config a.toml --no-gate-alignment --clip-norm 5")
    assert (taken_back["algorithm.gate_alignment"], taken_back["clip_norm"]) == (
        False,
        5.0,
    )
    assert settings("--clip-norm none --widths 3 4")["clip_norm"] is None
    none_or_truth = ("none", "true", "false")
    told = [settings(f"--algorithm gift --reset-ema {word}") for word in none_or_truth]
    assert [each["algorithm.reset_ema"] for each in told] == [None, True, False]
    assert settings("--augment none --shuffle=none")["augment"] == "none"


@pytest.mark.slow
@shares_programs
def test_a_run_writes_a_folder_and_prints_where_it_lies(capsys, elsewhere):
    code, out, err = fedjax_adapt(capsys, f"{QUICK} --folder here/mine --seed 5")
    assert (code, err) == (0, "")
    record = read_run("here/mine")
    assert record.config["seed"] == 5 and record.summary["rounds"] == 7
    assert "round 7/7  accuracy" in out and "here/mine" in out
    assert f"{100 * record.summary['accuracy']:.2f} % after 7 rounds" in out
    assert (elsewhere / "here/mine/learning_curve.png").exists()

    again = "run --config here/mine/config.toml --folder twin"
    assert fedjax_adapt(capsys, again)[0] == 0
    assert read_run("twin").metrics["loss"] == record.metrics["loss"]
    assert read_run("twin").summary["config_hash"] == record.summary["config_hash"]

    code, _, err = fedjax_adapt(capsys, again)
    assert code == 2 and "finished; a finished run is never overwritten" in err

    written = {path: path.stat().st_mtime_ns for path in Path("twin").rglob("*")}
    said = "twin holds this run, finished; nothing is left to run.\n"
    for line in (f"{again} --resume", "run --folder twin --resume"):
        assert fedjax_adapt(capsys, line) == (0, said, "")
    note = (
        "fedjax-adapt: --targets came after the end of the run and changed nothing; "
        "compare twin --target tells of other accuracies.\n"
    )
    assert fedjax_adapt(capsys, f"{line} --targets 0.5") == (0, said, note)
    note = "fedjax-adapt: --evaluate-clients came after the end of the run and changed noth"
    err = fedjax_adapt(capsys, f"{line} --no-evaluate-clients")[2]
    assert err.startswith(note) and "compare" not in err
    code, _, err = fedjax_adapt(capsys, f"{again} --resume --lr 0.3")
    assert code == 2 and "folder=twin holds a run with lr=0.1, not lr=0.3" in err
    assert {p: p.stat().st_mtime_ns for p in written} == written


@pytest.mark.slow
@shares_programs
def test_a_run_as_json_is_one_object_and_all_else_is_on_standard_error(capsys):
    line = f"{QUICK} --folder mine --json"
    code, out, err = fedjax_adapt(capsys, f"{line} --dry-run")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["status"], said["folder"], said["begins"]) == ("dry run", "mine", 0)
    assert said["rounds"]["clients"] == 6 and said["memory"]["peak"] > 0

    code, out, err = fedjax_adapt(capsys, line)
    said, summary = json.loads(out), read_run("mine").summary
    assert code == 0 and said == {"status": "finished", **summary}
    assert "round 7/7  accuracy" in err and "run      mine" in err

    Path("mine").rename("moved")
    code, again, err = fedjax_adapt(capsys, "run --folder moved --resume --json")
    assert code == 0 and json.loads(again) == said | {"folder": "moved"}
    assert err == "moved holds this run, finished; nothing is left to run.\n"
    assert fedjax_adapt(capsys, f"{line} --lr -1")[:2] == (2, "")


def test_a_name_that_is_too_long_is_a_mistake(capsys):
    name = "x" * 300
    for line in (f"run --folder {name}", f"run --dataset mnist --data-dir {name}"):
        code, _, err = fedjax_adapt(capsys, line)
        # Python 3.14 takes such a path for none
        assert code == 2 and name in err and err.count("\n") == 1


@pytest.mark.slow
@shares_programs
def test_a_quiet_run_prints_nothing_but_warnings(capsys, elsewhere):
    line = f"{QUICK} --folder mine --quiet"
    assert fedjax_adapt(capsys, line) == (0, "", "")
    assert read_run("mine").summary and Path("mine/learning_curve.png").exists()
    assert fedjax_adapt(capsys, "run --folder mine --resume --quiet") == (0, "", "")
    code, out, err = fedjax_adapt(capsys, f"{line} --json --resume")
    assert (code, json.loads(out)["folder"], err) == (0, "mine", "")
    said = (
        "--dry-run says what would be run, and --quiet nothing; leave one of them out."
    )
    for words in (
        "run",
        "sweep some.toml",
        "tune some.toml",
        "reproduce fedssg-table1",
    ):
        refused = fedjax_adapt(capsys, f"{words} --dry-run --quiet")
        assert refused == (2, "", f"fedjax-adapt: {said}\n")
    diverging = f"{QUICK} --folder other --lr 1e9 --quiet"
    code, out, err = fedjax_adapt(capsys, diverging)
    assert (code, out) == (1, "") and "diverged" in err

    run = 'algorithm = "fedavg"\nmodel = "linear"\nnum_clients = 6\nrounds = 2\n'
    (elsewhere / "sweep.toml").write_text(f"[run]\n{run}[grid]\nseed = [0, 1]\n")
    line = "sweep sweep.toml --folder swept --quiet"
    assert fedjax_adapt(capsys, line) == (0, "", "")
    assert fedjax_adapt(capsys, f"{line} --resume") == (0, "", "")
    code, out, err = fedjax_adapt(capsys, f"{line} --resume --json")
    assert (code, len(json.loads(out)["results"]), err) == (0, 2, "")

    with reporting(Request(quiet=True).console(), "nothing to resume") as report:
        report(
            Progress(
                1, 2, 0.5, 1.0, 9.0, warning="a gate may be unstable", note="a note"
            )
        )
    said = "fedjax-adapt: nothing to resume\nfedjax-adapt: a gate may be unstable\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.slow
@shares_programs
def test_ctrl_c_says_how_to_go_on_and_going_on_works(capsys, monkeypatch):
    from fedjax_adapt.experiment import checkpoint

    save = checkpoint.Saver.save

    def interrupted(self, state, round):
        if round == 4:
            raise KeyboardInterrupt
        return save(self, state, round)

    monkeypatch.setattr(checkpoint.Saver, "save", interrupted)
    line = f"{QUICK} --folder mine"
    code, _, err = fedjax_adapt(capsys, line)
    assert code == 130
    said = f"saved up to round 2 in mine; write fedjax-adapt {line} --resume to go on."
    assert err == f"fedjax-adapt: interrupted, {said}\n"
    monkeypatch.setattr(checkpoint.Saver, "save", save)
    code, _, err = fedjax_adapt(capsys, line)
    assert code == 2 and "half finished; write --resume" in err
    code, _, err = fedjax_adapt(capsys, f"{line} --resume --lr 0.3")
    assert code == 2 and "holds a run with lr=0.1, not lr=0.3" in err
    code, out, _ = fedjax_adapt(capsys, f"{line} --resume")
    assert code == 0 and "nothing to resume" not in out
    assert read_run("mine").metrics["round"].to_pylist() == [*range(1, 8)]


@pytest.mark.slow
def test_a_run_that_has_nothing_to_resume_begins_and_says_so(capsys):
    code, out, err = fedjax_adapt(capsys, f"{QUICK} --folder mine --resume")
    assert (code, err) == (0, "")
    said = "warning: nothing to resume in mine: the run begins at round 1.\n"
    before = r"tracing\ncompiling, about \d+ s\n"
    assert out.count(said) == 1 and re.match(before + re.escape(said), out)
    assert read_run("mine").summary["rounds"] == 7


def test_there_is_nothing_to_resume_where_nothing_is_saved(elsewhere):
    said = lambda resume=True: nothing_to_resume(elsewhere / "a", resume, "it begins")
    here = f"nothing to resume in {elsewhere / 'a'}: it begins."
    assert said() == here and said(resume=False) is None
    (elsewhere / "a" / "checkpoints").mkdir(parents=True)
    assert said() == here
    (elsewhere / "a" / "sweep.toml").touch()
    assert said() is None
    (elsewhere / "a" / "sweep.toml").unlink()
    (elsewhere / "a" / "checkpoints" / "000000002").mkdir()
    assert said() is None


@pytest.mark.slow
@shares_programs
def test_a_run_that_diverges_is_exit_code_1_and_one_sentence(capsys, monkeypatch):
    from fedjax_adapt.experiment import rows

    monkeypatch.setattr(rows, "first_diverged", lambda infos, metrics, first: first)
    code, _, err = fedjax_adapt(capsys, f"{QUICK} --folder mine")
    assert code == 1
    assert err.startswith("fedjax-adapt: training diverged in round 1: the model is")
    assert err.count("\n") == 1
    assert read_run("mine").summary is None
    code, out, again = fedjax_adapt(capsys, f"{QUICK} --folder other --json")
    found = json.loads(out)
    assert again.splitlines()[-1] == err.splitlines()[-1]
    assert err == f"fedjax-adapt: {found.pop('error')}\n"
    assert (code, found) == (1, {"status": "failed", "folder": "other"})
    # compare cannot tell it from one that was interrupted
    _, _, err = fedjax_adapt(capsys, "compare mine")
    assert err.endswith("resume it first, or leave it out if it diverged.\n")


def test_numbers_that_are_not_finite_are_null_in_json(capsys):
    print_json({"a": [float("nan"), {"b": float("-inf")}], "c": 1.5, "d": "nan"})
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"a": [None, {"b": None}], "c": 1.5, "d": "nan"}


# one client's inputs are so large that its model is not finite once it has trained
BROKEN = f"{QUICK} --clip-norm none --corrupt noisy_inputs --corrupt-clients 2 "
BROKEN += "--corrupt-strength 1e30"


@pytest.mark.slow
@shares_programs
def test_updates_that_are_left_out_are_told_and_counted(capsys):
    out_of = "--nonfinite-updates leave_out"
    code, out, _ = fedjax_adapt(capsys, f"{BROKEN} {out_of} --folder mine")
    out = " ".join(out.replace("│", " ").split())
    record = read_run("mine")
    rows = record.clients.to_pylist()
    broken = [row["round"] for row in rows if row["left_out"]]
    assert code == 0 and {r["client"] for r in rows if r["left_out"]} == {2}
    assert out.count(f"warning: what client 2 sent in round {broken[0]} was not") == 1
    number = len(broken)
    assert number > 1 and f"left out {number} client updates that were not fin" in out
    assert f"the first in round {broken[0]} " in out
    assert record.metrics["left_out"][-1].as_py() == number
    assert record.summary["left_out"] == number
    assert record.summary["first_left_out_round"] == broken[0]
    assert all(map(math.isfinite, record.metrics["train_loss"].to_pylist()))

    code, _, err = fedjax_adapt(capsys, f"{BROKEN} --folder other")
    assert code == 1 and err.startswith(
        f"fedjax-adapt: training diverged in round {broken[0]}: the model is not finite "
        f"after the loss of client 2 was not in round {broken[0]}; lower lr or set "
        "clip_norm and give another folder"
    )
    code, _, _ = fedjax_adapt(capsys, f"{QUICK} --folder whole")
    summary = read_run("whole").summary
    assert (summary["left_out"], summary["first_left_out_round"]) == (0, None)
    assert "left_out" not in read_run("whole").clients.column_names


@pytest.mark.slow
def test_steps_that_are_cut_are_told_once(capsys, monkeypatch):
    from fedjax_adapt.algorithms import ALGORITHMS
    from fedjax_adapt.core import Algorithm, constant_steps

    def eager():
        return Algorithm(policy=constant_steps(5)._replace(max_steps=3))

    monkeypatch.setitem(ALGORITHMS, "fedavg", eager)
    line = QUICK.replace("scaffold", "fedavg").replace("--epochs 1 ", "")
    line = line.replace("participation 0.5", "participation 1").replace(
        "rounds 7", "rounds 2"
    )
    code, out, _ = fedjax_adapt(capsys, f"{line} --folder mine")
    assert code == 0
    assert out.count("warning: max_steps=3 cut ") == 1
    assert "cut 12 of 30 local steps that fedavg asked for up to round 1; " in out
    assert read_run("mine").metrics["cut"].to_pylist() == [12, 12]


def test_list_has_one_line_for_each_choice(capsys):
    code, out, _ = fedjax_adapt(capsys, "list")
    lines = out.splitlines()
    assert code == 0
    for name in ("fedavg", "fedssg", "digits", "tfds:NAME", "dirichlet", "mlp"):
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert len(line.split()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["200", None])
def test_a_shell_completes_commands_flags_and_names(capsys, monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    code, script, _ = fedjax_adapt(capsys, "completion bash")
    assert code == 0 and os.environ.get("COLUMNS") == columns

    def completed(*words):
        line = " ".join(f"'{word}'" for word in ("fedjax-adapt", *words))
        asks = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _fedjax_adapt"
        shown = f'{script}\n{asks}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
        return subprocess.run(
            ["bash", "-c", shown], capture_output=True, text=True, check=True
        ).stdout.split()

    assert completed("re") == ["report", "replay", "reproduce"]
    assert completed("run", "--algorithm", "fedv") == ["fedveca", "fedvra"]
    assert completed("run", "--base", "sca") == ["scaffold"]
    assert completed("run", "--algorithm", "gift", "--initial-") == ["--initial-steps"]
    assert completed("run", "--no-evaluate") == ["--no-evaluate-clients"]
    assert completed("partition", "--partition", "dir") == [
        "dirichlet",
        "dirichlet_classes",
    ]
    assert completed("reproduce", "fedssg-table1", "--scale", "") == [
        *("smoke", "cpu", "full")
    ]
    assert completed("run", "--folder", "") == []  # bash goes on with files
    assert completed("run", "--evaluate-on", "") == ["test", "validation"]
    assert completed("run", "--corrupt", "n") == ["none", "noisy_inputs"]
    assert completed("run", "--algorithm", "=", "fedv") == ["fedveca", "fedvra"]
    assert completed("run", "--shuffle", "=") == ["epoch", "replacement", "none"]
    assert completed("completion", "") == ["bash", "zsh"]
    assert completed("reproduce", "fedssg-table")[:1] == ["fedssg-table1"]
    zsh = fedjax_adapt(capsys, "completion zsh")[1]
    assert zsh.endswith(f"bashcompinit && bashcompinit\n{script}")


@pytest.mark.slow
def test_every_flag_that_a_shell_completes_is_one(capsys):
    _, script, _ = fedjax_adapt(capsys, "completion bash")
    lines = re.findall(
        r'^    \*" (\w+) "\*" -"\) found="(.*)" ;;$', script, re.MULTILINE
    )
    completed = [(command, flag) for command, line in lines for flag in line.split()]
    assert {command for command, _ in completed} == {*cli.COMMANDS} - {"completion"}
    for command, flag in completed:
        code, _, said = fedjax_adapt(capsys, f"{command} {flag} --nope")
        # of an algorithm that is not chosen here, or its value is missing, or --nope
        others = f"{flag} is not a flag" in said and "; it is an option of" not in said
        assert code == 2 and not others, said


@pytest.mark.parametrize("shell", ["", " fish", " bash zsh"])
def test_a_shell_that_is_not_known_is_one_sentence(capsys, shell):
    code, _, error = fedjax_adapt(capsys, f"completion{shell}")
    said = shell.strip() or "no shell"
    assert (code, error) == (
        2,
        f"fedjax-adapt: completion got {said}; write bash or zsh.\n",
    )


def test_help_of_a_run_shows_defaults_and_the_options_of_the_choice(capsys):
    code, out, err = fedjax_adapt(capsys, "run --algorithm fedprox --help")
    assert (code, err) == (0, "")
    assert "--mu" in out and "--alpha" not in out
    assert "clients in all; none: 30" in out and "rounds in all (default: 60)" in out
    assert "round after the first 20 (default: none given)" in " ".join(
        out.replace("│", "").split()
    )


@pytest.mark.parametrize(
    "command", ["doctor", "partition", "reproduce", "run", "sweep", "tune"]
)
def test_no_sentence_of_a_help_text_is_broken(command):
    """Lines are joined, but one that does not begin with a letter stands by itself."""
    text = import_module(f"fedjax_adapt.cli.{command}").DESCRIPTION
    assert all(line[:1].isalpha() for line in text.splitlines() if line)


def test_help_and_version_answer_before_jax_is_imported():
    code = (
        "import sys; from fedjax_adapt.cli import main; "
        "main(['--help']); main(['--version']); "
        "sys.exit(sum(name in sys.modules for name in ('jax', 'numpy', 'tyro')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "usage: fedjax-adapt" in done.stdout
    assert f"fedjax-adapt {__version__}" in done.stdout


def test_compiled_programs_are_kept_per_user_unless_told_otherwise(
    tmp_path, monkeypatch
):
    ours = jax.config.jax_compilation_cache_dir
    process.prepare_jax()
    assert jax.config.jax_compilation_cache_dir == ours
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    process.prepare_jax()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "fedjax-adapt/xla")


@pytest.mark.slow
@shares_programs
def test_ctrl_c_keeps_every_finished_round(capsys, monkeypatch):
    from fedjax_adapt.report import progress

    @contextmanager
    def interrupting(console):
        yield lambda now: now.round and os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress, "live", interrupting)
    before = signal.getsignal(signal.SIGINT)
    line = QUICK.removesuffix("--checkpoint-every 2") + "--folder mine"
    code, _, err = fedjax_adapt(capsys, line)
    assert code == 130
    assert "saved up to round 1 in mine; write" in err
    assert err.endswith("--folder mine --resume to go on.\n")
    assert checkpoint.rounds(Path("mine/checkpoints")) == [1]
    assert read_run("mine").metrics["round"].to_pylist() == [1]
    assert signal.getsignal(signal.SIGINT) is before
    code, out, err = fedjax_adapt(capsys, f"{line}2 --json")
    assert (code, json.loads(out)) == (
        130,
        {"status": "interrupted", "folder": "mine2"},
    )
    assert "--folder mine2 --json --resume to go on" in err


@pytest.mark.parametrize("code", [0, 2, 130, 143])
@pytest.mark.parametrize("stdout", ["open", "closed", None])
def test_a_process_ends_at_once_after_a_signal_alone(monkeypatch, code, stdout):
    class Left(BaseException): ...

    class Out(io.StringIO):
        flushed = 0

        def flush(self):
            super().flush()
            self.flushed += 1

    def leave(code):
        left.append(code)
        raise Left

    out, left = Out() if stdout else None, []
    if stdout == "closed":
        out.close()
    before = 0 if out is None else out.flushed
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(cli, "main", lambda: code)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises((SystemExit, Left)) as ended:
        cli.run_process()
    if code in (130, 143):
        assert left == [code]
        assert stdout != "open" or out.flushed > before
    else:
        assert ended.value.code == code and not left


@pytest.mark.parametrize(
    "flags", ["--json", "--quiet --resume", "--folder 'my run' --data-dir 'my data'"]
)
@pytest.mark.parametrize(
    "group", ["", "--coordinator-address here:1 --num-processes 2"]
)
def test_what_goes_on_is_what_was_written(capsys, monkeypatch, flags, group):
    def stop(config, *_):
        begun.append(run_folder(config))
        begun[0].mkdir(parents=True)
        raise Stopped

    begun, running = [], import_module("fedjax_adapt.cli.run")
    monkeypatch.setattr(running, "train", stop)
    monkeypatch.setattr(running, "process_group", lambda *_: nullcontext(True))
    Path("my data").mkdir()
    words = [*group.split(), "--process-id", "0"] if group else []
    assert cli.main(["run", *shlex.split(flags), *words]) == 130
    written = shlex.join(["fedjax-adapt", "run", *shlex.split(flags), *words])
    again = written if "--resume" in flags else f"{written} --resume"
    others = " here, and so in every other process," if group else ""
    assert f"write {again}{others} to " in capsys.readouterr().err
    typed = parse(shlex.split(again)[2:])
    assert run_folder(from_settings(typed.settings)) == begun[0]


@pytest.mark.parametrize("flags", ["--shard 2/2", "--folder 'my sweep' --resume --yes"])
def test_what_goes_on_with_a_sweep_is_what_was_written(capsys, monkeypatch, flags):
    def stop(asked, folder, **_):
        begun.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt

    begun, sweeping = [], import_module("fedjax_adapt.cli.sweep")
    monkeypatch.setattr(sweeping, "run_sweep", stop)
    Path("my.toml").write_text("[run]\nrounds = 1\n[grid]\nlr = [0.1, 0.2]\n")
    words = ["sweep", "my.toml", *shlex.split(flags)]
    assert cli.main(words) == 130
    typed = words if "--resume" in words else [*words, "--resume"]
    said = f"interrupted, {begun[0]} has what is finished; write "
    said += shlex.join(["fedjax-adapt", *typed])
    assert f"{said} to go on.\n" in capsys.readouterr().err
    assert cli.main(typed) == 130 and begun[0] == begun[1]


def test_a_ctrl_c_that_is_lost_before_the_first_round_is_raised_in_it(monkeypatch):
    class Final:
        def __del__(self):  # what is raised in here Python only tells of
            os.kill(os.getpid(), signal.SIGINT)

    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with process.finishing() as stop_if_asked:
        Final()
        assert not told
        with pytest.raises(KeyboardInterrupt):
            stop_if_asked()


def test_a_ctrl_c_waits_for_rounds_alone_and_a_second_one_for_nothing():
    press = lambda: os.kill(os.getpid(), signal.SIGINT)
    with process.finishing(), pytest.raises(KeyboardInterrupt):
        press()  # while it compiles, say
    with process.finishing() as stop_if_asked:
        stop_if_asked()
        press()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_in_a_thread_signals_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(process, "_terminated", threading.Event())
    process._terminated.set()  # in the main thread
    of_all = lambda: (*map(signal.getsignal, signals), sys.unraisablehook)
    signals = signal.SIGINT, signal.SIGTERM

    def inside():
        with process.ending(), process.importing(), process.finishing() as stop:
            stop()
            return of_all()

    before = of_all()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() == before == of_all()
    assert process._terminated.is_set()


def test_a_bug_is_no_sentence(capsys, monkeypatch):
    from fedjax_adapt import participation

    monkeypatch.setattr(participation.math, "log1p", lambda x: math.log(-1))
    with pytest.raises(ValueError, match="math domain error|expected a positive"):
        fedjax_adapt(capsys, f"{QUICK} --folder mine")


@pytest.mark.slow
def test_every_core_is_a_device_and_a_run_goes_on_with_as_many(capsys, elsewhere):
    environment = dict(os.environ, XLA_FLAGS="--xla_backend_optimization_level=0")
    line = f"-m fedjax_adapt {ON_ALL_DEVICES} --folder mine"
    done = subprocess.run([sys.executable, *line.split()], env=environment)
    assert done.returncode == 0
    devices = read_run("mine").summary["hardware"]["devices"]
    assert devices == min(len(os.sched_getaffinity(0)), 6)
    assert f"devices = {devices}\n" in Path("mine/config.toml").read_text()
    Path("mine/summary.json").unlink()
    code, _, err = fedjax_adapt(capsys, f"{ON_ALL_DEVICES} --folder mine --resume")
    assert (code, err) == (0, "")
    assert read_run("mine").summary["hardware"]["devices"] == devices


def test_client_state_that_does_not_fit_is_one_sentence(capsys, monkeypatch, elsewhere):
    from fedjax_adapt.engine import memory

    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    code, _, err = fedjax_adapt(capsys, f"{ON_ALL_DEVICES} --folder mine")
    assert code == 2
    assert (
        "the state of 6 clients takes " in err
        and "MiB on" in err
        and err.count("\n") == 1
    )
    assert not list(elsewhere.iterdir())


def test_values_are_said_as_flags_have_them_and_calls_as_python_has_them():
    said = "devices=True or None; write --resume (run(config, resume=True) in Python)."
    assert process.as_written(said) == said.replace("=True or None", "=true or none")


def test_no_words_are_none_whatever_this_process_was_given(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest", "--version"])
    assert cli.main([]) == 0
    assert "usage" in capsys.readouterr().out
    assert cli.main() == 0
    assert capsys.readouterr().out.startswith("fedjax-adapt ")


def test_words_may_be_numbers_and_paths(tmp_path, capsys):
    assert cli.main(["compare", tmp_path]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert cli.main(["run", "--rounds", 0]) == 2
    assert "rounds=0 must be" in capsys.readouterr().err
