"""Every algorithm, one file per paper; each function here is one. A new one
takes a line, from which contract tests, command line and `fedjax-adapt list` follow."""

from types import FunctionType

from .adacomm import adacomm as adacomm
from .afl import afl as afl
from .ditto import ditto as ditto
from .fedacg import fedacg as fedacg
from .fedavg import fedavg as fedavg
from .fedbuff import fedasync as fedasync
from .fedbuff import fedbuff as fedbuff
from .fedcm import fedcm as fedcm
from .feddc import feddc as feddc
from .feddf import feddf as feddf
from .feddisco import feddisco as feddisco
from .feddyn import feddyn as feddyn
from .fedexp import fedexp as fedexp
from .fedftg import fedftg as fedftg
from .fedgen import fedgen as fedgen
from .fedgsnr import fedgsnr as fedgsnr
from .fednova import fednova as fednova
from .fedopt import fedadagrad as fedadagrad
from .fedopt import fedadam as fedadam
from .fedopt import fedavgm as fedavgm
from .fedopt import fedyogi as fedyogi
from .fedper import fedper as fedper
from .fedprox import fedprox as fedprox
from .fedrep import fedrep as fedrep
from .fedssg import fedssg as fedssg
from .fedveca import fedveca as fedveca
from .fedvra import fedvra as fedvra
from .fnr import fnr as fnr
from .gift import gift as gift
from .moon import moon as moon
from .pfedme import pfedme as pfedme
from .public_controls import fedavg_pubft as fedavg_pubft
from .public_controls import public_only as public_only
from .scaffold import scaffold as scaffold

ALGORITHMS = {
    name: constructor
    for name, constructor in sorted(globals().items())
    if isinstance(constructor, FunctionType)
}

__all__ = ["ALGORITHMS", *ALGORITHMS]
