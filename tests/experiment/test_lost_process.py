"""What a process of several prints when C++ says that another one is lost."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedjax_adapt.experiment import lost_process
from fedjax_adapt.experiment.lost_process import SENTENCE

# the file alone, as its package takes seconds to import
AROUND = (
    f"sys_path = {str(Path(lost_process.__file__).parent)!r}"
    + """
import os, subprocess, sys
sys.path.insert(0, sys_path)
import lost_process

with lost_process.filtered_stderr():
    print("Python", file=sys.stderr)
    os.write(2, b"W1126 01:11:56 7 coordination_service.cc:1] a warning\\n")
    {}
print("after", file=sys.stderr)
"""
)
BEFORE = ["Python\n", "W1126 01:11:56 7 coordination_service.cc:1] a warning\n"]
ERROR = "E1126 01:11:56 7 coordination_service_agent.cc:289] Polled an error."
FATAL = "F1126 01:11:56 7 client.h:80] as the JAX distributed service detected errors"


def said(script):
    """The lines on standard error."""
    command = [sys.executable, "-c", AROUND.format(script)]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    return ended.stderr.splitlines(True)


@pytest.mark.parametrize(
    "script",
    [
        f'os.write(2, b"{ERROR}\\n{FATAL}\\n  at 0x7f\\n")',
        f'os.write(2, b"{FATAL}\\n"); lost_process.report_loss()',
        "lost_process.report_loss(); lost_process.report_loss()",
        'os.write(2, b"half a line"); lost_process.report_loss()',
    ],
)
def test_what_is_lost_is_said_once_and_nothing_else(script):
    assert sorted(said(script)) == sorted([*BEFORE, SENTENCE, "after\n"])


def test_a_process_that_aborts_has_said_it_too():
    script = f'os.write(2, b"{FATAL}\\n"); os.abort()'
    assert sorted(said(script)) == sorted([*BEFORE, SENTENCE])


def test_what_else_is_printed_goes_through():
    assert sorted(said("pass")) == sorted([*BEFORE, "after\n"])


@pytest.mark.slow
def test_a_program_that_goes_on_writing_is_not_waited_for():
    begun = time.monotonic()
    script = 'subprocess.Popen(["sleep", "20"])'
    command = [sys.executable, "-c", AROUND.format(script)]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
    assert time.monotonic() - begun < 15


def test_where_standard_error_is_closed_no_other_file_is_written(tmp_path):
    script = "file = open('mine', 'w'); lost_process.report_loss(); file.write('whole')"
    script = AROUND.split("print")[0] + script
    command = 'exec "$0" -c "$1" 2>&-'
    subprocess.run(["sh", "-c", command, sys.executable, script], cwd=tmp_path)
    assert (tmp_path / "mine").read_text() == "whole"
