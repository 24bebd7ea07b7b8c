"""What a run is: every setting in one frozen dataclass, checked as it is made."""

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from .. import check
from ..errors import SettingError
from .limits import CLIENTS, check_limits
from .names import is_own
from .options import (
    KINDS,
    Option,
    argument_help,
    checked,
    convert,
    find,
    options_of,
)

Corruption = Literal[
    "label_shift", "random_labels", "random_inputs", "noisy_inputs", "duplicated"
]


# Arguments of algorithms that follow from the run unless they are given, or may be None.
DERIVED = {"total_rounds": "rounds", "participation": "participation", "lr": "lr"}


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The defaults train FedSSG on scikit-learn's digits.

    Attributes:
      algorithm: what to train with; `fedjax-adapt list` shows all
      dataset: what to learn
      train_examples: learn from so many, the first in the order of its files; none: all
      public: what algorithms like FNR-FL train on beside the clients' data: holdout takes
        it out of the training set, split_test out of the test set, published is the test
        set itself, whose accuracy is training accuracy then; none: holdout where the
        algorithm needs one, else nothing
      public_examples: how many of them; none: a tenth of the training set or half of the
        test set, 5000 at most
      validation_examples: taken out of the training set to choose a model by; none: a tenth
        of it, 5000 at most, where the algorithm chooses, else 0
      model: what learns
      projection: width of a projection head between the features and the classifier, as
        MOON has it; none: no head
      augment: flip_crop flips and, half the time, shifts each training image, margins
        zero; reflect_crop flips and always shifts, margins reflected
      labels: own; or parity, even against odd, once the data are split by their own
      partition: who holds which examples
      num_clients: clients in all; none: 30, or with partition=natural as many as own rows
        of data that are read from files
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
      match: folder of a finished run, in place of epochs: take as many local steps in all,
        those on a public set apart
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
      checkpoint_every: rounds between checkpoints, each after the evaluation that is
        next; none: about every 20 seconds
      targets: test accuracies whose first round the summary gives
      lanes: clients trained side by side on a device, cut to the most it has in a round;
        auto: in a run of 100 rounds or more what is fastest, tried out and kept for later
        runs, else by a rule; on an accelerator no more than fit into its memory
      convolutions: how they are computed: winograd, shifts, patches or lax for all that
        can; or, in local training, each kind of layer, as in patches,winograd; auto:
        in a run of 100 rounds or more what is fastest, timed and kept for later runs, else
        by a rule, as with rule
      precision: of the model; float32: of products on an accelerator, too; tf32: theirs, on
        a CPU nothing changes; bf16: forward and backward in bfloat16, from parameters in
        float32
      devices: that share the clients of a round; auto: every accelerator, or every core
      client_memory: where the state of all clients lies; host: in the host's memory, and
        only the rows of a cohort visit the device
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
    public: Literal["holdout", "split_test", "published"] | None = None
    public_examples: int | None = None
    validation_examples: int | None = None
    model: str = "mlp"
    projection: int | None = None
    augment: Literal["none", "flip_crop", "reflect_crop"] = "none"
    labels: Literal["own", "parity"] = "own"
    partition: str = "dirichlet"
    num_clients: int | None = None
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
    convolutions: str = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    devices: int | Literal["auto"] = "auto"
    client_memory: Literal["device", "host"] = "device"
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
        if self.num_clients is None and not _owners_decide(self):
            put("num_clients", CLIENTS)
        check_limits(self)


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


def common_options() -> dict[str, Option]:
    """The settings every run has."""
    return dict(_common_options())


@functools.cache
def _common_options() -> Mapping[str, Option]:
    hints = get_type_hints(Config)
    helps = argument_help((Config.__doc__ or "").replace("\n    ", "\n"))
    return {
        f.name: Option(hints[f.name], f.default, helps[f.name])
        for f in fields(Config)
        if f.default is not MISSING
    }


def kind_options(kind: str, name: str) -> dict[str, Option]:
    """The options of one choice by their own names; the full one is KIND.OPTION."""
    own_one, options = is_own(kind, name), {}
    for own, option in options_of(kind, find(kind, name)).items():
        if own_one:  # 1 for a float is 1.0, as it is read back
            default = convert(option.annotation, option.default)
            option = option._replace(default=default)
        derived = kind == "algorithm" and own in DERIVED and not own_one
        if derived and option.default is not None:
            about = f"{option.help.removesuffix('.')}; none: {DERIVED[own]} of the run"
            option = Option(option.annotation | None, None, about)
        options[own] = option
    return options


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
    given = dict(getattr(config, f"{kind}_options"))
    for option, value in given.items():
        if option not in known:
            raise SettingError(
                f"{kind}={name} has no option {option}; {check.nearest(option, known)}",
                setting=kind,
            )
        given[option] = checked(f"{option}={value!r}", known[option].annotation, value)
    return Options(given)
