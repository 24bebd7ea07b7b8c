"""Runs in odd surroundings: encodings, pipes, narrow terminals, signals, no home."""

import io
import os
import pwd
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import QUICK_RUN, fedjax_adapt, unlist

from fedjax_adapt import cli
from fedjax_adapt.cli import process, reproduce
from fedjax_adapt.cli.output import steady_output
from fedjax_adapt.experiment import checkpoint, read_run, tuning
from fedjax_adapt.experiment.items import names

pytestmark = pytest.mark.usefixtures("elsewhere", "shared_programs")


@pytest.fixture
def printed(elsewhere, monkeypatch):
    """printed(line, encoding): the exit code of a command, and the bytes it prints."""

    def run(line, encoding="utf-8"):
        with open(elsewhere / "printed", "wb") as file:
            stdout = io.TextIOWrapper(file, encoding=encoding, errors="strict")
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", stdout)
                code = cli.main(line.split())
            stdout.flush()
        return code, (elsewhere / "printed").read_bytes()

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable, flags, code, says",
    [
        (
            "JAX_PLATFORMS=cuda",
            "",
            2,
            "JAX finds no device here under JAX_PLATFORMS=cuda; wri",
        ),
        (
            "JAX_PLATFORMS=wrong",
            "",
            2,
            "JAX finds no device here under JAX_PLATFORMS=wr",
        ),
        ("JAX_DISABLE_JIT=1", "", 2, "JAX_DISABLE_JIT is set, and a run is a compiled"),
        (
            "JAX_DEBUG_NANS=1",
            "--lr 1e30",
            1,
            "a number is NaN or infinite, where JAX_D",
        ),
    ],
)
def test_a_variable_of_jax_that_ends_a_run_is_one_sentence(
    tmp_path, variable, flags, code, says
):
    name, _, value = variable.partition("=")
    tiny = "run --rounds 3 --model linear --num-clients 6 --num-steps 5 --folder a"
    done = subprocess.run(
        [sys.executable, "-m", "fedjax_adapt", *tiny.split(), *flags.split()],
        cwd=tmp_path,
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert done.stderr.startswith(f"fedjax-adapt: {says}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_warning_is_one_sentence(tmp_path):
    """Of a folder of an earlier version, which lists no checksums."""
    assert cli.main(f"{QUICK_RUN} --folder a".split()) == 0
    unlist(tmp_path / "a")
    shown = [sys.executable, "-m", "fedjax_adapt", "compare", "a"]
    found = subprocess.run(shown, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0
    assert found.stderr == (
        "fedjax-adapt: a has no files.sha256, as earlier versions left theirs; damage to "
        "the files that are there is not noticed.\n"
    )


@pytest.mark.slow
def test_what_an_encoding_lacks_is_ascii(printed):
    code, shown = printed(f"{QUICK_RUN} --folder mine", "ascii")
    assert code == 0
    lines = shown.decode("ascii").splitlines()
    assert [line for line in lines if "last 7 evaluations" in line and " % +-" in line]
    # as wide as the others, so that the borders of the table stand below each other
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("+--")) :]
    assert len({len(line) for line in table if line[0] in "+|"}) == 1
    code, shown = printed("compare mine", "latin-1")
    assert code == 0 and "scaffold" in shown.decode("latin-1")


@pytest.mark.parametrize(
    "text, encoding, bytes",
    [
        ("1 ± 2, 3± 4", "ascii", b"1 +-2, 3+-4"),
        ("1 ± 2", "latin-1", b"1 \xb1 2"),
        ("a…b…   |", "latin-1", b"a...b... |"),
        ("runs/caf\xe9/\u4e2d", "ascii", b"runs/caf\\xe9/\\u4e2d"),
        (os.fsdecode(b"runs/\xff"), "utf-8", b"runs/\xff"),
    ],
)
def test_each_character_has_something_to_be_written_as(
    text, encoding, bytes, tmp_path, monkeypatch
):
    with open(tmp_path / "out", "w", encoding=encoding) as file:
        monkeypatch.setattr(sys, "stdout", file)
        with steady_output():
            print(text, end="")
    assert (tmp_path / "out").read_bytes() == bytes


def test_a_notebook_gets_what_is_printed(tmp_path, monkeypatch):
    class Stream(
        io.StringIO
    ):  # as a kernel's: the file of its number is not the notebook
        def fileno(self):
            return file.fileno()

    shown = Stream()
    with open(tmp_path / "terminal", "w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", shown)
        assert cli.main(["--version"]) == 0
    assert "fedjax-adapt" in shown.getvalue()
    assert not (tmp_path / "terminal").read_bytes()


@pytest.mark.slow
def test_a_reader_who_leaves_ends_no_run(elsewhere, monkeypatch, capfd):
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        code = cli.main(f"{QUICK_RUN} --folder mine".split())
    assert code == 0 and capfd.readouterr() == ("", "")
    assert read_run("mine").summary["rounds"] == 7
    assert (elsewhere / "mine" / "learning_curve.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("line", [f"{QUICK_RUN} --folder mine", "list", "run --help"])
def test_where_output_cannot_be_written_that_is_said_at_the_end(
    line, elsewhere, monkeypatch, capfd
):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        code = cli.main(line.split())
    why = "standard output could not be written (No space left on device)"
    assert code == 1 and capfd.readouterr() == ("", f"fedjax-adapt: {why}.\n")
    if "mine" in line:
        assert read_run("mine").summary["rounds"] == 7


def test_without_a_standard_output_a_command_goes_on(monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["list"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_terminal_of_one_column_is_one_of_forty(printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1")
    monkeypatch.setattr(reproduce, "names", lambda: names()[:3])
    code, shown = printed("reproduce list")
    assert code == 0
    wide = [len(line) for line in shown.decode().splitlines()]
    assert max(wide) == 40 and os.environ["COLUMNS"] == "1"


@pytest.mark.slow
def test_a_run_without_a_home_keeps_nothing_and_says_nothing(elsewhere):
    """The home is a file, as no folder can be made in one that may not be written."""
    (elsewhere / "home").touch()
    gone = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
    env = {name: value for name, value in os.environ.items() if name not in gone}
    env |= {"HOME": str(elsewhere / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "fedjax_adapt", *QUICK_RUN.split()]
    done = subprocess.run(
        [*command, "--folder", "mine"], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert read_run("mine").summary["rounds"] == 7


def test_where_no_home_is_known_nothing_is_kept(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    file = tuning.cache_folder() / "lanes.json"
    tuning.add_to_cache(file, {"work": 3})
    assert tuning.read_cache(file) == {}


@pytest.mark.slow
def test_sigterm_keeps_every_finished_round(capsys, monkeypatch):
    from fedjax_adapt.report import progress

    @contextmanager
    def sending(console):
        yield lambda now: now.round and os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(progress, "live", sending)
    before = signal.getsignal(signal.SIGTERM)
    code, _, err = fedjax_adapt(capsys, f"{QUICK_RUN} --folder mine")
    assert code == 143
    assert err == (
        "fedjax-adapt: interrupted, saved up to round 1 in mine; write fedjax-adapt "
        f"{QUICK_RUN} --folder mine --resume to go on.\n"
    )
    assert checkpoint.rounds(Path("mine/checkpoints")) == [1]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_program_is_compiled_has_its_exit_code(tmp_path, sent, code):
    """On one core, where XLA still compiles in its thread when Python ends."""
    line = (
        f"-m fedjax_adapt run --rounds 99999 --num-clients 10 --folder {tmp_path}/run"
    )
    core = {min(os.sched_getaffinity(0))}
    with subprocess.Popen(
        [sys.executable, *line.split(), "--algorithm", "fedavg"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},  # nothing is compiled yet
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        os.sched_setaffinity(running.pid, core)
        while "trying lanes" not in (shown := running.stdout.readline()):
            assert shown, running.stderr.read()
        time.sleep(0.8)
        running.send_signal(sent)
        assert running.wait(60) == code
        assert "interrupted before the first round" in running.stderr.read()


def test_a_second_sigterm_waits_for_the_rounds_under_way_too():
    with process.ending(), process.finishing() as stop_if_asked:
        stop_if_asked()
        for _ in range(2):  # as `timeout` sends it
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop_if_asked()


@pytest.fixture
def ctrl_c():
    """SIGINT as at a terminal: in the background of a script it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_after_a_command_that_sigterm_ended_is_ctrl_c(
    capsys, monkeypatch, ctrl_c
):
    for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        kill = lambda arguments, number=number: os.kill(os.getpid(), number)
        monkeypatch.setattr("fedjax_adapt.cli.list_choices", kill)
        code, _, err = fedjax_adapt(capsys, "list")
        assert (code, err) == (expected, "fedjax-adapt: interrupted.\n")


def test_a_budget_that_one_round_exceeds_is_said_before_anything_is_written(
    capsys, elsewhere
):
    line = "run --algorithm afl --model linear --num-clients 6 --rounds 3 --budget 0.01"
    code, _, err = fedjax_adapt(capsys, f"{line} --folder mine")
    assert code == 2 and not (elsewhere / "mine").exists()
    assert err == (
        "fedjax-adapt: budget=0.01 is over before the first round ends, which takes 0.1446 "
        "seconds; write more.\n"
    )
