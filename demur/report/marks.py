"""Text with marks, and tables and sections of it: written once, rendered as Markdown and as HTML.

A text is a string, maybe marked by `Code` or `Strong`; a tuple of texts is one line, a list has a line for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Text = Any  # str | Code | Strong | tuple[Text, ...] | list[Text]; mypy knows no such recursion with str in it


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Strong:
    text: Text


@dataclass(frozen=True)
class Sheet:
    """A table of texts; the first columns, so many, name a row together."""

    head: Sequence[Text]
    rows: Sequence[Sequence[Text]]
    names: int = 1


@dataclass(frozen=True)
class Bullets:
    items: Sequence[Text]


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Text | Sheet | Bullets]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


def as_markdown(text: Text) -> str:
    return _marked(text, "`{}`", "**{}**", lambda plain: plain.replace("*", r"\*").replace("|", r"\|"))


def as_html(text: Text) -> str:
    return _marked(text, "<code>{}</code>", "<strong>{}</strong>", escape)


def _marked(text: Text, code: str, strong: str, plain: Any) -> str:
    if isinstance(text, tuple | list):
        return ("<br>" if isinstance(text, list) else "").join(_marked(part, code, strong, plain) for part in text)
    if isinstance(text, Code):
        return code.format(text.text if strong.startswith("*") else escape(text.text))
    return strong.format(_marked(text.text, code, strong, plain)) if isinstance(text, Strong) else plain(text)
