"""The contracts: what a federated algorithm is made of, and what a round is.

    Algorithm = local rule x step policy x server rule x refinement

Every default is FedAvg's, so `Algorithm()` is FedAvg. What concerns a client is
written for ONE client: the engine adds the cohort axis with `jax.vmap` and the round
axis with `jax.lax.scan`. Only step policies and server rules see the axis `cohort`,
and their annotations say so.

State is what the next round needs; Info is what a person wants to see.
"""

from .algorithm import Algorithm as Algorithm
from .algorithm import as_base as as_base
from .algorithm import check_private as check_private
from .algorithm import constant_steps as constant_steps
from .algorithm import epochs as epochs
from .algorithm import is_private as is_private
from .algorithm import matched_steps as matched_steps
from .algorithm import part_of as part_of
from .algorithm import scheduled_steps as scheduled_steps
from .algorithm import with_refinement as with_refinement
from .algorithm import with_steps as with_steps
from .defaults import WEIGHTS as WEIGHTS
from .defaults import Mean as Mean
from .defaults import as_uploaded as as_uploaded
from .defaults import by_examples as by_examples
from .defaults import by_expected as by_expected
from .defaults import clip as clip
from .defaults import effective_steps as effective_steps
from .defaults import expected_cohort_size as expected_cohort_size
from .defaults import mean as mean
from .defaults import no_report as no_report
from .defaults import no_state as no_state
from .defaults import predict_frozen as predict_frozen
from .defaults import predict_train as predict_train
from .defaults import send_delta as send_delta
from .defaults import task_loss as task_loss
from .defaults import uniformly as uniformly
from .defaults import weighted_loss as weighted_loss
from .defaults import weighted_sum as weighted_sum
from .defaults import weighted_sums as weighted_sums
from .parts import LABEL_COUNTS as LABEL_COUNTS
from .parts import LocalRule as LocalRule
from .parts import Measure as Measure
from .parts import Probe as Probe
from .parts import Refinement as Refinement
from .parts import ServerRule as ServerRule
from .parts import StepPolicy as StepPolicy
from .parts import adds_mean as adds_mean
from .parts import as_refinement as as_refinement
from .parts import learns as learns
from .parts import measure_of as measure_of
from .parts import merged_report as merged_report
from .parts import model_weights as model_weights
from .parts import public_examples as public_examples
from .parts import sent_by as sent_by
from .parts import traffic_for as traffic_for
from .parts import traffic_within as traffic_within
from .parts import updated as updated
from .precision import norm_of as norm_of
from .precision import of_widened as of_widened
from .precision import precise as precise
from .precision import wide_dtype as wide_dtype
from .precision import widened as widened
from .precision import with_precision as with_precision
from .rounds import Info as Info
from .rounds import Metrics as Metrics
from .rounds import Origin as Origin
from .rounds import Participation as Participation
from .rounds import RoundFn as RoundFn
from .rounds import State as State
from .rounds import nonempty_rate as nonempty_rate
from .rounds import num_parameters as num_parameters
from .scores import accuracy_of as accuracy_of
from .scores import cross_entropy as cross_entropy
from .scores import each_of as each_of
from .scores import final_of as final_of
from .scores import fused_cross_entropy as fused_cross_entropy
from .scores import logits_of as logits_of
from .scores import losses_of as losses_of
from .task import Array as Array
from .task import Batch as Batch
from .task import ClientState as ClientState
from .task import Key as Key
from .task import Measurement as Measurement
from .task import Metric as Metric
from .task import Outputs as Outputs
from .task import Params as Params
from .task import PolicyState as PolicyState
from .task import PyTree as PyTree
from .task import RefineState as RefineState
from .task import ServerExtra as ServerExtra
from .task import Task as Task
from .task import all_finite as all_finite
from .task import by_row as by_row
from .task import equal as equal
from .task import rows_are_like as rows_are_like
from .task import shapes_of as shapes_of
from .task import tree_bytes as tree_bytes
from .task import wrapped as wrapped
from .views import Cohort as Cohort
from .views import LocalRun as LocalRun
from .views import LocalView as LocalView
from .views import Outcome as Outcome
from .views import Refined as Refined
from .views import RefineSetup as RefineSetup
from .views import RoundView as RoundView
from .views import Setting as Setting
from .views import Traffic as Traffic
from .views import Upload as Upload
