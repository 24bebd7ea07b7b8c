"""How settings may be written: their full names, short ones, and those of old files.

An option's full name is KIND.OPTION, as in `algorithm.mu`; in a file also `mu` in the
table [algorithm], whose `name` is the choice. The short name is the option's own, where
no other setting of the run has it. `algorithm_mu` is read, too.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from ..errors import SettingError
from .objects import KINDS
from .schema import common_options, kind_options

# options that had their kind before their name when all names were in one space
PREFIXED = ("dataset.alpha", "dataset.beta", "dataset.channels")


def other_spellings(full: str) -> list[str]:
    """All that a full name may be written as, itself first."""
    kind, dot, short = full.partition(".")
    return [full, f"{kind}_{short}", short] if dot else [full]


def spellings(names: Iterable[str]) -> dict[str, list[str]]:
    """What each spelling of these full names may mean, in their order."""
    names = list(names)
    found = {name: [name] for name in names}
    for name in names:
        for spelling in other_spellings(name)[1:]:
            means = found.setdefault(spelling, [])
            if spelling not in names and name not in means:
                means.append(name)
    return found


def shortest(names: Iterable[str]) -> dict[str, str]:
    """The shortest name that means each of these, by full name."""
    names = list(names)
    means = spellings(names)
    short = lambda name: name.rpartition(".")[2]
    is_own = lambda name: means[short(name)] == [name]
    return {name: short(name) if is_own(name) else name for name in names}


def writable(names: Iterable[str]) -> list[str]:
    """What to propose of these: short names, and the full ones."""
    names = list(names)
    return list(dict.fromkeys([*shortest(names).values(), *names]))


def choices_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm, model, partition and data set that settings choose."""
    common = common_options()
    return {kind: settings.get(kind, common[kind].default) for kind in KINDS}


def known_names(choices: Mapping[str, Any]) -> list[str]:
    """The full names of all settings, but for choices that there are not."""
    names = list(common_options())
    for kind, name in choices.items():
        names += [f"{kind}.{option}" for option in _options(kind, name) or ()]
    return names


def _options(kind: str, name: Any) -> Iterable[str] | None:
    """The options of a choice; None: there is none, as who needs them will say."""
    try:
        return kind_options(kind, name) if isinstance(name, str) else None
    except SettingError:
        return None


def flattened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without tables: `name` of the table of a kind is the choice."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        table = value if key in KINDS and isinstance(value, Mapping) else {"": value}
        for short, inner in table.items():
            name = f"{key}.{short}".removesuffix(".")
            kind = name.removesuffix(".name")
            name = kind if kind in KINDS else name
            if name in flat:
                raise twice(name, f"{name}.name", name)
            flat[name] = inner
    return flat


def without_kinds(settings: Mapping[str, Any]) -> bool:
    """Whether no option is written with its kind, as in files of before."""
    with_kind = lambda name, value: "." in name or isinstance(value, Mapping)
    return not any(with_kind(name, value) for name, value in settings.items())


def is_flat(means: Iterable[str], given: Container[str]) -> bool:
    """Whether a short name, of what it `means` the first, is as files of before wrote it.

    They had the kind before a name that was taken, as in `dataset_alpha`; `given` are all
    names that are written.
    """
    first, *others = means
    return "." in first and all(
        flat_name(other) != flat_name(first) and flat_name(other) in given
        for other in others
    )


def canonical(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by their full names; a name that is unknown stays as it is.

    A short name that several choices have is refused, unless the file says the others by
    the names that files had before there were full ones.
    """
    flat = flattened(settings)
    choices = choices_in(flat)
    old = without_kinds(settings)
    means, found, written = spellings(known_names(choices)), {}, {}
    gone = [kind for kind, name in choices.items() if _options(kind, name) is None]
    for name, value in flat.items():
        full = (means.get(name) or [name])[0]
        if old and gone and name not in means:  # a user's own, whose file is elsewhere
            full = f"{gone[0]}.{name.removeprefix(gone[0] + '_')}"
        several = means.get(name, ())
        if len(several) > 1 and not (old and is_flat(several, flat)):
            raise ambiguous(name, several, choices)
        if full in found:
            raise twice(written[full], name, full)
        found[full], written[full] = value, name
    return found


def twice(one: str, other: str, full: str) -> SettingError:
    """What to say of two spellings of one setting."""
    return SettingError(
        f"{one} and {other} are the same setting; write one of them.", full
    )


def ambiguous(
    name: str, means: Iterable[str], choices: Mapping[str, Any], dashes: str = ""
) -> SettingError:
    """What to say of a short name that several choices have."""
    kinds = [full.partition(".")[0] for full in means]
    choice = lambda kind: f"{kind} {choices.get(kind, '')}".strip()
    owners = " and of ".join(map(choice, kinds))
    full = " or ".join(dashes + full for full in means)
    return SettingError(
        f"{dashes}{name} is an option of {owners}; write {full}.", setting=name
    )


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of full names as a file has them, with a table for each kind."""
    top: dict[str, Any] = {n: v for n, v in settings.items() if n in common_options()}
    for kind in KINDS:
        choice = {"name": top.pop(kind)} if kind in top else {}
        begins = f"{kind}."
        options = {n: v for n, v in settings.items() if n.startswith(begins)}
        table = choice | {n.removeprefix(begins): v for n, v in options.items()}
        if table:
            top[kind] = table
    return top


def flat_name(full: str) -> str:
    """What a setting was called in one space: with its kind where the name was taken."""
    kind, dot, short = full.partition(".")
    prefixed = short in common_options() or full in PREFIXED
    return full if not dot else f"{kind}_{short}" if prefixed else short
