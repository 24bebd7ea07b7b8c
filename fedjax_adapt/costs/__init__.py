"""The costs of a method: bytes a round moves, and seconds on a simulated clock.

References:
  GIFT's defaults: 5 Mbit/s for the upload, the broadcast free, no time for the server.
  FNR-FL, Table 3: kappa and rho.
"""

from .clock import LAWS as LAWS
from .clock import Clock as Clock
from .clock import Law as Law
from .clock import exponential as exponential
from .clock import lognormal as lognormal
from .clock import normal as normal
from .clock import uniform as uniform
from .rounds import broadcast_seconds as broadcast_seconds
from .rounds import end_times as end_times
from .rounds import kappa as kappa
from .rounds import messages as messages
from .rounds import refine_seconds as refine_seconds
from .rounds import refined_traffic as refined_traffic
from .rounds import rho as rho
from .rounds import round_bytes as round_bytes
from .rounds import round_seconds as round_seconds
from .rounds import step_seconds as step_seconds
from .rounds import steps_follow_measurements as steps_follow_measurements
from .rounds import traffic_of as traffic_of
from .rounds import wasted as wasted
