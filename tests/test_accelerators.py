"""benchmarks/accelerators.py: how it reads programs, and what an H100 would run of ours."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import skip_without_cuda_compiler

import fedjax_adapt as fa
from fedjax_adapt.engine.setup import Setup
from fedjax_adapt.engine.steps import Pace

FOLDER = Path(__file__).parents[1] / "benchmarks"

# A program with a table of 100 rows of 8, its products in a loop
TEXT = """\
HloModule a_round, is_scheduled=true

%update (table: f32[100,8], at: s32[], rows: f32[5,8]) -> f32[100,8] {
  %table = f32[100,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %rows = f32[5,8]{1,0} parameter(2)
  %zero = s32[] constant(0)
  ROOT %new = f32[100,8]{1,0} dynamic-update-slice(%table, %rows, %at, %zero)
}

%masked (table: f32[100,8], keep: pred[100,8]) -> f32[100,8] {
  %table = f32[100,8]{1,0} parameter(0)
  %keep = pred[100,8]{1,0} parameter(1)
  ROOT %new = f32[100,8]{1,0} select(%keep, %table, %table)
}

%take (table: f32[100,8], ids: s32[5]) -> f32[5,8] {
  %table = f32[100,8]{1,0} parameter(0)
  %ids = s32[5]{0} parameter(1)
  %found = f32[5,1,8]{2,1,0} gather(%table, %ids), offset_dims={1,2}
  ROOT %rows = f32[5,8]{1,0} bitcast(%found)
}

%inner_body (carry: (s32[], f32[5,8])) -> (s32[], f32[5,8]) {
  %carry = (s32[], f32[5,8]{1,0}) parameter(0)
  %of = f32[5,8]{1,0} get-tuple-element(%carry), index=1
  %one = f32[5,8]{1,0} copy(%of)
  %two = f32[5,8]{1,0} copy(%one)
  %three = f32[5,8]{1,0} copy(%two)
  ROOT %next = (s32[], f32[5,8]{1,0}) tuple(%of, %three)
}

%step_body (carry: (s32[], f32[5,8])) -> (s32[], f32[5,8]) {
  %carry = (s32[], f32[5,8]{1,0}) parameter(0)
  %x = f32[5,8]{1,0} get-tuple-element(%carry), index=1
  %w = f32[8,8]{1,0} fusion(%x), kind=kLoop, calls=%weights
  %y = f32[5,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
NESTED
  ROOT %next = (s32[], f32[5,8]{1,0}) tuple(%x, %y)
}

%weights (x: f32[5,8]) -> f32[8,8] {
  %x = f32[5,8]{1,0} parameter(0)
  ROOT %w = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={0}EXACT
}

%outer_body (carry: (s32[], f32[5,8])) -> (s32[], f32[5,8]) {
  %carry = (s32[], f32[5,8]{1,0}) parameter(0)
  %mask = f32[5,8]{1,0} copy(%carry)
  ROOT %steps = (s32[], f32[5,8]{1,0}) while(%carry), body=%step_body, BY 8
}

%more (carry: (s32[], f32[5,8])) -> pred[] {
  %carry = (s32[], f32[5,8]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (table: f32[100,8], ids: s32[5], keep: pred[100,8], at: s32[]) -> f32[100,8] {
  %table = f32[100,8]{1,0} parameter(0)
  %ids = s32[5]{0} parameter(1)
  %keep = pred[100,8]{1,0} parameter(2)
  %at = s32[] parameter(3)
  %rows = f32[5,8]{1,0} fusion(%table, %ids), kind=kLoop, calls=%take
  %begin = (s32[], f32[5,8]{1,0}) tuple(%at, %rows)
  %end = (s32[], f32[5,8]{1,0}) while(%begin), condition=%more, body=%BODY
  %new = f32[5,8]{1,0} get-tuple-element(%end), index=1
MORE
  ROOT %after = f32[100,8]{1,0} fusion(%table, %at, %new), kind=kInput, calls=%update
}
"""
KNOWN = ', backend_config={"known_trip_count":{"n":"%d"}}'
TEXT = TEXT.replace(", BY 8", KNOWN % 8)
TEXT = TEXT.replace("EXACT", ", operand_precision={highest,highest}")
NESTED = (
    "  %in = (s32[], f32[5,8]{1,0}) while(%carry), condition=%more, body=%inner_body"
)
CONDITIONAL = (
    "  %c = f32[5,8]{1,0} conditional(%at, %begin, %begin), "
    "branch_computations={%inner_body, %outer_body}"
)


@pytest.fixture(scope="module")
def modules():
    """The benchmarks' modules by name."""
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(
            **{name: importlib.import_module(name) for name in ("hlo", "launches")}
        )
    finally:
        sys.path[:] = before


@pytest.fixture
def counted(modules):
    """Counts a variant of TEXT: a round of 10 local steps."""

    def count(trips=None, nested="", more="", body="step_body", rounds=1, inner=0):
        text = TEXT.replace("NESTED", nested).replace("MORE", more)
        loop = f"body=%{body}"
        text = text.replace("body=%BODY", loop + (KNOWN % trips if trips else ""))
        tables = [modules.hlo.Array("f32", (100, 8))]
        return modules.launches.counts(
            modules.hlo.read(text), rounds, 10, inner, tables
        )

    return count


def filled():
    """TEXT without anything more."""
    return TEXT.replace("NESTED", "").replace("MORE", "").replace("BODY", "step_body")


def test_a_loop_of_known_trips_is_not_waited_for(counted):
    found = counted(trips=10)
    assert found["launches_per_step"] == 2 and found["nested_loops"] == 0
    assert found["step_trips"] == [10] and found["waits_per_step"] == 0
    assert found["launches_outside"] == 2  # one read of the table and one write
    # x^T x and the product with it: 2 x 5 x 64 each, one of them rounded
    assert found["gflop"] == {"tf32": 6.4e-6, "float32": 6.4e-6}


def test_a_loop_of_unknown_trips_is_waited_for_at_every_trip(counted, modules):
    known, unknown = counted(trips=10), counted()
    assert unknown["step_trips"] == [None] and unknown["waits_per_step"] == 1
    assert unknown["launches_per_step"] == 2 and unknown["dynamic_loops_outside"] == 0
    waits = 10 * 1e3 * modules.launches.WAIT
    assert unknown["h100_ms"] == pytest.approx(known["h100_ms"] + waits, rel=1e-3)


def test_an_unknown_loop_of_known_ones_is_waited_for_once_in_as_many_steps(counted):
    found = counted(body="outer_body")
    assert found["step_trips"] == [None, 8] and found["waits_per_step"] == 1 / 8
    assert found["launches_per_step"] == 2
    assert found["launches_outside"] == 2 + 2  # two trips make 10 steps, or 16


def test_products_may_be_in_a_loop_of_a_local_step(counted):
    found = counted(body="outer_body", inner=1)
    assert found["step_trips"] == [None] and found["nested_loops"] == 1
    assert found["launches_per_step"] == 1 + 8 * 2 and found["waits_per_step"] == 1


def test_several_steps_in_a_trip_are_told_from_one(counted):
    found = counted(trips=5)
    assert found["step_trips"] == [5] and found["launches_per_step"] == 1


def test_a_loop_in_a_step_counts_by_its_trips(counted):
    found = counted(trips=10, nested=NESTED + KNOWN % 32)
    assert found["nested_loops"] == 1 and found["launches_per_step"] == 2 + 32 * 3
    assert found["waits_per_step"] == 0
    found = counted(trips=10, nested=NESTED)
    assert found["launches_per_step"] == 2 + 3 and found["waits_per_step"] == 1
    assert found["dynamic_loops_outside"] == 0  # it is inside


def test_other_loops_and_conditionals_are_outside(counted):
    found = counted(trips=10, more=NESTED.replace("%carry", "%end"))
    assert found["dynamic_loops_outside"] == 1 and found["launches_outside"] == 2 + 3
    found = counted(trips=10, more=CONDITIONAL)
    assert found["conditionals_outside"] == 1 and found["waits_per_step"] == 0
    assert found["dynamic_loops_outside"] == 0
    longest = 1 + 8 * 2  # of its two branches
    assert found["launches_outside"] == 2 + longest
    inside = CONDITIONAL.replace("begin", "carry").replace("outer_body", "more")
    found = counted(trips=10, nested=inside)
    assert found["conditionals_outside"] == 0 and found["waits_per_step"] == 1


@pytest.mark.parametrize(
    "line, copies",
    [
        ("copy(%table)", 1),
        ("fusion(%table, %keep), kind=kLoop, calls=%masked", 1),
        ("fusion(%table, %at, %new), kind=kInput, calls=%update", 0),
        ("dynamic-update-slice(%table, %new, %at, %at)", 0),
        ("bitcast(%table)", 0),
    ],
)
def test_a_table_that_is_written_whole_is_a_copy(counted, line, copies):
    more = f"  %again = f32[100,8]{{1,0}} {line}"
    found = counted(trips=10, more=more)
    assert found["table_copies"] == copies
    other = counted(trips=10, more="  %again = f32[100,4]{1,0} copy(%at)")
    assert other["table_copies"] == 0
    plain = counted(trips=10)
    moved = 1e9 * (found["gigabytes"] - plain["gigabytes"])
    table, mask, rows, number = 100 * 8 * 4, 100 * 8, 5 * 8 * 4, 4
    expected = {
        "copy": 2 * table,
        "fusion": 2 * table + mask if copies else 2 * rows + number,
        "dynamic-update-slice": 2 * rows,
        "bitcast": 0,
    }
    assert moved == pytest.approx(expected[line.partition("(")[0]], abs=10)


def test_a_gather_reads_what_it_returns(modules):
    rows, ids = 5 * 8 * 4, 5 * 4
    assert modules.hlo.read(filled()).kernels[0].bytes == 2 * rows + ids


def test_products_are_told_apart_by_their_precision(modules):
    fused, alone = modules.hlo.read(filled()).loops[0].body.kernels
    assert fused.operations == {"float32": 2 * 5 * 8 * 8}
    assert alone.operations == {"tf32": 2 * 5 * 8 * 8}
    short = modules.hlo.read(filled().replace("f32", "bf16"))
    assert {*short.loops[0].body.kernels[1].operations} == {"bf16"}


def test_what_passes_between_host_and_device_is_counted(counted):
    call = "  %e = f32[5,8]{1,0} custom-call(%ids), custom_call_target="
    found = counted(trips=10, more=call + '"xla_ffi_python_gpu_callback"')
    assert found["transfers"] == 1
    assert counted(trips=10, more=call + '"solver"')["transfers"] == 0
    aside = "  %e = f32[5,8]{1,0:S(5)} copy(%new)"
    assert counted(trips=10, more=aside)["transfers"] == 1


def test_collectives_are_counted_by_trips_and_rounds(counted):
    gather = "((f32[5,8]{1,0}, s32[2]{0}), (f32[40,8]{1,0}, s32[16]{0}))"
    inside = f"  %g = {gather} all-gather-start(%x, %x), dimensions={{0}}\n"
    inside += f"  %d = {gather} all-gather-done(%g)"
    reduce = "  %r = f32[5,8]{1,0} all-reduce(%new), to_apply=%more"
    found = counted(trips=20, nested=inside, more=reduce, rounds=2)
    of_one = 40 * 8 * 4 + 16 * 4
    assert found["collectives"] == {
        "all-reduce": [0.5, 80],
        "all-gather": [10, 10 * of_one],
    }


def test_a_kernel_takes_a_launch_or_its_bytes_or_its_operations(modules):
    launches, hlo = modules.launches, modules.hlo
    kernel = hlo.Kernel("k", "fusion", 0, {}, (), "", False)
    ms = lambda *kernels: launches.counts(hlo.Part(kernels, (), ()), 1, 1)["h200_ms"]
    assert ms(kernel, kernel) == pytest.approx(2e3 * launches.LAUNCH)
    assert ms(kernel._replace(bytes=4.8e9)) == pytest.approx(1)
    assert ms(kernel._replace(operations={"float32": 67e9})) == pytest.approx(1)
    assert ms(kernel._replace(operations={"bf16": 67e9})) == pytest.approx(
        67 / 989, 1e-3
    )


def test_a_program_for_this_machine_is_read(modules):
    def program(x, w, n):
        step = lambda _, x: jnp.tanh(x @ w)
        known = jax.lax.fori_loop(0, 10, step, x)
        return jax.lax.fori_loop(0, n, lambda _, x: x + jnp.sin(x), known)

    x, w = np.ones((5, 8), np.float32), np.ones((8, 8), np.float32)
    text = jax.jit(program).lower(x, w, 3).compile().as_text()
    found = modules.launches.counts(modules.hlo.read(text), 1, 10)
    assert found["step_trips"] == [10] and found["dynamic_loops_outside"] == 1
    assert sum(found["gflop"].values()) == pytest.approx(10 * 2 * 5 * 8 * 8 / 1e9, 1e-3)


@pytest.fixture
def accelerators(modules, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("accelerators")


def asked(accelerators, *words):
    given = accelerators.options().parse_args(words)
    names = ("workload", "algorithm", "program")
    return [tuple(line[n] for n in names) for line in accelerators.settings(given)]


def test_what_is_named_is_compiled_and_nothing_else(accelerators):
    everything = asked(accelerators)
    assert ("w1-500", "", "bare") in everything and len({*everything}) == len(
        everything
    )
    of_w2 = {a for kind, a, program in everything if (kind, program) == ("w2", "sweep")}
    assert of_w2 == {*accelerators.ALGORITHMS}
    words = ("--only", "w1", "moon", "round", "bare")
    assert asked(accelerators, *words) == [("w1", "", "bare"), ("w1", "moon", "round")]
    several = asked(accelerators, "--only", "w2", "gift", "--devices", "8")
    assert several == [("w2", "gift", "round"), ("w2", "gift", "chunk")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "lanes, block, found", [(50, 18, 18), (50, 8, 24), (29, 4, 24), (29, 1, 20)]
)
def test_packed_steps_are_those_of_the_busiest_lane(accelerators, lanes, block, found):
    """Of clients with 2 to 18 steps, whatever turns of the longest there could be."""
    programs = importlib.import_module("programs")
    kind = programs.KINDS["w2-unequal"]
    data, longest = programs._data_of(kind)
    task = programs.rounds.task_of(kind.work)
    plan = programs.rounds.plan_of(kind.work, lanes=lanes)
    setup = Setup(fa.Algorithm(), task, data, plan, Pace(block=block))
    assert longest == 180
    assert programs.steps_of_busiest(setup) == found
    assert programs.steps_of_busiest(setup._replace(pace=Pace(known=10))) is None


def test_a_line_that_is_there_is_not_made_again(
    accelerators, tmp_path, monkeypatch, capsys
):
    made, known = [], {"commit": "c", "versions": {}}

    def compiled(setting, folder):
        if setting["algorithm"] == "moon":
            raise ValueError("no room")
        made.append(setting)
        return {"launches_per_step": len(made), "step_trips": [None, 8]}

    monkeypatch.setattr(accelerators, "compiled", compiled)
    monkeypatch.setattr(accelerators, "evidence", lambda: known)
    words = ["--only", "w1", "fedavg", "moon", "round"]
    words += ["--results", str(tmp_path / "lines.jsonl")]
    for commit, lines in (("c", 1), ("c", 1), ("d", 2), ("d+", 3), ("d+", 4)):
        known["commit"] = commit
        accelerators.measure(accelerators.options().parse_args(words))
        assert len(made) == lines
        said = capsys.readouterr()
        assert f"| w1 fedavg round | {lines} |  | ? x 8 |" in said.out
        assert "left out: no room" in said.err


# What local steps may launch, in the body of their loop; kernels of products alone are 9
MOST_LAUNCHES = {"fedavg": 24, "scaffold": 27, "fedssg": 30, "feddc": 30}
# Outside of it. The goal is 60, which those with client states miss: every tensor of a
# state is gathered, scattered and summed up by a kernel of its own
MOST_OUTSIDE = {"fedavg": 60, "scaffold": 70, "fedssg": 90, "feddc": 78}


def compiled(file, *words):
    """The lines of accelerators.py, by workload, algorithm and program."""
    skip_without_cuda_compiler()
    # its own process, in which JAX names another backend
    program = [sys.executable, str(FOLDER / "accelerators.py"), "--results", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    environment.pop("XLA_FLAGS", None)  # of tests, which optimise little
    subprocess.run([*program, "--only", *words], check=True, env=environment)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    names = ("workload", "algorithm", "program")
    return {tuple(line[name] for name in names): line for line in lines}


EQUAL = [("w2", name) for name in MOST_LAUNCHES] + [("w2-10000", "fedssg")]
UNEQUAL = [
    (kind, algorithm)
    for kind in ("w2-unequal", "w2-unequal-auto")
    for algorithm in ("fedavg", "fedssg")
]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """What an H100 would run in a round of W2, 50 clients side by side."""
    file, found = tmp_path_factory.mktemp("accelerators") / "rounds.jsonl", {}
    for kind in ("w2", "w2-10000", "w2-unequal", "w2-unequal-auto"):
        of_kind = [name for k, name in EQUAL + UNEQUAL if k == kind]
        found |= compiled(file, kind, *of_kind, "round")
    return found


of_equal = pytest.mark.parametrize("clients, algorithm", EQUAL)


@pytest.mark.slow
@of_equal
def test_a_step_launches_little_and_the_host_never_waits(rounds, clients, algorithm):
    line = rounds[clients, algorithm, "round"]
    assert line["launches_per_step"] <= MOST_LAUNCHES[algorithm]
    assert line["nested_loops"] == 0 and line["waits_per_step"] == 0
    assert None not in line["step_trips"]


@pytest.mark.slow
@of_equal
def test_a_round_does_little_outside_of_its_steps(rounds, clients, algorithm):
    line = rounds[clients, algorithm, "round"]
    assert line["launches_outside"] <= MOST_OUTSIDE[algorithm]
    assert line["dynamic_loops_outside"] == 0 and line["conditionals_outside"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("clients, algorithm", EQUAL + UNEQUAL)
def test_no_table_is_copied_and_nothing_passes_to_the_host(rounds, clients, algorithm):
    line = rounds[clients, algorithm, "round"]
    assert line["table_copies"] == 0 and line["transfers"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("clients, algorithm", UNEQUAL)
def test_unequal_clients_are_waited_for_once_in_eight_steps(rounds, clients, algorithm):
    line = rounds[clients, algorithm, "round"]
    assert line["launches_per_step"] <= MOST_LAUNCHES[algorithm]
    assert line["nested_loops"] == 0 and line["waits_per_step"] <= 1 / 8
    assert line["num_lanes"] == 50


@pytest.mark.slow
def test_what_a_client_does_after_its_steps_is_not_waited_for(tmp_path):
    """Ditto's own model, whose loop over the same steps has known trips, too."""
    line = compiled(tmp_path / "after.jsonl", "w2", "ditto", "round")
    line = line["w2", "ditto", "round"]
    assert line["waits_per_step"] == 0 and None not in line["step_trips"]
    assert line["dynamic_loops_outside"] == 0


@pytest.mark.slow
def test_convolutions_cost_what_a_bare_loop_has(tmp_path):
    found = compiled(tmp_path / "w1.jsonl", "w1", "fedavg", "bare", "round")
    ours, bare = found["w1", "fedavg", "round"], found["w1", "", "bare"]
    assert ours["launches_per_step"] <= 1.15 * bare["launches_per_step"]
    assert ours["temp_mb"] <= 1.1 * bare["temp_mb"]


@pytest.mark.slow
def test_a_sweep_of_eight_launches_hardly_more_than_one(tmp_path):
    words = ("w2", "fedavg", "bare", "chunk", "sweep")
    found = compiled(tmp_path / "sweep.jsonl", *words)
    run, sweep = (found["w2", "fedavg", name] for name in ("chunk", "sweep"))
    for launches in ("launches_per_step", "launches_outside"):
        assert sweep[launches] <= 1.2 * run[launches]
    assert sweep["waits_per_step"] <= run["waits_per_step"]
    assert sweep["transfers"] == run["transfers"] == 0
    bare = found["w2", "", "bare"]
    assert bare["launches_per_step"] == 20 and bare["step_trips"] == [10]
    assert run["gflop"]["float32"] >= bare["gflop"]["float32"]


@pytest.mark.slow
def test_devices_pass_each_other_sums_and_rows_alone(tmp_path):
    file, more = tmp_path / "devices.jsonl", ("round", "--devices", "8")
    found = compiled(file, "w2", "fedavg", "fedssg", *more)
    found |= compiled(file, "w2-504", "w2-504-all", "fedssg", *more)
    model = 4 * 199_210
    for (kind, algorithm, _), line in found.items():
        passed = dict(line["collectives"])
        reduced, size = passed.pop("all-reduce")
        sums = {"fedavg": 1, "fedssg": 3}[algorithm]  # models' and two tables'
        assert reduced == 1 and abs(size - sums * model) < 10_000  # and steps
        number, size = passed.pop("all-gather", (0, 0))
        # steps and losses of the cohort; of 500 clients' rows the 10 biases of two tables
        assert number <= 1 and size < 6 * 1024
        if algorithm == "fedssg" and kind != "w2-504-all":  # there and back
            number, size = passed.pop("all-to-all")
            assert number == 2
            if kind == "w2":  # an eighth of 56 rows of two tables
                assert abs(size / 2 - 7 * 2 * model) < 10_000
        assert not passed, (kind, algorithm)
        assert line["dynamic_loops_outside"] == line["conditionals_outside"] == 0
        assert line["transfers"] == 0 and line["step_trips"] == [10]
        if kind != "w2-504-all":  # else a table has the shape of what all lanes work on
            assert line["table_copies"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("w1-500", "fedavg"), ("w1-500", "fedssg"), ("resnet18", "fedavg")],
    ids=" ".join,
)
def test_memory_is_known_before_a_round_is_compiled(words, tmp_path):
    found = compiled(tmp_path / "memory.jsonl", *words, "round")
    line = found[*words, "round"]
    assert line["predicted_temp_mb"] == pytest.approx(line["temp_mb"], rel=0.25)
    assert line["predicted_mb"] == pytest.approx(line["peak_mb"], rel=0.25)
