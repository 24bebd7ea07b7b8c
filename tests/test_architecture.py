"""Who may import whom, and that what the project names exists."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedjax_adapt as fa

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedjax_adapt"

# part -> what of ours it may import (a part may always import itself)
ALLOWED = {
    "errors": set(),  # which any part may import
    "check": set(),
    "interrupts": set(),
    "core": {"check"},
    "costs": {"check", "core"},
    "plan": {"check", "core", "costs"},
    "participation": {"check", "core"},
    "data": {"check"},
    "wrap": {"check", "core"},
    "metrics": {"check", "core"},
    "personal": {"check", "core", "wrap"},
    "compress": {"check", "core", "wrap"},
    "privacy": {"check", "core", "wrap"},
    "robust": {"averaging", "check", "core"},
    # what a step policy measures is in no one algorithm's file: it reads any model
    "moments": {"check", "core"},
    "finetune": {"check", "core"},
    # what several methods share that teach a model by others
    "distill": {"check", "core"},
    "generators": {"models"},
    "algorithms": {
        "check", "core", "distill", "finetune", "generators", "moments",
        "personal", "wrap",
    },
    "models": {"check", "core", "metrics"},
    "engine": {"check", "core", "costs", "data", "participation", "plan"},
    # around any method, and of what any round leaves behind
    "averaging": {"check", "core", "data", "wrap"},
    "valuation": {"check", "core", "data", "engine", "plan"},
    "diagnostics": {"check", "core", "data", "engine", "plan"},
    "report": {"check", "experiment"},  # what reads and writes files only, see below
    "experiment": {
        "check", "core", "data", "algorithms", "averaging", "diagnostics", "models",
        "engine", "interrupts", "participation", "valuation", "wrap", "plan", "costs",
    },
}  # fmt: skip
HEAVY = ("tensorflow_datasets", "sklearn", "matplotlib", "orbax", "pyarrow", "tyro")


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """(module of ours as a dotted path below the package) of every import in a file."""
    package = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                module = [*base, *(node.module or "").split(".")]
                module = [name for name in module if name]
                if module:
                    yield ".".join(module)
                else:
                    yield from (alias.name for alias in node.names)
            elif node.module and node.module.split(".")[0] == "fedjax_adapt":
                yield ".".join(node.module.split(".")[1:]) or "__init__"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert not alias.name.startswith("fedjax_adapt"), path


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path):
    part = part_of(path)
    for module in imports(path):
        other = module.split(".")[0]
        anyone = (part, "__init__", "errors")
        if part in ("cli", "__main__", "__init__") or other in anyone:
            continue
        said = f"{path.name} imports {module}; see ALLOWED and CONTRIBUTING.md"
        assert other in ALLOWED.get(part, ()), said
        if part == "engine" and other == "data":
            assert module == "data.dataset", f"{path.name} imports {module}"
        if part == "report":
            files = ("config", "files", "records", "store")
            known = ("check", *(f"experiment.{name}" for name in files))
            assert module in known, f"{path.name} imports {module}"


def test_contributing_shows_who_is_above_whom():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = text.split("```text\n")[1].split("```")[0].splitlines()
    floors = [re.split("  +", line)[0].split(", ") for line in lines]
    floor = {part: i for i, parts in enumerate(floors) for part in parts}
    known = {part_of(path) for path in FILES} - {"__init__", "__main__"} | {"papers"}
    assert len(lines) == 10 and floor.keys() == known
    for part, others in ALLOWED.items():
        assert all(floor[other] <= floor[part] for other in others), part


@pytest.mark.parametrize("library", ["rich", "tyro", "matplotlib"])
def test_only_what_people_see_imports_libraries_for_it(library):
    importers = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            if any(name.split(".")[0] == library for name in names):
                importers.add(part_of(path))
    assert importers and importers <= {"cli", "report"}


def test_algorithms_never_import_each_other():
    """A file, or a folder of files, is one algorithm."""
    home = PACKAGE / "algorithms"
    for path in home.rglob("*.py"):
        own = path.relative_to(home).parts[0].removesuffix(".py")
        if own != "__init__":
            others = [m for m in imports(path) if m.startswith("algorithms")]
            assert all(m.split(".")[1:2] == [own] for m in others), path


@pytest.mark.slow
def test_importing_the_package_pulls_in_nothing_heavy():
    code = (
        "import sys, fedjax_adapt as fa\n"
        "[getattr(fa, name) for name in fa.__all__]\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists_and_is_documented():
    for name in fa.__all__:
        assert getattr(fa, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        fa.nothing  # noqa: B018


def test_paths_named_in_pyproject_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tools = project["tool"]
    named = [
        *tools["pytest"]["ini_options"]["testpaths"],
        *tools["basedpyright"]["include"],
        *tools["hatch"]["build"]["targets"]["wheel"]["packages"],
        *(p.strip("/") for p in tools["hatch"]["build"]["targets"]["sdist"]["include"]),
        *project["project"]["license-files"],
        project["project"]["readme"],
    ]
    for path in named:
        assert (ROOT / path).exists(), path


def test_no_function_of_a_module_keeps_a_program_for_every_task():
    """`jax.jit` with static arguments does, for good: see engine/xla.py."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                static = any(
                    (k.arg or "").startswith("static_arg") for k in node.keywords
                )
                found |= {(path.name, node.lineno)} if static else set()
    # _permuted, by_class, rows_of, scatter and repeated, where a whole number is static
    assert sorted(n for n, _ in found) == [
        "batches.py",
        "device.py",
        "evaluate.py",
        *["host.py"] * 2,
    ], found


def test_no_two_files_import_each_other():
    """Nor in a longer circle; imports in functions and for types count."""
    names = {}
    for path in FILES:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts).removesuffix("__init__").rstrip(".")] = path
    graph = {name: set() for name in names}
    for name, path in names.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                package = path.relative_to(PACKAGE).parent.parts
                base = package[: len(package) - node.level + 1]
                base = [*base, *(node.module or "").split(".")]
                for alias in node.names:
                    inner = ".".join(filter(None, [*base, alias.name]))
                    found = inner if inner in names else ".".join(filter(None, base))
                    graph[name] |= {found} & {*names} - {name}
    assert sum(map(len, graph.values())) > 900
    while True:  # what imports nothing that is left is in no circle
        free = {name for name, others in graph.items() if not others}
        if not free:
            break
        graph = {n: others - free for n, others in graph.items() if n not in free}
    assert not graph, sorted(graph)
