"""Every algorithm, one file per paper. This list is the only other line a new one takes:
from it follow the contract tests, the command line's options and the README's row."""

from .fedavg import fedavg
from .fednova import fednova
from .fedprox import fedprox
from .fedssg import fedssg
from .scaffold import scaffold

ALGORITHMS = {
    constructor.__name__: constructor
    for constructor in (
        fedavg,
        fedprox,
        fednova,
        scaffold,
        fedssg,
    )
}

__all__ = ["ALGORITHMS", *ALGORITHMS]
