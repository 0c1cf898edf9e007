"""How the pages are built: `make docs`, without a network, every warning an error."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

from building.tables import write_tables  # noqa: E402
from torchcaps import __version__  # noqa: E402

project = "torchcaps"
author = "The torchcaps developers"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "building.mathml", "building.docstrings"]
exclude_patterns = ["generated", "_build"]
nitpicky = True
# Annotations name types that have no page here; pages refer to classes with {py:obj}, and that is checked.
nitpick_ignore_regex = [
    ("py:class", r".*"),
    ("py:.*", r"(?!torchcaps\.).*"),
    ("py:obj", r"torchcaps\.data\.labelled\.Kind"),
]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented_params"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
default_role = "code"
napoleon_custom_sections = ["Shapes"]
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"torchcaps {__version__}"
html_static_path = ["_static"]
html_css_files = ["torchcaps.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def write_generated(app) -> None:
    """Tables from the recorded results, before pages are read."""
    write_tables(ROOT / "results", DOCS / "generated")


def name_language(app, page: str, template: str, context: dict, doctree) -> None:
    """Tell readers and screen readers which pages are in Chinese."""
    if page.startswith("zh/"):
        context["language"] = "zh"


def setup(app) -> None:
    app.connect("builder-inited", write_generated)
    app.connect("html-page-context", name_language)
