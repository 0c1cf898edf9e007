"""Docstrings are written for people; this turns what they look like into the markup that Sphinx reads."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

BEFORE_NAPOLEON = 400  # which reads the sections; the default is 500
QUOTED = re.compile(r"(``.*?``|:\w+:`.*?`|`[^`]*`)")
ARGUMENT = re.compile(r"^(\s*)(\*{1,2}\w+(?:, \*{0,2}\w+)*)(:.*)$")
VERBATIM = (".. math::", ">>> ")


def to_markup(lines: list[str]) -> list[str]:
    r"""The lines of a docstring as reStructuredText, sections still to be read.

    Stars, bars and trailing underscores are what they look like, outside of code and formulas; an indented block after
    a colon is shown as it is; every line of a Shapes section is an entry of a list.

    Example:
        >>> to_markup(["of shape (B, *positions), `*args`, |x|"])
        ['of shape (B, \\*positions), `*args`, \\|x\\|']
        >>> to_markup(["Shapes:", "    votes: (B, I, J, D)", "    mask: (B, I),", "        or None"])
        ['Shapes:', '    * votes: (B, I, J, D)', '    * mask: (B, I),', '      or None']
        >>> to_markup(["One iteration:", "", "    a = b * c"])
        ['One iteration::', '', '    a = b * c']
    """
    return list(_list_shapes(_escape(_mark_blocks(lines))))


def _mark_blocks(lines: list[str]) -> Iterator[str]:
    """A line that ends in a colon, with a blank line and an indented one after it, announces a literal block."""
    for line, after, later in zip(lines, [*lines[1:], ""], [*lines[2:], "", ""], strict=False):
        announces = line.rstrip().endswith(":") and not line.rstrip().endswith("::")
        yield f"{line}:" if announces and not after.strip() and _indent(later) > _indent(line) else line


def _escape(lines: Iterator[str]) -> Iterator[str]:
    kept = None  # indentation of what is left as it is
    for line in lines:
        if kept is not None and line.strip() and _indent(line) <= kept:
            kept = None
        yield line if kept is not None or line.lstrip().startswith(VERBATIM) else _escape_line(line)
        if kept is None and (line.lstrip().startswith(VERBATIM) or line.rstrip().endswith("::")):
            kept = _indent(line) - line.lstrip().startswith(">>>")


def _escape_line(line: str) -> str:
    if argument := ARGUMENT.match(line):  # napoleon itself knows **options
        return argument[1] + argument[2] + _escape_line(argument[3])
    parts = QUOTED.split(line)
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", re.sub(r"([*|])", r"\\\1", part)) for part in parts[::2]]
    return "".join(parts)


def _list_shapes(lines: Iterator[str]) -> Iterator[str]:
    section = inner = None  # indentation of the heading, and of the entries below it
    for before, line in pairwise(["", *lines]):
        if line.strip() == "Shapes:":
            section, inner = _indent(line), None
            yield line
            continue
        if section is not None and line.strip():
            inner = inner or _indent(line)
            section = None if _indent(line) <= section or not before.strip() else section
        if section is None or not line.strip():
            yield line
        else:
            mark = "* " if _indent(line) == inner else "  "
            yield " " * inner + mark + line.strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def process(app: Any, what: str, name: str, target: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_markup(lines)


def skip_fields(app: Any, what: str, name: str, target: Any, skip: bool, options: Any) -> bool | None:
    """The fields of named tuples are told by the docstring of their class."""
    return True if type(target).__name__ == "_tuplegetter" else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-skip-member", skip_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
