"""Formulas as MathML, written into the pages when they are built: browsers show them without any script."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import SphinxError

LETTERS = re.compile(r'(?:<mi mathvariant="normal">\w</mi>){2,}')
COMPOUND = re.compile(r"<mo><mrow><mo>([^<]*)</mo></mrow></mo><mo>([^<]*)</mo>")
FUNCTION = re.compile(
    r"(?P<before></(?:mi|mn|msub|msup|msubsup|mfrac|msqrt)>)?"  # what may stand directly before the name
    r"(?P<name><mi>(?:ln|log|exp|arctan)</mi>)"
)
SPACE = '<mspace width="0.167em" />'
PARENTHESIS = re.compile(r"<mo[^>]*>&#x00028;")
BAR = '<mo stretchy="false">&#x0007C;</mo>'


class FormulaError(SphinxError):
    """A formula that cannot be shown as it was meant."""

    category = "Formula error"


def to_mathml(latex: str, *, is_block: bool = False) -> str:
    r"""One formula as a <math> element.

    The converter leaves commands it does not know as text with their backslash; here that is an error.

    Example:
        >>> to_mathml("x^2")[-53:]
        '<mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    try:
        found = convert(latex, display="block" if is_block else "inline")
    except Exception as error:  # the converter raises many kinds
        raise FormulaError(f"{latex!r}: {type(error).__name__} {error}") from error
    if unknown := re.findall(r">([^<]*\\[^<]*)<", found):
        raise FormulaError(f"{latex!r} has commands that are not known: {', '.join(unknown)}")
    # a word in upright letters is one name, \mathrel{+}= one sign, and the bars of |x| stand close to x
    found = LETTERS.sub(lambda match: f"<mi>{re.sub('<[^>]*>', '', match[0])}</mi>", found)
    found = COMPOUND.sub(r"<mo>\1\2</mo>", found)
    found = FUNCTION.sub(_set_apart, found)
    return found.replace(BAR, BAR.replace("<mo ", '<mo lspace="0" rspace="0" '))


def _set_apart(match: re.Match[str]) -> str:
    """The name of a function, a thin space from what stands before and after it, as in print."""
    before, after = match["before"], match.string[match.end() :]
    return f"{before + SPACE if before else ''}{match['name']}{'' if PARENTHESIS.match(after) else SPACE}"


def split_line(latex: str) -> list[str]:
    r"""The parts of a line of formulas, between its wide spaces; they may stand below each other on a narrow page.

    Example:
        >>> split_line(r"a = b, \qquad \frac{c}{d}")
        ['a = b,', '\\frac{c}{d}']
    """
    parts = [part.strip() for part in latex.split(r"\qquad")]
    return parts if all(part.count("{") == part.count("}") for part in parts) else [latex]


def visit_inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    parts = [to_mathml(part, is_block=True) for part in split_line(node.astext())]
    translator.body.append(f'<div class="formula">{"".join(parts)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
