"""One table, whoever made it, as text, Markdown, LaTeX and HTML; and the text with marks that it is made of.

A text is a string, maybe marked by `Code`, `Strong`, `Small` or `Link`; a tuple of texts is one line, a list has a
line for each.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any

import rich.markup
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table

Text = Any  # str | Mark | tuple[Text, ...] | list[Text]; mypy knows no such recursion with str in it


@dataclass(frozen=True)
class Mark:
    text: Text


class Code(Mark): ...


class Strong(Mark): ...


class Small(Mark): ...


@dataclass(frozen=True)
class Link(Mark):
    to: str


@dataclass(frozen=True)
class Sheet:
    """A table of texts; the first columns, so many, name a row together."""

    head: Sequence[Text]
    rows: Sequence[Sequence[Text]]
    names: int = 1
    title: str = ""
    notes: Sequence[Text] = ()
    name: str = ""  # of its files
    ruled: Collection[int] = ()  # rows that begin a group
    written: bool = False  # words rather than numbers, and to the left
    networks: str = ""  # which it is of, where several tables have one title: the convention that they are trained in

    @property
    def heading(self) -> str:
        return f"{self.title}; trained in the {self.networks}" if self.networks else self.title


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Text | Sheet]
    first: bool = False  # whether a page begins with it
    cards: Sequence[Any] = ()  # what a page shows instead of a table
    file_note: Text = ""  # the last paragraph of it in RESULTS.md

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-").replace("?", "")


# text with marks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """How a format writes plain text, each mark, and several lines."""

    plain: Callable[[str], str]
    marks: dict[type[Mark], str]
    lines: Callable[[list[str]], str]


_TEX: dict[str, str | int | None] = {
    **{char: f"\\{char}" for char in "%_&#"},
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
}


def _tex_lines(lines: list[str]) -> str:
    return r"\begin{tabular}[t]{@{}r@{}}" + r" \\ ".join(lines) + r"\end{tabular}" if len(lines) > 1 else "".join(lines)


_TEXT = Style(str, {Strong: "{}*"}, "\n".join)
_RICH = Style(rich.markup.escape, {Strong: "[bold]{}[/bold]"}, "\n".join)
_MARKDOWN = Style(
    lambda text: text.replace("*", r"\*").replace("|", r"\|"),
    {Code: "`{}`", Strong: "**{}**", Link: "[{}]({})"},
    "<br>".join,
)
_HTML = Style(
    escape,
    {
        Code: "<code>{}</code>",
        Strong: "<strong>{}</strong>",
        Small: "<small>{}</small>",
        Link: '<a href="{1}">{0}</a>',
    },
    "<br>".join,
)
_LATEX = Style(
    lambda text: text.translate(str.maketrans(_TEX)),
    {Strong: r"\textbf{{{}}}", Small: r"{{\scriptsize {}}}", Code: r"\texttt{{{}}}"},
    _tex_lines,
)


def _render_text(text: Text, how: Style) -> str:
    if isinstance(text, list):
        return how.lines([_render_text(line, how) for line in text])
    if isinstance(text, tuple):
        return "".join(_render_text(part, how) for part in text)
    if isinstance(text, Mark):
        plain = isinstance(text, Code) and how is _MARKDOWN  # nothing is escaped in code
        inner = text.text if plain else _render_text(text.text, how)
        return how.marks.get(type(text), "{}").format(inner, getattr(text, "to", ""))
    return how.plain(str(text))


def as_markdown(text: Text) -> str:
    return _render_text(text, _MARKDOWN)


def as_html(text: Text) -> Markup:
    return Markup(_render_text(text, _HTML))


def as_latex(text: Text) -> str:
    return _render_text(text, _LATEX)


# tables -------------------------------------------------------------------------------------------------------------

_templates = Environment(
    loader=PackageLoader("demur.report"),
    autoescape=lambda name: name is not None and name.endswith(".html"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_templates.filters |= {"markdown": as_markdown, "html": as_html, "latex": as_latex}
_templates.tests["sheet"] = lambda block: isinstance(block, Sheet)


def render(template: str, **values: Any) -> str:
    return _templates.get_template(template).render(**values)


def terminal(sheet: Sheet, how: Style | None = None) -> Table:
    """For rich."""
    how = how or _RICH
    table = Table(title=sheet.heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(sheet.head):
        named = number < sheet.names
        justify: Any = "left" if named or sheet.written else "right"
        plain = named or how is _TEXT
        table.add_column(_render_text(column, how), justify=justify, no_wrap=plain, overflow="fold")
    for number, row in enumerate(sheet.rows):
        if number in sheet.ruled and number:
            table.add_section()
        table.add_row(*(_render_text(cell, how) for cell in row))
    return table


def text(sheet: Sheet, width: int = 240) -> str:
    """As for a terminal, without its colours: what is strong has a star."""
    console = Console(file=StringIO(), width=width, color_system=None, markup=False)
    console.print(terminal(sheet, _TEXT))
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join([*lines, *(_render_text(note, _TEXT) for note in sheet.notes)]) + "\n"


def markdown(sheet: Sheet) -> str:
    return render("table.md", sheet=sheet)


def latex(sheet: Sheet) -> str:
    """A table environment that needs no package."""
    return render("table.tex", sheet=sheet)


FORMATS: dict[str, Callable[[Sheet], str]] = {"txt": text, "md": markdown, "tex": latex}
