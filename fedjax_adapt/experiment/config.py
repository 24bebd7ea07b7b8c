"""What a run is: every setting in one frozen dataclass, from TOML, flags or Python.

Files and flags name settings in one flat space: the fields of `Config` beside the
options of the chosen algorithm, model, partition and data set. An option whose name is
taken is prefixed with its kind: `dataset_alpha` beside the algorithm's `alpha`.
"""

import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from .. import check
from . import toml
from .options import (
    KINDS,
    Option,
    argument_help,
    checked,
    find,
    options_of,
    registry,
    suggestion,
)

# Settings that change no number of a run beyond rounding: it may be resumed with others.
INCIDENTAL = (
    *("data_dir", "folder", "targets", "checkpoint_every", "devices"),
    "evaluate_clients",
)

Corruption = Literal[
    "label_shift", "random_labels", "random_inputs", "noisy_inputs", "duplicated"
]

# Arguments of algorithms that follow from the run unless they are given.
DERIVED = {"total_rounds": "rounds", "participation": "participation", "lr": "lr"}


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The defaults train FedSSG on scikit-learn's digits.

    Attributes:
      algorithm: what to train with; `fedjax-adapt list` shows all
      dataset: what to learn
      train_examples: learn from no more than its first ones, so many; none: all
      model: what learns
      projection: width of a projection head between the features and the classifier, as
        MOON has it; none: no head
      augment: flip_crop flips and, half the time, shifts each training image, margins
        zero; reflect_crop flips and always shifts, margins reflected
      labels: own; or parity, even against odd, once the data are split by their own
      partition: who holds which examples
      num_clients: clients in all
      participation: share of the clients that take part in a round, in (0, 1]
      sampler: bernoulli tosses a coin per client (at least one comes), uniform draws a
        fixed number without replacement, earliest lets all start and keeps that share,
        those that end first on the simulated clock
      feature_noise: noise on the inputs of client i while it trains, as a standard
        deviation for pixels in [0, 1] that grows from 0 to this; the test set is clean
      feature_noise_mask: all of that noise for every client but the last, in a part of the
        image of its own
      corrupt: what is wrong with the data of some clients; none: nothing
      corrupt_clients: their ids
      corrupt_strength: labels to shift by (5), share of labels drawn at random (1), bound
        of inputs (1), deviation of noise (1), times each example is there (10); none: these
      rounds: rounds in all
      epochs: passes over its own data each client makes in a round
      num_steps: local steps of each client in a round, in place of epochs
      max_local_steps: cap on the local steps of a client in a round; none: no cap but the
        algorithm's own
      match: folder of a finished run, in place of epochs: take as many local steps in all
      match_by: epochs gives each client steps by its size, steps all clients of a round the
        same, from round to round the mean rounded down or up
      batch_size: examples per local step; none: all the client has
      shuffle: epoch deals out a client's examples anew each pass, its last partial batch
        kept; replacement draws every batch anew; none takes them in order
      lr: local learning rate of the first round
      lr_decay: factor on the learning rate per round
      momentum: of local SGD
      weight_decay: of local SGD, added after clipping
      clip_norm: global norm to which a local gradient is clipped; none: not at all
      step_seconds: simulated seconds of a local step, a number or a law from which every
        client draws once, such as lognormal(0.05, 0.5); none: no time is simulated
      bandwidth: of a client's upload in bits per second; likewise
      download_bandwidth: of its download; likewise; none: the broadcast takes no time
      latency: simulated seconds per round trip of messages
      delay: simulated seconds a client loses in a round, a number or a law:
        exponential(mean), uniform(most), normal(mean, deviation) or lognormal(median,
        sigma)
      delay_persists: a client draws its delay once, not anew each round
      clock_seed: of what clients draw once; none: partition_seed
      evaluate_every: rounds between evaluations on the test set
      evaluate_clients: at the end, the accuracy on every client's own examples
      evaluate_also: models to evaluate beside the server's; sel: the mean of the round's
        cohort, all: the mean of every client's last model (one model kept per client)
      checkpoint_every: rounds between checkpoints; none: about every 20 seconds
      targets: test accuracies whose first round the summary gives
      lanes: clients trained side by side on a device; auto: by backend
      devices: that share the clients of a round; auto: every accelerator, or every core
      seed: of the initial model and of every round
      partition_seed: of the partition and of generated data; none: seed
      data_dir: where data files lie; none: the variable FEDJAX_ADAPT_DATA
      folder: where the run goes; none: runs/DATASET-ALGORITHM-HASH
      algorithm_options: arguments of the algorithm's constructor
      model_options: arguments of the model
      partition_options: arguments of the partition
      dataset_options: arguments of the data set's loader
    """

    algorithm: str = "fedssg"
    dataset: str = "digits"
    train_examples: int | None = None
    model: str = "mlp"
    projection: int | None = None
    augment: Literal["none", "flip_crop", "reflect_crop"] = "none"
    labels: Literal["own", "parity"] = "own"
    partition: str = "dirichlet"
    num_clients: int = 30
    participation: float = 0.3
    sampler: Literal["bernoulli", "uniform", "earliest"] = "bernoulli"
    feature_noise: float = 0.0
    feature_noise_mask: bool = False
    corrupt: Corruption | None = None
    corrupt_clients: tuple[int, ...] = (0,)
    corrupt_strength: float | None = None
    rounds: int = 60
    epochs: float = 5.0
    num_steps: int | None = None
    max_local_steps: int | None = None
    match: str | None = None
    match_by: Literal["epochs", "steps"] = "epochs"
    batch_size: int | None = 20
    shuffle: Literal["epoch", "replacement", "none"] = "epoch"
    lr: float = 0.1
    lr_decay: float = 0.998
    momentum: float = 0.0
    weight_decay: float = 1e-3
    clip_norm: float | None = 10.0
    step_seconds: float | str | None = None
    bandwidth: float | str = 5e6
    download_bandwidth: float | str | None = None
    latency: float = 0.0
    delay: float | str = 0.0
    delay_persists: bool = False
    clock_seed: int | None = None
    evaluate_every: int = 1
    evaluate_clients: bool = True
    evaluate_also: tuple[Literal["sel", "all"], ...] = ()
    checkpoint_every: int | None = None
    targets: tuple[float, ...] = (0.9, 0.95, 0.97)
    lanes: int | Literal["auto"] = "auto"
    devices: int | Literal["auto"] = "auto"
    seed: int = 0
    partition_seed: int | None = None
    data_dir: str | None = None
    folder: str | None = None
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    partition_options: Mapping[str, Any] = field(default_factory=dict)
    dataset_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        """Checks every setting; ValueError on the first that is not as it must be."""
        put = lambda name, value: object.__setattr__(self, name, value)
        for name, option in common_options().items():
            value = getattr(self, name)
            value = str(value) if isinstance(value, Path) else value
            put(name, checked(f"{name}={value!r}", option.annotation, value))
        for kind in KINDS:
            put(f"{kind}_options", _checked_options(self, kind))
        _check_values(self)


def common_options() -> dict[str, Option]:
    """The settings every run has."""
    hints = get_type_hints(Config)
    helps = argument_help((Config.__doc__ or "").replace("\n    ", "\n"))
    return {
        f.name: Option(hints[f.name], f.default, helps[f.name])
        for f in fields(Config)
        if f.default is not MISSING
    }


def kind_options(kind: str, name: str) -> dict[str, tuple[str, Option]]:
    """The options of one choice: its own name -> (name in flat space, option)."""
    taken = set(common_options())
    for earlier in KINDS[: KINDS.index(kind)]:
        for function in registry(earlier).values():
            taken.update(options_of(earlier, function))
    options = {}
    for own, option in options_of(kind, find(kind, name)).items():
        if kind == "algorithm" and own in DERIVED:
            about = f"{option.help.removesuffix('.')}; none: {DERIVED[own]} of the run"
            option = Option(option.annotation | None, None, about)
        options[own] = (f"{kind}_{own}" if own in taken else own, option)
    return options


def all_options(choices: Mapping[str, str]) -> dict[str, Option]:
    """Every setting a run with these choices has, by its name in flat space."""
    options = common_options()
    for kind in KINDS:
        options.update(kind_options(kind, choices[kind]).values())
    return options


def choices_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm, model, partition and data set that settings choose."""
    common = common_options()
    return {kind: settings.get(kind, common[kind].default) for kind in KINDS}


def from_settings(settings: Mapping[str, Any]) -> Config:
    """The config with these settings, flat; what is not given has its default.

    Raises:
      ValueError: a name is unknown, or a value is of the wrong type or out of range.
    """
    choices = choices_in(settings)
    known = all_options(choices)
    for name in settings:
        if name not in known:
            raise ValueError(f"setting {name} is unknown; {suggestion(name, known)}")
    common = {n: v for n, v in settings.items() if n in common_options()}
    nested: dict[str, Any] = {
        f"{kind}_options": {
            own: settings[flat]
            for own, (flat, _) in kind_options(kind, choices[kind]).items()
            if flat in settings
        }
        for kind in KINDS
    }
    return Config(**common, **nested)


def to_settings(config: Config) -> dict[str, Any]:
    """Every setting, flat and resolved; the inverse of `from_settings`."""
    settings = {name: getattr(config, name) for name in common_options()}
    settings["partition_seed"] = partition_seed(config)
    for kind in KINDS:
        given = getattr(config, f"{kind}_options")
        for own, (flat, option) in kind_options(kind, getattr(config, kind)).items():
            settings[flat] = given.get(own, option.default)
    return settings


def partition_seed(config: Config) -> int:
    """The seed of the partition: `seed`, unless another is given."""
    return config.seed if config.partition_seed is None else config.partition_seed


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a TOML file gives, checked.

    Raises:
      ValueError: no TOML, an unknown key or a value of the wrong type; the sentence
        names the file and the line.
    """
    settings = toml.read(path)
    at = lambda key: f"{path}, line {toml.line_of(path, key)}"
    choices = choices_in(settings)
    for kind in KINDS:
        try:
            find(kind, checked(f"{kind}={choices[kind]!r}", str, choices[kind]))
        except ValueError as error:
            raise ValueError(f"{at(kind)}: {error}") from None
    known = all_options(choices)
    for key, value in settings.items():
        if key not in known:
            raise ValueError(f"{at(key)}: {key} is unknown; {suggestion(key, known)}")
        sentence = f"{at(key)}: {key}={value!r}"
        settings[key] = checked(sentence, known[key].annotation, value)
    from .build import build_algorithm, build_plan  # which take a config

    own_names = kind_options("algorithm", choices["algorithm"])
    flat_name = lambda own: own_names.get(own, (own,))[0]
    for build, name_of in (
        (lambda: build_plan(from_settings(settings)), str),
        (lambda: build_algorithm(from_settings(settings)), flat_name),
    ):
        try:
            build()
        except ValueError as error:  # out of range
            key = name_of(str(error).partition("=")[0])
            where = at(key) if key in settings else path
            raise ValueError(f"{where}: {error}") from None
    return settings


def to_toml(config: Config) -> str:
    """The resolved config as a TOML file that `--config` reads back.

    `folder` and `data_dir` are left out: they say where things lie on this machine.
    """
    settings = to_settings(config)
    del settings["folder"], settings["data_dir"]
    known = all_options(choices_in(settings))
    for name, value in settings.items():
        if value is None and known[name].default is not None:
            settings[name] = "none"
    comments = {}
    for kind in KINDS:
        flat = [f for f, _ in kind_options(kind, getattr(config, kind)).values()]
        first = next((name for name in flat if name in settings), None)
        comments[first] = f"options of {kind} = {getattr(config, kind)}"
    return toml.dumps(settings, comments)


def config_hash(config: Config) -> str:
    """Eight hexadecimal digits that say which numbers a run will produce."""
    settings = to_settings(config)
    identity = {k: v for k, v in settings.items() if k not in INCIDENTAL}
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _checked_options(config: Config, kind: str) -> Mapping[str, Any]:
    """The options given to one choice, of the right names and types, read-only."""
    name = getattr(config, kind)
    known = {own: option for own, (_, option) in kind_options(kind, name).items()}
    given = dict(getattr(config, f"{kind}_options"))
    for option, value in given.items():
        check.one_of(f"option of {kind} {name}", option, known)
        given[option] = checked(f"{option}={value!r}", known[option].annotation, value)
    return types.MappingProxyType(given)


def _check_values(config: Config) -> None:
    check.at_least("projection", config.projection, 1, none="no head")
    check.at_least("num_clients", config.num_clients, 1)
    check.at_least("train_examples", config.train_examples, 1, none="all of them")
    check.between("participation", config.participation, 0, 1, closed="right")
    check.nonnegative("feature_noise", config.feature_noise)
    if config.feature_noise_mask and config.feature_noise == 0:
        raise ValueError("feature_noise_mask=True needs feature_noise above 0.")
    for name in ("corrupt_strength", "corrupt_clients"):
        if config.corrupt is None and getattr(config, name) != getattr(Config, name):
            raise ValueError(
                f"{name} needs corrupt, which says what is wrong with them."
            )
    check.positive("epochs", config.epochs)
    check.between("epochs", config.epochs, 0, 1_000_000)
    check.at_least("num_steps", config.num_steps, 1, none="epochs")
    check.at_least("max_local_steps", config.max_local_steps, 1, none="no cap")
    if config.num_steps is not None and config.epochs != Config.epochs:
        raise ValueError(
            f"epochs={config.epochs:g} and num_steps={config.num_steps} both say how long "
            "a client trains; write one of them."
        )
    for name in ("epochs", "num_steps"):
        value = getattr(config, name)
        if config.match is not None and value != getattr(Config, name):
            raise ValueError(
                f"match={config.match} and {name}={value:g} both say how long a client "
                "trains; write one of them."
            )
    if config.match is None and config.match_by != Config.match_by:
        raise ValueError("match_by needs match, the folder of the run to be matched.")
    _check_clock(config)
    check.at_least("rounds", config.rounds, 1)
    check.at_least("evaluate_every", config.evaluate_every, 1)
    check.at_least("checkpoint_every", config.checkpoint_every, 1, none="by the clock")
    for target in config.targets:
        check.between("targets", target, 0, 1)
    for seed in ("seed", "partition_seed", "clock_seed"):
        check.between(seed, getattr(config, seed) or 0, 0, 2**32 - 1)


def _check_clock(config: Config) -> None:
    if config.step_seconds is not None:
        return
    if config.sampler == "earliest":
        raise ValueError(
            "sampler=earliest needs step_seconds, the simulated seconds of a local step."
        )
    clock = ("bandwidth", "download_bandwidth", "latency", "delay", "delay_persists")
    for name in (*clock, "clock_seed"):
        if getattr(config, name) != getattr(Config, name):
            raise ValueError(
                f"{name} needs step_seconds, the simulated seconds of a local step."
            )
