"""What docs/findings.md names exists, under that name."""

import ast
import re
from pathlib import Path

import pytest

from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.data import PARTITIONS
from fedjax_adapt.experiment.config import all_options, choices_in, kind_options
from fedjax_adapt.experiment.options import options_of
from fedjax_adapt.experiment.spelling import spellings
from fedjax_adapt.models import MODELS

THEIRS = {"model", "fnr_epochs", "calibration_epochs"}  # flags of released code
ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "findings.md").read_text()
SPANS = re.findall(r"`([^`\n]+)`", TEXT)


@pytest.mark.parametrize("call", [s for s in SPANS if re.match(r"\w+\(.*\)$", s)])
def test_every_option_it_names_can_be_chosen(call):
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if node.func.id == "name":  # the form of a call
        return
    constructor = ALGORITHMS[node.func.id]
    given = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
    known = options_of("algorithm", constructor)
    assert set(given) <= set(known)
    if isinstance(given.get("base"), str):
        given["base"] = ALGORITHMS[given["base"]]()
    constructor(**given)


def test_every_flag_it_names_exists():
    flags = set(re.findall(r"--([a-z_-]+)", " ".join(SPANS))) - THEIRS
    known = set(spellings(all_options(choices_in({}))))
    for kind, registry in (("partition", PARTITIONS), ("algorithm", ALGORITHMS)):
        for name in registry:
            own = kind_options(kind, name)
            known |= set(spellings(f"{kind}.{option}" for option in own))
    unknown = flags - {name.replace("_", "-") for name in known}
    assert not unknown


def test_every_file_and_model_it_names_exists():
    for path in re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", TEXT):
        assert (ROOT / path).exists(), path
    assert (ROOT / "docs" / "../benchmarks/README.md").exists()
    assert "resnet18" in TEXT and {"resnet18", "vgg11"} <= set(MODELS)
