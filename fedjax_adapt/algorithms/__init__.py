"""Every algorithm, one file (or folder) per paper. This list is the only other line a new
one takes: from it follow the contract tests and the options of the command line."""

from .adacomm import adacomm
from .afl import afl
from .ditto import ditto
from .fedacg import fedacg
from .fedavg import fedavg
from .fedavgm import fedavgm
from .fedbuff import fedasync, fedbuff
from .fedcm import fedcm
from .feddc import feddc
from .feddf import feddf
from .feddisco import feddisco
from .feddyn import feddyn
from .fedexp import fedexp
from .fedftg import fedftg
from .fedgen import fedgen
from .fedgsnr import fedgsnr
from .fednova import fednova
from .fedopt import fedadagrad, fedadam, fedyogi
from .fedper import fedper
from .fedprox import fedprox
from .fedrep import fedrep
from .fedssg import fedssg
from .fedveca import fedveca, veca_steps
from .fedvra import fedvra
from .fnr import fnr, fnr_refinement
from .gift import gift
from .moon import moon
from .pfedme import pfedme
from .public_controls import fedavg_pubft, public_only
from .scaffold import scaffold

ALGORITHMS = {
    constructor.__name__: constructor
    for constructor in (
        fedavg,
        fedavgm,
        fedadagrad,
        fedadam,
        fedyogi,
        fedexp,
        fedprox,
        fedbuff,
        fedasync,
        fednova,
        scaffold,
        fedcm,
        fedacg,
        feddyn,
        feddc,
        feddisco,
        fedvra,
        moon,
        fedper,
        fedrep,
        ditto,
        pfedme,
        feddf,
        fedgen,
        fedftg,
        fedssg,
        fedgsnr,
        fedveca,
        gift,
        adacomm,
        afl,
        fnr,
        fedavg_pubft,
        public_only,
    )
}

__all__ = ["ALGORITHMS", *ALGORITHMS, "fnr_refinement", "veca_steps"]
