"""How `make docs` builds the site: Markdown (MyST) and docstrings to pages that work offline, from a folder."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import demur

project = "demur"
author = "the authors of demur"
version = release = demur.__version__
html_title = f"demur {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["matrix.md"]  # part of another page
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["demur.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_dark_style = "github-dark"
html_math_renderer = "mathml"
html_theme_options = {"footer_icons": []}
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "deflist", "attrs_block"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # a shell session is no program

default_role = "py:obj"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_display_short_literal_types = True
maximum_signature_line_length = 90
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def _literal(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """`.demur` is an ending and `.features` an attribute, no name to link to, which would lose its dot."""
    lines[:] = [re.sub(r"(?<![\w`])(`\.\w[\w.]*`)(?!`)", r"`\1`", line) for line in lines]


def _skip(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """scikit-learn's routing of metadata, which every estimator has."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def _from_results(app: Sphinx, path: Any, page: str, text: list[str]) -> None:
    """Tables of the results are files beside the site, their drawings stand on the page."""
    text[0] = re.sub(r"\[([^]]*)\]\((tables/[^)]*)\)", r"{download}`\1 <../../results/\2>`", text[0])
    text[0] = re.sub(
        r"^- \[(.*)\]\((figures/[^)]*)\)", r"![\1](../../results/\2)\n\n*\1.*\n", text[0], flags=re.MULTILINE
    )


def _unbroken(app: Sphinx, *place_and_text: Any) -> None:
    """A value and its spread stay on one line."""
    text = place_and_text[-1]
    text[0] = re.sub(r"(?<=\d) ± ?(?=\d)", "\u00a0±\u00a0", text[0])


def _to_results(app: Sphinx, page: str, text: list[str]) -> None:
    """Links to tables of the results, which are no pages of the site."""
    text[0] = re.sub(r"\[([^]]*)\]\(((?:\.\./)+results/tables/[^)]*)\)", r"{download}`\1 <\2>`", text[0])


def setup(app: Sphinx) -> None:
    """Formulas as MathML, which browsers draw by themselves: MathJax would be a script from elsewhere."""
    app.connect("include-read", _from_results)
    app.connect("source-read", _to_results)
    app.connect("include-read", _unbroken)
    app.connect("source-read", _unbroken)
    app.connect("autodoc-process-docstring", _literal)
    app.connect("autodoc-skip-member", _skip)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
