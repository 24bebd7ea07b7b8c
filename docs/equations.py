"""The equations of a docstring, which are plain text there, as HTML.

A line has a left side, `=` or `<-`, a right side, and after three spaces or more a remark.
One that begins with a space goes on with the right side above it; another without a sign
is a name and what it stands before.
"""

import html
import re
from textwrap import dedent

GREEK = {
    **{"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eta": "η", "nu": "ν"},
    **{"theta": "θ", "kappa": "κ", "lambda": "λ", "lam": "λ", "mu": "μ", "rho": "ρ"},
    **{"tau": "τ", "sigma": "σ", "phi": "φ", "epsilon": "ε", "pi": "π", "Delta": "Δ"},
}
SIGNS = {"<-": "←", "->": "→", "<=": "≤", ">=": "≥", "!=": "≠", "||": "‖"}
SIGNS |= {" ~ ": " ∼ ", " - ": " − "}
# words that are nothing but symbols, those of a formula, and those of an index
SYMBOLS = GREEK | {"grad": "∇", "sqrt": "√", "Kbar": "K̄", "Fbar": "F̄"}
WORDS = SYMBOLS | {"sum": "∑"}
BELOW = WORDS | {"in": "∈"}
NAMES = "|".join(WORDS)
# what an index may follow; in server_lr it is a part of a name
BASE = rf"(?:{NAMES}|argmin|mean|max|min|var|lr|cnt|softmax|CE|KL|[A-Za-z]|[])|])"
SHORT = rf"{NAMES}|[A-Za-z0-9]{{1,4}}"
INDEX = rf"(?<![A-Za-z_])({BASE})_({{[^{{}}]*}}|{SHORT})(?![A-Za-z0-9_])"
POWER = r"\^({[^{}]*}|\([^()]*\)|-?[A-Za-z0-9]+(?:_[A-Za-z0-9])?)"
SIDES = re.compile(r"\s*((?:\S+\s){0,3}\S+|)\s+(<-|=)\s(.*)")
REMARK = r"(?<=\S)\s{3,}"


def typeset(block: str) -> str:
    """A table of HTML, a row for each line of the block."""
    lines = [line for line in dedent(block).splitlines() if line]
    rows = "".join(f"<tr>{_row(line)}</tr>" for line in lines)
    return f'<table class="equations">{rows}</table>'


def _row(line: str) -> str:
    whole = SIDES.fullmatch(line)
    left, sign, right = whole.groups() if whole else ("", "", line)
    right, *remark = re.split(REMARK, right, maxsplit=1)
    if not whole and remark and not line.startswith(" "):
        left, right, remark = right, *remark, []
    remark = [re.sub(REMARK, "; ", text) for text in remark]
    cells = (left, sign, right.rstrip(",") if remark else right, *remark)
    return "".join(f"<td>{formatted(cell.strip())}</td>" for cell in cells)


def in_text(text: str) -> str:
    """A text of Markdown whose variables are formatted, but for code and links."""
    parts = re.split(r"(`[^`]*`|<http[^>]*>)", text)
    parts[::2] = [formatted(part, SYMBOLS) for part in parts[::2]]
    return "".join(parts)


def formatted(text: str, words: dict[str, str] = WORDS) -> str:
    """A formula as HTML; `words` are those that stand for symbols."""
    found = ""
    for i, part in enumerate(re.split(POWER, text)):
        # the outer pair alone: e^{(a - b)/T} has a parenthesis of its own
        part = part[1:-1] if i % 2 and part[0] in "{(" else part
        shown = _with_indices(part, words)
        found += f"<sup>{shown}</sup>" if i % 2 else shown
    return found


def _with_indices(text: str, words: dict[str, str]) -> str:
    *parts, last = re.split(INDEX, text)
    found = ""
    for before, base, index in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        below = _with_indices(index.strip("{}"), BELOW)
        found += f"{_plain(before, words)}{_plain(base, WORDS)}<sub>{below}</sub>"
    return found + _plain(last, words)


def _plain(text: str, words: dict[str, str]) -> str:
    signs = "|".join(map(re.escape, SIGNS))
    text = html.escape(re.sub(signs, lambda sign: SIGNS[sign[0]], text), quote=False)
    names = rf"(?<![A-Za-z_])({'|'.join(words)})(?![A-Za-z_])"
    return re.sub(names, lambda word: words[word[0]], text)
