"""What a compiled program runs, read from XLA's text: kernels in a tree of loops.

    read(compiled.as_text()) -> Part

Of each kernel there are the bytes that it moves and the operations of its products. Bytes
are the sizes of operands and results, but of what is only gathered from or sliced, what
is taken, and of what is updated in place, the update. Operations are the additions and
multiplications of products and convolutions; other arithmetic is not counted.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

BITS = {"pred": 8, "token": 0, "opaque": 0}  # of dtypes whose name does not say
VIEWS = ("bitcast", "reshape", "get-tuple-element")
TAKES = ("gather", "dynamic-slice", "slice")
UPDATES = ("dynamic-update-slice", "scatter")
COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("collective-permute", "collective-broadcast", "ragged-all-to-all"),
)
# neither launched nor a part of something that is
NOTHING = (
    *("parameter", "constant", "tuple", "after-all", "opt-barrier", "domain"),
    *("add-dependency", "get-dimension-size", *VIEWS),
)
NO_KERNELS = ("Sharding", "AllocateBuffer", "ConcatBitcast")
TRANSFERS = ("send", "recv", "infeed", "outfeed")
ON_HOST = "S(5)"  # the memory space of the host
# where a convolution has the kernel and the result of the forward one: among its operands,
# or -1 for its own result
CONVOLUTIONS = {
    "convolution": (1, -1),
    "__cudnn$convForward": (1, -1),
    "__cudnn$convBiasActivationForward": (1, -1),
    "__cudnn$convBackwardInput": (1, 0),
    "__cudnn$convBackwardFilter": (-1, 1),
}


class Array(NamedTuple):
    """A dtype and dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Memory without padding."""
        digits = re.findall(r"\d+", self.dtype) or [BITS[self.dtype]]
        return math.prod(self.dims) * int(digits[0]) // 8


class Instruction(NamedTuple):
    """A line of a computation."""

    name: str
    opcode: str
    results: tuple[Array, ...]  # several of a tuple
    operands: tuple[str, ...]  # names; of a parameter its number
    line: str
    root: bool

    @property
    def bytes(self) -> int:
        """Of all results."""
        return sum(array.bytes for array in self.results)

    def named(self, attribute: str) -> list[str]:
        """Computations that an attribute names, such as `calls=%fused_add`."""
        found = re.search(attribute + r"=(\{[^}]*\}|%?[\w.\-]+)", self.line)
        return re.findall(r"[\w.\-]+", found[1]) if found else []


Computation = dict[str, Instruction]


class Module(NamedTuple):
    """All computations by name, and which is run."""

    computations: dict[str, Computation]
    entry: str


class Kernel(NamedTuple):
    """Something that is launched."""

    name: str
    opcode: str
    bytes: int  # moved
    operations: dict[str, int]  # of products, by "float32", "tf32" or "bf16"
    writes: tuple[Array, ...]  # results that are written whole, not in place
    collective: str  # its kind, or ""
    transfer: bool  # something passes between host and device


class Loop(NamedTuple):
    """A loop; `trips` is 1 where the compiler does not know."""

    trips: int
    known: bool
    body: "Part"


class Part(NamedTuple):
    """What one pass through a computation runs."""

    kernels: tuple[Kernel, ...]
    loops: tuple[Loop, ...]
    conditionals: tuple[tuple["Part", ...], ...]  # of each its branches


def read(text: str) -> Part:
    """What a program runs. `text`: of the compiled module."""
    module = parse(text)
    return _part(module, module.entry)


def parse(text: str) -> Module:
    """The computations of a module."""
    computations, entry, current = {}, "", None
    for line in text.splitlines():
        if current is None:
            if begins := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{\s*$", line):
                current = computations[begins[2]] = {}
                entry = begins[2] if begins[1] else entry
        elif line.startswith("}"):
            current = None
        elif found := _instruction(line):
            current[found.name] = found
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    begins = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
    if not begins:
        return None
    rest = line[begins.end() :]
    end = _closed(rest) if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].lstrip()
    opcode, _, arguments = rest.partition("(")
    inside = arguments[: _closed("(" + arguments) - 2]
    number = lambda dims: tuple(int(d) for d in dims.split(",") if d)
    arrays = re.findall(r"([a-z]\w*)\[([\d,]*)\]", kind)
    results = tuple(Array(dtype, number(dims)) for dtype, dims in arrays)
    operands = tuple(re.findall(r"%([\w.\-]+)", inside)) or (inside,)
    return Instruction(begins[2], opcode, results, operands, line, bool(begins[1]))


def _closed(text: str) -> int:
    """Where the parenthesis ends that `text` begins with."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return i + 1
    return len(text)


def _part(module: Module, name: str) -> Part:
    here = module.computations[name]
    kernels, loops, conditionals = [], [], []
    for one in here.values():
        if one.opcode == "while":
            known = re.search(r'known_trip_count":\{"n":"(\d+)"', one.line)
            (body,) = one.named("body")
            trips = int(known[1]) if known else 1
            loops.append(Loop(trips, bool(known), _part(module, body)))
        elif one.opcode == "conditional":
            branches = one.named("branch_computations") or [
                *one.named("true_computation"),
                *one.named("false_computation"),
            ]
            conditionals.append(tuple(_part(module, branch) for branch in branches))
        elif one.opcode in ("call", "async-start"):
            for called in one.named("to_apply") or one.named("calls"):
                inner = _part(module, called)
                kernels += inner.kernels
                loops += inner.loops
                conditionals += inner.conditionals
        elif _is_kernel(one):
            kernels.append(_kernel(module, here, one))
    return Part(tuple(kernels), tuple(loops), tuple(conditionals))


def _is_kernel(one: Instruction) -> bool:
    if one.opcode in NOTHING or one.opcode.endswith(("-done", "-update")):
        return False
    return _target(one) not in NO_KERNELS


def _target(one: Instruction) -> str:
    """What a custom call calls; of others ""."""
    found = re.search(r'custom_call_target="([^"]*)"', one.line)
    return found[1] if found else ""


def _kernel(module: Module, here: Computation, one: Instruction) -> Kernel:
    kind = one.opcode.removesuffix("-start")
    if one.opcode == "fusion":
        (called,) = one.named("calls")
        moved, writes = _moved_by_fusion(module.computations[called])
    elif kind in TAKES:
        writes = _made(one)
        moved = 2 * sum(array.bytes for array in writes)
    elif kind in UPDATES:
        moved, writes = 2 * here[_update(one)].bytes, ()
    else:
        writes = _made(one)
        given = (here[name] for name in {*one.operands} if name in here)
        moved = sum(array.bytes for array in (*given, *writes))
    operations: dict[str, int] = {}
    for product, number in _products(module, here, one):
        operations[product] = operations.get(product, 0) + number
    calls_back = "callback" in _target(one)
    passes = kind == "copy" and ON_HOST in one.line
    return Kernel(
        one.name,
        one.opcode,
        moved,
        operations,
        writes,
        kind if kind in COLLECTIVES else "",
        calls_back or passes or kind in TRANSFERS,
    )


def _made(one: Instruction) -> tuple[Array, ...]:
    """What a kernel makes; what begins one also returns its operands, or a token."""
    if not one.opcode.endswith("-start") or one.opcode == "all-reduce-start":
        return one.results
    if one.opcode == "copy-start":
        return one.results[:1]
    return one.results[len(one.operands) : 2 * len(one.operands)]


def _update(one: Instruction) -> str:
    """The operand that an update writes into the first one, or that of its first result."""
    if one.opcode == "dynamic-update-slice":
        return one.operands[1]
    return one.operands[len(one.operands) // 2 + 1]


def _moved_by_fusion(inner: Computation) -> tuple[int, tuple[Array, ...]]:
    """Bytes that a fusion reads and writes, and the results that it writes whole."""
    (root,) = (one for one in inner.values() if one.root)

    def source(one: Instruction) -> Instruction:
        while one.opcode in VIEWS and one.operands[0] in inner:
            one = inner[one.operands[0]]
        return one

    def taken(name: str) -> int:
        """Bytes that are read of a parameter or a view of it."""
        whole, part = inner[name].bytes, 0
        for user in (one for one in inner.values() if name in one.operands):
            first = user.operands[0] == name and user.operands.count(name) == 1
            if user.opcode in VIEWS:
                part += taken(user.name)
            elif first and user.opcode in TAKES:
                part += user.bytes
            elif user.opcode != "tuple" and not (first and user.opcode in UPDATES):
                return whole
        return min(part, whole)

    moved = sum(taken(one.name) for one in inner.values() if one.opcode == "parameter")
    writes = []
    outputs = [inner[n] for n in root.operands] if root.opcode == "tuple" else [root]
    for output in outputs:
        made = source(output)
        in_place = (
            made.opcode in UPDATES
            and source(inner[made.operands[0]]).opcode == "parameter"
        )
        if in_place:
            moved += inner[_update(made)].bytes
        else:
            writes += output.results
            moved += output.bytes
    return moved, tuple(writes)


def _products(
    module: Module, here: Computation, one: Instruction
) -> Iterator[tuple[str, int]]:
    """Precision and operations of each product that an instruction makes."""
    if one.opcode == "fusion":
        inner = module.computations[one.named("calls")[0]]
        for each in inner.values():
            yield from _products(module, inner, each)
        return
    kind = _target(one) or one.opcode
    factors = [here[name].results[0] for name in one.operands if name in here]
    if kind == "dot" or kind.startswith("__cublas$"):
        summed = re.search(r'lhs_contracting_dim\w*"?[=:][{\[]([\d",]*)', one.line)
        dims = [int(d) for d in re.findall(r"\d+", summed[1])] if summed else []
        per_output = math.prod(factors[0].dims[d] for d in dims)
        size = math.prod(one.results[0].dims)
    elif kind in CONVOLUTIONS:
        kernel, result = ([*factors, one.results[0]][i] for i in CONVOLUTIONS[kind])
        labels = re.search(r"dim_labels=\w+_(\w+)->", one.line)
        taps = zip(labels[1] if labels else "", kernel.dims, strict=False)
        per_output = math.prod(size for label, size in taps if label != "o")
        size = math.prod(result.dims)
    else:
        return
    yield _precision(one, factors[0]), 2 * per_output * size


def _precision(one: Instruction, factor: Array) -> str:
    """In which precision factors are multiplied."""
    if factor.dtype in ("bf16", "f16"):
        return "bf16"
    if "algorithm=dot_tf32" in one.line:
        return "tf32"
    exact = re.search(r'operand_precision"?[=:][{\[]"?highest', one.line.lower())
    return "float32" if exact or factor.dtype != "f32" else "tf32"
