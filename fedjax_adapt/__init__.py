"""A vectorised simulator for adaptive federated learning in JAX.

    import fedjax_adapt as fa

Names are loaded when they are first used, so that the command line answers before JAX
has been imported.
"""

import importlib
from typing import Any

# every public name, by the module it lives in
_PUBLIC = {
    "algorithms.adacomm": ("adacomm_steps",),
    "algorithms.afl": ("afl_best", "afl_constants", "afl_fixed", "afl_online"),
    "algorithms.fedgsnr": ("gsnr_steps",),
    "algorithms.fedveca": ("veca_steps",),
    "algorithms.fnr": ("fnr_refinement",),
    "algorithms.gift": ("gift_steps",),
    "averaging": ("averages", "with_averages"),
    "compress": ("Compressor", "qsgd", "sign", "top_k", "with_compression"),
    "errors": ("RunError", "SettingError"),
    "report.progress": ("progress_bar",),
    "core": (
        "Algorithm",
        "Batch",
        "Cohort",
        "Info",
        "LocalRule",
        "LocalRun",
        "LocalView",
        "Measure",
        "Metric",
        "Metrics",
        "Outcome",
        "Outputs",
        "Participation",
        "Probe",
        "Refined",
        "Refinement",
        "RefineSetup",
        "RoundView",
        "ServerRule",
        "Setting",
        "State",
        "StepPolicy",
        "Task",
        "Traffic",
        "Upload",
        "by_examples",
        "constant_steps",
        "epochs",
        "matched_steps",
        "mean",
        "num_parameters",
        "uniformly",
        "with_precision",
        "with_refinement",
        "with_steps",
    ),
    "costs": ("Clock",),
    "data.dataset": ("FederatedDataset",),
    "data.public": ("PublicSet",),
    "engine.build": ("make_round", "memory_needed"),
    "engine.calibrate": ("fastest_lanes",),
    "engine.debug": ("debug_round",),
    "engine.evaluate": ("class_accuracy", "evaluate"),
    "engine.initial": ("init_state",),
    "engine.mesh": ("cores_as_devices",),
    "engine.personal": ("evaluate_clients", "personal_models"),
    "engine.train": ("train", "train_and_evaluate"),
    "engine.xla": ("keep_memory",),
    "experiment.folder": ("load_run",),
    "experiment.user_functions": ("register",),
    "models.adapter": ("classification", "language_model", "regression"),
    "moments": ("gradient_moments",),
    "plan": ("Plan",),
    "participation": ("bernoulli", "earliest", "everyone", "uniform"),
    "personal": ("with_personal",),
    "privacy": ("epsilon", "with_privacy"),
    "robust": (
        "geometric_median",
        "krum",
        "median",
        "trimmed_mean",
        "with_aggregation",
    ),
    "valuation": ("leave_one_out", "shapley", "show_deltas"),
    "wrap": ("with_local_optimizer", "with_server_optimizer"),
}
_MODULES = ("algorithms", "costs", "data", "diagnostics", "metrics", "models")
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted([*_MODULE_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def _version() -> str:
    """That of the installed package, which follows from the tags of its repository."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fedjax-adapt")
    except PackageNotFoundError:  # a checkout on the path
        return "unknown"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
