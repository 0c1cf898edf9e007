"""Formulas as MathML, written into the pages when they are built: browsers show them without any script."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import SphinxError

LETTERS = re.compile(r'(?:<mi mathvariant="normal">\w</mi>){2,}')
COMPOUND = re.compile(r"<mo><mrow><mo>([^<]*)</mo></mrow></mo><mo>([^<]*)</mo>")


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
    # a word in upright letters is one name, and \mathrel{+}= one sign
    found = LETTERS.sub(lambda match: f"<mi>{re.sub('<[^>]*>', '', match[0])}</mi>", found)
    return COMPOUND.sub(r"<mo>\1\2</mo>", found)


def visit_inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{to_mathml(node.astext(), is_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
