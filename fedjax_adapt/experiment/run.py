"""A run: build, train on the device, write down what happens, end with a summary.

The device runs groups: the rounds from one evaluation to the next, and the evaluation,
in one compiled program. Rows are written before each checkpoint, and a resumed run goes
on from the newest checkpoint with the rows cut back to it. Round t's key is folded in
from the seed by t, and every group is the same program, so a resumed run gives the
numbers of one that was never interrupted, to the bit.

Several processes that `jax.distributed.initialize` has joined make one run together: each
calls `run` with the same config, and the first alone sees the folder.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from .. import check
from ..core import Algorithm, State, Task, tree_bytes
from ..data import FederatedDataset, Skew
from ..engine import memory, processes
from ..engine.cohort import slots_per_device
from ..engine.personal import client_examples, evaluate_clients, evaluate_personal
from ..engine.train import Callback, check_callback
from ..engine.xla import keeps_memory
from . import checkpoint, objects, store, summary, tuning, user_functions
from .build import (
    Federation,
    auxiliary,
    build,
    build_plan,
    public_summary,
    without_effect,
)
from .config import Config, config_hash, method_of, partition_seed, to_settings
from .folder import (
    as_begun,
    check_folder,
    create,
    is_finished,
    locked_folder,
    run_folder,
    stored_settings,
)
from .loop import new_log, new_warning, newest_state, train_in
from .process_group import check_same_run
from .program import Program, compile_program
from .schema import settings_that_are
from .summary import Summary
from .tracking import check_tracker
from .tuning import lanes_for
from .user_functions import origins


class Progress(NamedTuple):
    """How far a run is; the figures are None until the first evaluation."""

    round: int
    rounds: int
    accuracy: float | None = None
    loss: float | None = None
    rounds_per_second: float | None = None
    warning: str | None = None  # said once
    accuracy_name: str = "accuracy"  # what it is
    doing: str | None = None  # before the first round
    note: str | None = None  # said once
    whose: str = ""  # rounds, after their number, where they are of more than a run


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Reports nothing."""


def run(
    config: Config,
    resume: bool = False,
    progress: Report = silent,
    *,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    data: FederatedDataset | None = None,
    callback: Callback | None = None,
) -> Summary:
    """Trains, or goes on training, and leaves a run folder behind.

    Args:
      config: every setting.
      resume: go on with the run that lies in the folder, if there is one. Of one that is
        finished it returns what summary.json holds, and runs nothing.
      progress: called about every second, between rounds, and while numbers of lanes are
        tried; if it raises KeyboardInterrupt the rounds so far are saved.
      algorithm: in place of the config's, which calls it "object"; with the step policy
        it brings, else the config's `num_steps` or `epochs`. What was given is described
        in the folder, and resuming takes it again.
      task: likewise, in place of the model. Its `metrics` are columns of the table
        `metrics`, and in `Summary.reported`.
      data: likewise, in place of the data set, its partition and number of clients. Where
        a model goes by name, its inputs are standardised by the mean of all of `data.x`.
        Its test set, where it has none, is all the test examples of its clients.
      callback: called with a dict for each round, after the evaluation that follows it:
        round (1 is the first), train_loss, cohort, local_steps, public_steps, bytes_down,
        bytes_up, simulated_seconds, wasted_bytes, wasted_steps, left_out, clipped, cut,
        delta_norm and the scalars of the step policy, as in `load_run(folder).metrics` but
        of that round alone (totals there are since the start of the run); and, in the last
        before an evaluation, accuracy, loss and seconds. If it returns True the run ends
        after the evaluation that follows the round, the rounds up to there are kept, and
        the folder is finished: `Summary.stopped_round`. What it raises is raised, and the
        rounds so far are saved, to be resumed: it is called for the rounds that are run
        then. Of several processes the first calls it.

    Returns:
      What summary.json holds.

    Raises:
      SettingError: a setting, a data file or the folder is not as it must be, or not the
        same in every process; nothing has been written.
      Diverged: the server's model is no longer finite, or its loss; the rows so far are
        written.
    """
    check.kinds("run(Config(algorithm=...))", config=(config, Config))
    call = "run(config, resume=True, progress=progress)"
    check.kinds(call, resume=(resume, bool), progress=(progress, callable))
    check_callback("run(config, callback=callback)", callback)
    user_functions.forget_changed()
    with objects.given(algorithm, task, data):
        return _run(objects.settled(config), resume, progress, callback)


def _run(
    config: Config, resume: bool, progress: Report, callback: Callback | None
) -> Summary:
    commit = summary.commit()  # now: the checkout may move on while the run goes on
    folder = run_folder(config)
    begun, over = config, None
    with processes.agreed():
        if processes.is_first():
            check_tracker(config.track)
            if resume and is_finished(folder, config):
                over = summary.from_dict(store.read_summary(folder) or {})
            if over is None:
                check_folder(folder, config, resume)
            begun = as_begun(folder, config)
    if ended := processes.from_first(asdict(over) if over else None):
        return Summary(**ended)
    settled = {name: getattr(begun, name) for name in settings_that_are("settled")}
    config = replace(config, **processes.from_first(settled))
    with processes.agreed():
        federation = build(config)
    config = replace(config, num_clients=federation.data.num_clients)
    check_same_run(config, federation.source)
    with processes.agreed():
        began = time.perf_counter()
        show = lambda **said: progress(Progress(0, config.rounds, **said))
        by_rule = config.lanes == "auto"
        config = replace(config, lanes=lanes_for(config, federation, show))
        federation = federation._replace(plan=build_plan(config))
        config, task = tuning.settle_convolutions(config, federation, show)
        calibrated = time.perf_counter() - began
        federation = federation._replace(task=task)
        config, federation, program = _compiled(config, federation, by_rule, show)
        if processes.is_first():
            create(folder)
    used = replace(config, devices=program.num_devices)
    with locked_folder(folder, used, resume) as writes:
        state = _train(config, federation, program, folder, progress, callback)
        each = {}
        if config.evaluate_clients:
            devices, parts = program.num_devices, federation[:3]
            each = accuracy_by_client(*parts, state, devices)
        result = None
        if writes:
            parts = federation, program
            result = finish_run(folder, config, *parts, commit, each, calibrated)
    return Summary(**processes.from_first(asdict(result) if result else None))


def _compiled(
    config: Config, federation: Federation, auto: bool, show: Callable[..., None]
) -> tuple[Config, Federation, Program]:
    """The program of a run, of fewer lanes where the compiler has no room for the rule's.

    `auto`: the number is that of the rule, which knows memory by an estimate.
    """
    while True:
        show(doing="tracing")
        lanes, program = int(config.lanes), None
        try:
            tell = lambda doing: show(doing=doing)
            program = compile_program(config, federation, tell=tell)
        except RuntimeError as error:
            if not (auto and lanes > 1 and memory.is_exhausted(error)):
                raise
        # several processes need one program: what one has no room for, none takes
        have_room = all(processes.of_all(program is not None))
        if program is not None and have_room:
            return config, federation, program
        fewer = -(-lanes // 2)
        show(
            doing="compiling",
            note=f"lanes={fewer}, since a program of {lanes} does not fit into the memory "
            "of the device",
        )
        config = replace(config, lanes=fewer)
        federation = federation._replace(plan=build_plan(config))


def labels_by_client(skew: Skew, data: FederatedDataset) -> dict[str, Any]:
    """The rows of the table `store.PARTITION`; `name` where clients have names."""
    counts = list(skew.label_counts)
    rows = {"client": list(range(len(counts))), "label_counts": counts}
    if data.client_names is not None:
        rows["name"] = list(map(str, data.client_names))
    return rows


def _train(
    config: Config,
    federation: Federation,
    program: Program,
    folder: Path,
    progress: Report,
    callback: Callback | None,
) -> State:
    """From the newest checkpoint to the last round; returns the state after it."""
    state, done, aside = newest_state(folder, program.abstract)
    state = program.init() if state is None else state
    log = new_log(folder, federation, {None: config}, callback, done=done)
    shown = log.accuracy.replace("_", " ")
    given: set[tuple[str, int | None]] = set()
    rounded = None
    if done and processes.is_first():
        begun, most = stored_settings(folder), slots_per_device(*federation[2:4])
        if isinstance(begun.get("lanes"), int):  # what is above is cut off
            begun["lanes"] = min(begun["lanes"], most)
        used = {"devices": program.num_devices, "lanes": program.num_lanes}
        rounded = _rounded_otherwise(begun, to_settings(config) | used)
    warnings = [w for w in (aside, rounded) if w]
    warnings += without_effect(config, federation)
    for warning in warnings or [None]:
        progress(Progress(done, config.rounds, warning=warning, accuracy_name=shown))

    def report(done: int, latest: tuple[float, float], rate: float) -> None:
        warning = new_warning({None: config}, program.max_steps, log, done, given)
        progress(Progress(done, config.rounds, *latest, rate, warning, shown))

    return train_in(folder, config, program, state, done, log, report)


def _rounded_otherwise(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What to say of a run that goes on otherwise than it was begun; None: it does not."""
    # on which sums and their order depend, and nothing else
    rounded = {*settings_that_are("settled")} & {*settings_that_are("incidental")}
    fixed = [n for n in now if n in rounded and then.get(n) not in (None, "auto")]
    changed = [name for name in fixed if then[name] != now[name]]
    if not changed:
        return None
    was, goes_on = (
        ", ".join(f"{name}={of[name]}" for name in changed) for of in (then, now)
    )
    return (
        f"the run was begun with {was} and goes on with {goes_on}; its numbers differ by "
        "rounding from those of a run that never stopped."
    )


def accuracy_by_client(
    algorithm: Algorithm, task: Task, data: FederatedDataset, state: State, devices: int
) -> dict[str, list[float | None]]:
    """The accuracy of the server's model on each client's examples, as `client_accuracy`.

    And that of each client's own model as `personal_accuracy`, where clients have such.
    None for a client without examples.
    """
    server = evaluate_clients(task, state.params, data, devices=devices)
    found = {"client_accuracy": server.accuracy}
    if algorithm.local.personal is not None:
        personal = evaluate_personal(algorithm, task, state, data, devices=devices)
        found["personal_accuracy"] = personal.accuracy
    sizes = client_examples(data).size
    return {name: summary.known_shares(v, sizes) for name, v in found.items()}


def finish_run(
    folder: Path,
    config: Config,
    federation: Federation,
    program: Program,
    commit: str | None,
    each: Mapping[str, Sequence[float | None]],
    calibrated: float = 0.0,
    trials: int = 1,
) -> Summary:
    """The summary of a run, or a trial, whose rows lie in `folder`, which is finished so.

    A trial's federation has the skew of its own partition, and `trials` share the program's
    state. `each` is what `accuracy_by_client` found, empty where that was not asked for;
    `calibrated` are the seconds that trying lanes and convolutions took.
    """
    source, sizes = federation.source, federation.skew.sizes
    tests = federation.data.client_tests
    metrics = store.read_table(folder, "metrics")
    named = store.accuracy_in(metrics.column_names)
    by_class = metrics[f"class_{named}"][-1].as_py()
    rounds = metrics["round"][-1].as_py()
    found = summary.results(metrics, config.targets)
    left_out = []
    if found["left_out"]:  # client updates, whose rounds the table of clients has
        clients = store.read_table(folder, "clients")
        left_out = clients.filter(clients["left_out"])["round"].to_pylist()
    used = {
        "devices": program.num_devices,
        "lanes": program.num_lanes,
        "keeps_memory": keeps_memory(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "xla_options": program.xla_options or {},
    }
    if processes.several():
        used["processes"] = jax.process_count()
    over_clients = {name: summary.spread_over_clients(v) for name, v in each.items()}
    result = Summary(
        folder=str(folder),
        method=method_of(config),
        compile_seconds=program.seconds,
        calibrate_seconds=calibrated,
        config_hash=config_hash(config),
        seeds={"seed": config.seed, "partition_seed": partition_seed(config)},
        data={
            "name": config.dataset,
            "train": len(source.y_train),
            "test": len(source.y_test),
            "classes": source.num_classes,
            "clients": len(sizes),
            "smallest_client": int(sizes.min()),
            "largest_client": int(sizes.max()),
            "label_entropy": federation.skew.mean_entropy,
            "client_tests": 0 if tests is None else int(tests.size.sum()),
        },
        hardware=summary.hardware() | used,
        versions=summary.versions(),
        commit=commit,
        class_accuracy=summary.known_shares(by_class, source.test_counts()),
        client_accuracy=over_clients.get("client_accuracy", {}),
        personal_accuracy=over_clients.get("personal_accuracy", {}),
        client_state_bytes=tree_bytes(program.abstract.clients) // trials,
        memory=_memory(program),
        public=public_summary(federation),
        auxiliary=auxiliary(federation),
        own=origins([config]),
        reported=summary.reported(metrics, config.watch or 0),
        stopped_round=rounds if rounds < config.rounds else None,
        first_left_out_round=min(left_out, default=None),
        **found,
    )
    rows = labels_by_client(federation.skew, federation.data)
    store.append(folder, store.PARTITION, {**rows, **each}, 0)
    store.finish(folder, result.to_dict())
    return result


def _memory(program: Program) -> dict[str, int | None]:
    expected = program.footprint
    if expected is None:  # trials side by side have none
        return {}
    state = tree_bytes(program.abstract)
    # nothing is compiled any more when states are written while rounds go on
    written = checkpoint.COPIES * state if checkpoint.has_room(state) else 0
    fullest = expected._replace(compiler=max(expected.compiler, written))
    most = {"predicted_peak": fullest.peak, "peak": memory.peak_memory()}
    return expected._asdict() | most
