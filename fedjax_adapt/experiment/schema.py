"""What a run is: every setting in one frozen dataclass, checked as it is made."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from .. import check
from ..errors import SettingError
from ..plan import ClientMemory, NonfiniteUpdates
from .objects import KINDS
from .options import Option, find, options_of
from .toml import checked, convert
from .user_functions import is_own

CLIENTS = 30  # unless a number is given or the data have one
CLOCK = "step_seconds, the simulated seconds of a local step"

Check = Callable[[str, Any], None]  # (name, value); raises SettingError


class Setting(NamedTuple):
    """What a setting of `Config` is for, as metadata of its field.

    Attributes:
      help: what it means, as `--help` says it.
      group: the heading in `--help` that it stands below.
      check: refuses values out of range.
      needs: "NAME, what that is": another setting without which this one means nothing.
      incidental: changes no number of a run beyond rounding, so it is no part of its
        hash; a run resumes with another.
      untimed: changes neither a shape nor how long a round takes, so lanes and
        convolutions that were timed with another value are kept.
      splits: decides who holds which examples, so `fedjax-adapt partition` has it.
      matched: the same in a run and in the one that `match` names, as which it takes as
        many local steps.
      later: it came after the first version, so at its default it is no part of the hash,
        and runs of before keep theirs.
      settled: where it is "auto" or None the run finds a value, with which it resumes.
      at_end: given to a finished run it changes nothing, and the command line says so.
    """

    help: str
    group: str
    check: Check | None = None
    needs: str = ""
    incidental: bool = False
    untimed: bool = False
    splits: bool = False
    matched: bool = False
    later: bool = False
    settled: bool = False
    at_end: bool = False


def at_least(low: int, none: str | None = None) -> Check:
    """A check for integers from `low` on; `none` says what None means."""
    return lambda name, value: check.at_least(name, value, low, none=none)


def between(low: float, high: float, closed: str = "both") -> Check:
    """A check for numbers in a range, or for several of them."""

    def in_range(name: str, value: Any) -> None:
        for one in value if isinstance(value, Iterable) else (value,):
            check.between(name, one, low, high, closed)

    return in_range


def check_seed(name: str, value: int | None) -> None:
    """Raises SettingError unless `value` is a seed, or None."""
    check.between(name, value or 0, 0, 2**32 - 1)


def check_path(name: str, value: object) -> None:
    """Raises SettingError if a path is empty, which would be the working folder."""
    if value == "":
        raise SettingError(
            f"{name}='' is empty; write the path of a folder, or leave {name} out.",
            setting=name,
        )


def check_later_steps(name: str, value: Sequence[int]) -> None:
    """Raises SettingError unless `value` is pairs of rounds, in order, and steps."""
    said, before = f"{name}={tuple(value)}", 0
    if len(value) % 2:
        raise SettingError(
            f"{said} says no local steps after round {value[-1]}; write pairs of a round "
            "and local steps, as in 20 1.",
            setting=name,
        )
    for done, steps in zip(value[::2], value[1::2], strict=True):
        wrong = ""
        if done < 1:
            wrong = (
                f"begins after round {done}; write a round from 1 on, since num_steps says "
                "the local steps before it."
            )
        elif done <= before:
            wrong = (
                f"has round {done} after round {before}; write each round once, in their "
                "order."
            )
        elif not 1 <= steps <= check.MOST:
            wrong = (
                f"has {steps} local steps after round {done}; write an integer from 1 to "
                f"{check.MOST}."
            )
        if wrong:
            raise SettingError(f"{said} {wrong}", setting=name)
        before = done


def check_ways(name: str, value: str) -> None:
    """Raises SettingError unless `value` names ways to compute convolutions."""
    if value in ("auto", "rule"):
        return
    from ..models.ways import WAYS  # and flax, which takes its time

    if "," not in value:
        check.one_of(name, value, ("auto", "rule", *WAYS))
        return
    for way in value.removesuffix(",").split(","):
        check.one_of(name, way.strip(), WAYS)


Corruption = Literal[
    "label_shift", "random_labels", "random_inputs", "noisy_inputs", "duplicated"
]


def _below(group: str, **usual: Any) -> Callable[..., Any]:
    """What makes the fields of `Config` that stand below a heading of `--help`."""

    def setting(default: Any, help: str, *check: Check, **said: Any) -> Any:
        about = Setting(help, group, *check, **usual | said)
        return field(default=default, metadata={"setting": about})

    return setting


choice, public_set, clients = map(_below, ("choices", "public set", "clients"))
training, record = map(_below, ("training", "record"))
clock = _below("clock", needs=CLOCK)

# Arguments of algorithms that follow from the run unless they are given, or may be None.
DERIVED = {"total_rounds": "rounds", "participation": "participation", "lr": "lr"}


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The defaults train FedSSG on scikit-learn's digits."""

    # names of sweep folders are hashes of the settings in this order
    algorithm: str = choice(
        "fedssg", "what to train with; `fedjax-adapt list` shows all"
    )
    dataset: str = choice("digits", "what to learn", splits=True, matched=True)
    train_examples: int | None = choice(
        None,
        "learn from so many, the first in the order of its files; none: all",
        at_least(1, none="all of them"),
        splits=True,
        matched=True,
    )
    public: Literal["holdout", "split_test", "published"] | None = public_set(
        None,
        "what algorithms like FNR-FL train on besides the clients' data: holdout takes it "
        "out of the training set, split_test out of the test set, published is the test "
        "set itself, whose accuracy is training accuracy then; none: holdout where the "
        "algorithm needs one, else nothing",
        splits=True,
    )
    public_examples: int | None = public_set(
        None,
        "how many of them; none: a tenth of the training set or half of the test set, "
        "5000 at most",
        at_least(1, none="a tenth"),
        splits=True,
    )
    validation_examples: int | None = public_set(
        None,
        "taken out of the training set to choose a model by; none: a tenth of it, 5000 at "
        "most, where the algorithm chooses, else 0",
        at_least(0, none="as needed"),
        splits=True,
    )
    evaluate_on: Literal["test", "validation"] = choice(
        "test",
        "what the model is measured on: the test set; or validation, a tenth of the "
        "training set, 5000 examples at most, that no client trains on, to choose "
        "settings by",
        splits=True,
        matched=True,
        later=True,
    )
    model: str = choice("mlp", "what learns")
    projection: int | None = choice(
        None,
        "width of a projection head between the features and the classifier, as MOON has "
        "it; none: no head",
        at_least(1, none="no head"),
    )
    augment: Literal["none", "flip_crop", "reflect_crop"] = training(
        "none",
        "flip_crop flips and, half the time, shifts each training image, margins zero; "
        "reflect_crop flips and always shifts, margins reflected",
    )
    labels: Literal["own", "parity"] = choice(
        "own", "own; or parity, even against odd, once the data are split by their own"
    )
    partition: str = choice(
        "dirichlet", "who holds which examples", splits=True, matched=True
    )
    num_clients: int | None = clients(
        None,
        "clients in all; none: 30, or with partition=natural as many as own rows of data "
        "that are read from files",
        at_least(1, none="30, or as many as own rows"),
        splits=True,
        matched=True,
        settled=True,
    )
    participation: float = clients(
        0.3,
        "share of the clients that take part in a round, in (0, 1]",
        between(0, 1, closed="right"),
        matched=True,
    )
    sampler: Literal["bernoulli", "uniform", "earliest"] = clients(
        "bernoulli",
        "bernoulli tosses a coin per client (at least one comes), uniform draws a fixed "
        "number without replacement, earliest lets all start and keeps that share, those "
        "that end first on the simulated clock",
        matched=True,
    )
    feature_noise: float = clients(
        0.0,
        "noise on the inputs of client i while it trains, as a standard deviation for "
        "pixels in [0, 1] that grows from 0 to this; the test set is clean",
        check.nonnegative,
    )
    feature_noise_mask: bool = clients(
        False,
        "all of that noise for every client but the last, in a part of the image of its "
        "own",
        needs="feature_noise, the deviation of that noise",
    )
    corrupt: Corruption | None = clients(
        None, "what is wrong with the data of some clients; none: nothing", matched=True
    )
    corrupt_clients: tuple[int, ...] = clients(
        (0,),
        "their ids",
        needs="corrupt, which says what is wrong with them",
        matched=True,
    )
    corrupt_strength: float | None = clients(
        None,
        "labels to shift by (5), share of labels drawn at random (1), bound of inputs "
        "(1), deviation of noise (1), times each example is there (10); none: these",
        needs="corrupt, which says what is wrong with them",
        matched=True,
    )
    rounds: int = training(60, "rounds in all", at_least(1), untimed=True, matched=True)
    epochs: float = training(
        5.0,
        "passes over its own data each client makes in a round",
        between(0, 1_000_000, closed="right"),
    )
    num_steps: int | None = training(
        None,
        "local steps of each client in a round, in place of epochs",
        at_least(1, none="epochs"),
    )
    later_steps: tuple[int, ...] = training(
        (),
        "other local steps later in a run, in pairs of rounds and steps: 20 1 is 1 step "
        "in every round after the first 20",
        check_later_steps,
        needs="num_steps, the local steps until then",
        later=True,
    )
    max_local_steps: int | None = training(
        None,
        "cap on the local steps of a client in a round; none: no cap but the algorithm's "
        "own",
        at_least(1, none="no cap"),
    )
    match: str | None = training(
        None,
        "folder of a finished run, in place of epochs: take about as many local steps in "
        "all, those on a public set apart",
        check_path,
    )
    match_by: Literal["epochs", "steps"] = training(
        "epochs",
        "epochs gives each client steps by its size, rounded down, steps all clients of a "
        "round the same, from round to round the mean rounded down or up",
        needs="match, the folder of the run to be matched",
    )
    batch_size: int | None = training(
        20, "examples per local step; none: all the client has"
    )
    shuffle: Literal["epoch", "replacement", "none"] = training(
        "epoch",
        "epoch deals out a client's examples anew each pass, its last partial batch kept; "
        "replacement draws every batch anew; none takes them in order",
    )
    lr: float = training(0.1, "local learning rate of the first round", untimed=True)
    lr_decay: float = training(
        0.998, "factor on the learning rate per round", untimed=True
    )
    momentum: float = training(0.0, "of local SGD")
    weight_decay: float = training(
        1e-3, "of local SGD, added after clipping", untimed=True
    )
    clip_norm: float | None = training(
        10.0, "global norm to which a local gradient is clipped; none: not at all"
    )
    nonfinite_updates: NonfiniteUpdates = training(
        "stop",
        "what becomes of a client that sends a number which is not finite: stop, it "
        "counts as any other and the run stops; leave_out, it counts for nothing in that "
        "round, which is counted and said",
        later=True,
    )
    step_seconds: float | str | None = clock(
        None,
        "simulated seconds of a local step, a number or a law from which every client "
        "draws once, such as lognormal(0.05, 0.5); none: no time is simulated",
        needs="",
    )
    bandwidth: float | str = clock(
        5e6, "of a client's upload in bits per second; likewise"
    )
    download_bandwidth: float | str | None = clock(
        None, "of its download; likewise; none: the broadcast takes no time"
    )
    latency: float = clock(0.0, "simulated seconds per round trip of messages")
    delay: float | str = clock(
        0.0,
        "simulated seconds a client loses in a round, a number or a law: "
        "exponential(mean), uniform(most), normal(mean, deviation) or lognormal(median, "
        "sigma)",
    )
    delay_persists: bool = clock(
        False, "a client draws its delay once, not anew each round"
    )
    clock_seed: int | None = clock(
        None,
        "of what clients draw once; none: partition_seed",
        check_seed,
        untimed=True,
    )
    evaluate_every: int = record(
        1, "rounds between evaluations on the test set", at_least(1), untimed=True
    )
    evaluate_clients: bool = record(
        True,
        "at the end, the accuracy on every client's own examples",
        incidental=True,
        at_end=True,
    )
    evaluate_also: tuple[Literal["sel", "all"], ...] = record(
        (),
        "models to evaluate besides the server's; sel: the mean of the round's cohort, "
        "all: the mean of every client's last model (one model kept per client)",
    )
    ideal_steps: int | None = record(
        None,
        "show, as ideal_distance, how far each round's model is from where so many steps "
        "of gradient descent on all clients' examples would have led, each a pass over "
        "them; none: not",
        at_least(1, none="no such distance"),
        later=True,
    )
    watch: int | None = record(
        None,
        "show so many parameters, drawn once for all runs: parameter_0 and so on of the "
        "model, gradient_0 and so on the mean gradient of each client's steps; none: not",
        at_least(1, none="no parameter"),
        later=True,
    )
    checkpoint_every: int | None = record(
        None,
        "rounds between checkpoints, each after the evaluation that is next; none: about "
        "every 20 seconds",
        at_least(1, none="by the clock"),
        incidental=True,
    )
    targets: tuple[float, ...] = record(
        (0.9, 0.95, 0.97),
        "test accuracies whose first round the summary gives",
        between(0, 1),
        incidental=True,
        at_end=True,
    )
    lanes: int | Literal["auto"] = training(
        "auto",
        "clients trained side by side on a device, cut to the most it has in a round; "
        "auto: in a run of 100 rounds or more, expected to take 30 s or more, what is "
        "fastest, tried out and kept for later runs, else by a rule; on an accelerator no "
        "more than fit into its memory",
        incidental=True,
        settled=True,
    )
    convolutions: str = training(
        "auto",
        "how they are computed: winograd, shifts, patches or lax for all that can; or, in "
        "local training, each kind of layer, as in patches,winograd; auto: in a run "
        "of 100 rounds or more, expected to take 30 s or more, what is fastest, timed and "
        "kept for later runs, else by a rule, as with rule",
        check_ways,
        incidental=True,
        settled=True,
    )
    precision: Literal["float32", "tf32", "bf16"] = training(
        "float32",
        "of the model; float32: of products on an accelerator, too; tf32: theirs, on a "
        "CPU nothing changes; bf16: forward and backward in bfloat16, from parameters in "
        "float32",
    )
    devices: int | Literal["auto"] = training(
        "auto",
        "that share the clients of a round; auto: every accelerator, or every core",
        incidental=True,
        settled=True,
    )
    client_memory: ClientMemory = training(
        "device",
        "where the state of all clients lies; host: in the host's memory, and only the "
        "rows of a cohort visit the device",
        incidental=True,
    )
    seed: int = training(
        0,
        "of the initial model and of every round",
        check_seed,
        untimed=True,
        splits=True,
    )
    partition_seed: int | None = training(
        None,
        "of the partition and of generated data; none: seed",
        check_seed,
        untimed=True,
        splits=True,
        matched=True,
    )
    data_dir: str | None = record(
        None,
        "where data files are; none: the variable FEDJAX_ADAPT_DATA",
        check_path,
        incidental=True,
        splits=True,
    )
    folder: str | None = record(
        None,
        "where the run goes; none: runs/DATASET-ALGORITHM-HASH",
        check_path,
        incidental=True,
    )
    track: Literal["tensorboard", "wandb", "mlflow"] | None = record(
        None,
        "show the metrics there, too, after each checkpoint; its files are in the folder "
        "tracking of the run",
        incidental=True,
        at_end=True,
    )
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    partition_options: Mapping[str, Any] = field(default_factory=dict)
    dataset_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        """Checks every setting; SettingError on the first that is not as it must be."""
        put = lambda name, value: object.__setattr__(self, name, value)
        for name, option in common_options().items():
            value = getattr(self, name)
            value = str(value) if isinstance(value, Path) else value
            if name in KINDS and not isinstance(value, str):
                raise SettingError(
                    f"{name} is {check.kind_of(value)}, no name; write one that "
                    "fedjax-adapt list shows. Objects go to run(config, algorithm=..., "
                    "task=..., data=...).",
                    setting=name,
                )
            put(name, checked(f"{name}={value!r}", option.annotation, value))
        for kind in KINDS:
            put(f"{kind}_options", _checked_options(self, kind))
        if self.num_clients is None and not _owners_decide(self):
            put("num_clients", CLIENTS)
        for name, setting in settings().items():
            if setting.check is not None:
                setting.check(name, getattr(self, name))
            needed = setting.needs.partition(",")[0]
            if needed and self.is_set(name) and not self.is_set(needed):
                value = getattr(self, name)
                raise SettingError(
                    f"{name}={value} needs {setting.needs}.", setting=name
                )
        _check_together(self)

    def is_set(self, name: str) -> bool:
        """Whether a setting is not at its default."""
        usual = [getattr(type(self), name)]
        if name == "num_clients":
            usual.append(CLIENTS)
        return getattr(self, name) not in usual


class Options(Mapping):
    """Options of one choice, read-only, and yet what `asdict` and `pickle` take."""

    def __init__(self, given: Mapping[str, Any]):
        """Takes a copy of them."""
        self._given = dict(given)

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return repr(self._given)


@functools.cache
def common_options() -> Mapping[str, Option]:
    """The settings every run has."""
    hints = get_type_hints(Config)
    return {
        name: Option(hints[name], getattr(Config, name), setting.help)
        for name, setting in settings().items()
    }


@functools.cache
def settings() -> Mapping[str, Setting]:
    """What the settings of every run say of themselves, by name."""
    return {f.name: f.metadata["setting"] for f in fields(Config) if f.metadata}


def settings_that_are(trait: str) -> list[str]:
    """The settings of which a flag of `Setting` holds, such as "incidental"."""
    return [name for name, setting in settings().items() if getattr(setting, trait)]


def kind_options(kind: str, name: str) -> dict[str, Option]:
    """The options of one choice by their short names; the full one is KIND.OPTION."""
    own_one, options = is_own(kind, name), {}
    for short, option in options_of(kind, find(kind, name)).items():
        if own_one:  # 1 for a float is 1.0, as it is read back
            default = convert(option.annotation, option.default)
            option = option._replace(default=default)
        derived = kind == "algorithm" and short in DERIVED and not own_one
        if derived and option.default is not None:
            about = option.help.removesuffix(".")
            about += f"; none: {DERIVED[short]} of the run"
            option = Option(option.annotation | None, None, about)
        options[short] = option
    return options


def _check_together(config: Config) -> None:
    """Raises SettingError if two settings contradict each other."""
    if config.num_steps is not None and config.is_set("epochs"):
        raise SettingError(
            f"epochs={config.epochs:g} and num_steps={config.num_steps} both say how long "
            "a client trains; write one of them.",
            setting="epochs",
        )
    for name in ("epochs", "num_steps"):
        if config.match is not None and config.is_set(name):
            raise SettingError(
                f"match={config.match} and {name}={getattr(config, name):g} both say how "
                "long a client trains; write one of them.",
                setting="match",
            )
    if config.later_steps and config.later_steps[-2] >= config.rounds:
        raise SettingError(
            f"later_steps={config.later_steps} begins after round "
            f"{config.later_steps[-2]}, but rounds={config.rounds}; write fewer.",
            setting="later_steps",
        )
    if config.client_memory == "host" and "all" in config.evaluate_also:
        raise SettingError(
            "evaluate_also=all averages the models of all clients on the device, which "
            "client_memory=host is there to avoid; leave one of them out.",
            setting="evaluate_also",
        )
    if config.sampler == "earliest" and config.step_seconds is None:
        raise SettingError(f"sampler=earliest needs {CLOCK}.", setting="sampler")


def _owners_decide(config: Config) -> bool:
    """Whether the data have clients of their own, as many as only loading them says."""
    if config.partition != "natural":
        return False
    loader = find("dataset", config.dataset)
    return "num_clients" not in inspect.signature(loader).parameters


def _checked_options(config: Config, kind: str) -> Mapping[str, Any]:
    """The options given to one choice, of the right names and types, read-only."""
    name = getattr(config, kind)
    known = kind_options(kind, name)
    options = getattr(config, f"{kind}_options")
    if not isinstance(options, Mapping):
        raise SettingError(
            f"{kind}_options={options!r} is not a dict; write one of options and their "
            "values, {} for none."
        )
    given = dict(options)
    for option, value in given.items():
        if option not in known:
            raise SettingError(
                f"{kind}={name} has no option {option}; {check.nearest(option, known)}",
                setting=kind,
            )
        given[option] = checked(f"{option}={value!r}", known[option].annotation, value)
    return Options(given)
