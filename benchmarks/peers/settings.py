"""Which simulators are run, and how: every peer at its best setting, and ours.

A peer gets what ours gets: every core, and the tuned allocator. Where it was as fast or
faster without, or where that is not known, it is run both ways. FedJAX also gets what
makes it faster on a CPU: pooling by reshaping, and the old runtime of jax 0.4. On a GPU
those that can use one are run in three precisions (torch_device.py), compiled last: that
takes long.
"""

import os
from typing import NamedTuple

import common

TUNED = common.stopwatch.TUNED
OLD_RUNTIME = "--xla_cpu_use_thunk_runtime=false"

# what --only calls a simulator: its name in the table, its script below benchmarks/
SIMULATORS = {
    "ours": ("fedjax_adapt", "rounds.py"),
    "loop": ("PyTorch loop", "peers/torch_loop.py"),
    "vmap": ("torch.func.vmap", "peers/torch_vmap.py"),
    "fedjax": ("FedJAX", "peers/fedjax_jit.py"),
    "pfl": ("pfl", "peers/pfl_simulation.py"),
    "flower": ("Flower", "peers/flower_ray.py"),
}


class Setting(NamedTuple):
    """One simulator, as it is run."""

    simulator: str  # one of SIMULATORS
    environment: str | None  # name of its lock file; None: the Python that runs this
    options: str = ""  # of its script
    tuned: bool = True  # the allocator
    flags: str = ""  # XLA_FLAGS

    @property
    def title(self) -> str:
        """The simulator, as the table calls it."""
        return SIMULATORS[self.simulator][0]

    @property
    def label(self) -> str:
        """The setting, as the table calls it."""
        jax = (self.environment or "").partition("-jax")[2]
        words = [
            f"jax {jax}" if jax else "",
            self.options.replace("--device cuda", "").replace("--", "").strip(),
            "old CPU runtime" if self.flags == OLD_RUNTIME else "",
            "" if self.tuned else "untuned allocator",
        ]
        return ", ".join(filter(None, words)) or "defaults"

    @property
    def precision(self) -> str:
        """Of its products, where the options say so; else float32."""
        words = self.options.split()
        if "--precision" not in words:
            return "float32"
        return words[words.index("--precision") + 1]

    @property
    def name(self) -> str:
        """What tells settings apart."""
        return f"{self.title}: {self.label}"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that are set for it."""
        tuned = TUNED if self.tuned and self.environment else {}  # ours does so itself
        return tuned | ({"XLA_FLAGS": self.flags} if self.flags else {})

    def surroundings(self) -> dict[str, str]:
        """All of its environment: that of this process, without what we set or must not."""
        kept = dict(os.environ)
        for name in (*TUNED, "XLA_FLAGS", "OMP_NUM_THREADS"):
            kept.pop(name, None)
        if self.environment:
            kept.pop("PYTHONPATH", None)  # it leads to our packages
        return kept | self.variables


OURS = Setting("ours", None)
JAX_OLD, JAX_NEW = "fedjax-jax0.4", "fedjax-jax0.10"
SETTINGS = {
    "w1": [
        OURS,
        Setting("loop", "torch", "--channels-last"),
        Setting("loop", "torch"),
        Setting("vmap", "torch", "--chunk 10"),
        Setting("vmap", "torch", "--chunk 10 --compile"),
        Setting("fedjax", JAX_OLD, "--pool reshape", tuned=False, flags=OLD_RUNTIME),
        Setting("fedjax", JAX_OLD, "--pool reshape", flags=OLD_RUNTIME),
        Setting("fedjax", JAX_NEW, "--pool reshape", tuned=False),
        Setting("fedjax", JAX_NEW, "--pool window", tuned=False),
        Setting("pfl", "pfl", "--workers 2 --channels-last"),
        Setting("pfl", "pfl", "--workers 2"),
        Setting("pfl", "pfl", "--workers 1"),
        Setting("flower", "flower", "--client-cpus 1 --channels-last"),
        Setting("flower", "flower", "--client-cpus 1"),
    ],
    "w2": [
        OURS,
        Setting("vmap", "torch", "--chunk 50 --compile"),
        Setting("vmap", "torch", "--chunk 50 --compile", tuned=False),
        Setting("vmap", "torch", "--chunk 50"),
        Setting("loop", "torch"),
        Setting("fedjax", JAX_NEW),
        Setting("fedjax", JAX_NEW, tuned=False),
        Setting("fedjax", JAX_OLD),
        Setting("pfl", "pfl", "--workers 2"),
        Setting("pfl", "pfl", "--workers 2", tuned=False),
        Setting("pfl", "pfl", "--workers 1 --threads 1"),
        Setting("flower", "flower", "--client-cpus 1"),
        Setting("flower", "flower", "--client-cpus 1", tuned=False),
    ],
}


TORCH_GPU, JAX_GPU = "torch-cuda", "fedjax-cuda"
PRECISIONS = ("float32", "tf32", "bf16")
SIDE_BY_SIDE = {"w1": 10, "w1-100": 100, "w1-500": 100, "w2": 50}  # for torch.func.vmap


def on_cuda(workload: str) -> list[Setting]:
    """Who can use a GPU, in every precision."""
    layout = "" if workload == "w2" else " --channels-last"
    scripts = {"loop": layout, "vmap": f" --chunk {SIDE_BY_SIDE[workload]}"}
    every = [Setting("ours", None, f"--precision {p}") for p in PRECISIONS]
    plain, compiled = (
        [
            Setting(peer, TORCH_GPU, f"--device cuda --precision {p}{own}{more}")
            for p in PRECISIONS
            for peer, own in scripts.items()
        ]
        for more in ("", " --compile")
    )
    # not in bf16: jax.default_matmul_precision has no products of float32 rounded so
    rounded = PRECISIONS[:2]
    fedjax = [Setting("fedjax", JAX_GPU, f"--precision {p}") for p in rounded]
    return every + plain + fedjax + compiled


# device -> workload -> settings, ours first
BY_DEVICE = {
    "cpu": SETTINGS,
    "cuda": {workload: on_cuda(workload) for workload in SIDE_BY_SIDE},
}
