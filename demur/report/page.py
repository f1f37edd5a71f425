"""The report as files: tidy figures, tables, drawings, RESULTS.md, and one page that shows all and needs no network."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from demur.files import replacing
from demur.report import render
from demur.report.compare import Entry, Line, ReportTable, tables
from demur.report.document import document
from demur.report.drawings import Drawing, from_figures, from_predictions
from demur.report.figures import save_figure
from demur.report.sections import agreement, better
from demur.report.verdicts import claims_document
from demur.study.table import CELLS, RESULTS, Measured, cells_csv, results_csv


def write_report(cells: Sequence[Measured], out: Path) -> None:
    """results.csv, cells.csv, RESULTS.md, tables/, figures/, index.html, and claims.md where a claim can be tested.

    Cells measured from predictions and the same cells read from the two tables make the same files, but that some
    figures need predictions; cells.csv alone has times in it.
    """
    if not cells:
        raise ValueError("there are no results to report; run a study first")
    made = tables(cells)
    for folder in (out / "tables", out / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((RESULTS, results_csv(cells)), (CELLS, cells_csv(cells))):
        with replacing(out / name) as unfinished:  # they may be all that is left of the cells
            unfinished.write_text(text, "utf-8")
    for table in made:
        for suffix, write in (("txt", render.text), ("md", render.markdown), ("tex", render.latex)):
            (out / "tables" / f"{table.name}.{suffix}").write_text(write(table), "utf-8")
    drawn = _saved(from_figures(cells), out / "figures")
    sections = [*agreement(cells), *better(cells)]
    (out / "RESULTS.md").write_text(document(cells, made, drawn, sections), "utf-8")
    if (claims := claims_document(cells)) is not None:
        (out / "claims.md").write_text(claims, "utf-8")
    drawn |= _saved(from_predictions(cells), out / "figures")
    (out / "index.html").write_text(page(cells, made, drawn, sections, out / "figures", claims is not None), "utf-8")


def _saved(drawings: Iterator[Drawing], folder: Path) -> dict[str, str]:
    """The captions by name."""
    captions = {}
    for drawing in drawings:
        save_figure(drawing.figure, folder / drawing.name)
        captions[drawing.name] = drawing.caption
    return captions


def page(
    cells: Sequence[Measured],
    made: Sequence[ReportTable],
    drawn: Mapping[str, str],
    sections: Sequence[str],
    figures: Path,
    has_claims: bool,
) -> str:
    """One HTML document with its style, script and pictures inside."""
    frame = (files("demur.report") / "page.html").read_text("utf-8")
    tasks = list(dict.fromkeys(one.cell.task for one in cells))
    methods = {one.cell.method for one in cells}
    summary = f"{len(cells)} cells: {len(methods)} methods on {', '.join(tasks)}."
    by_title: dict[str, list[ReportTable]] = {}
    for table in made:
        by_title.setdefault(table.table.title, []).append(table)
    contents = "".join(f"<li>{escape(title)}: {', '.join(map(_link, group))}</li>" for title, group in by_title.items())
    titles = [block[3:] for block in sections if block.startswith("## ")]
    filled = {
        "SUMMARY": escape(summary),
        "CONTENTS": contents,
        "CLAIMS": ', <a href="claims.md">the paper\'s claims, put to the test</a>' if has_claims else "",
        "SECTIONS": "".join(_sections(sections)),
        "LINKS": "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>, ' for title in titles),
        "TABLES": "".join(map(_table, made)),
        "FIGURES": "".join(html_figure(name, caption, figures) for name, caption in drawn.items()),
    }
    for name, html in filled.items():
        frame = frame.replace(f"<!-- {name} -->", html)
    return frame


def _sections(blocks: Sequence[str]) -> Iterator[str]:
    """Headings, and what stands below them."""
    title = ""
    for block in blocks:
        if block.startswith("## "):
            title = block[3:]
            yield f'<h2 id="{_anchor(title)}">{escape(title)}</h2>'
        else:
            yield _block(block, title)


def _block(markdown: str, title: str) -> str:
    """A table, a list or a paragraph, of the few marks that sections have."""
    lines = markdown.splitlines()
    if markdown.startswith("- "):
        return f'<ul class="remarks">{"".join(f"<li>{_inline(line[2:])}</li>" for line in lines)}</ul>'
    if not markdown.startswith("|"):
        return f"<p>{_inline(markdown)}</p>"
    head, _, *rows = ([_inline(entry.strip()) for entry in line[2:-2].split(" | ")] for line in lines)
    columns = "".join(f'<th scope="col">{entry}</th>' for entry in head)
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{e}</td>" for e in row[1:])}</tr>' for row in rows)
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll written" tabindex="0" role="region" aria-label="{escape(title)}">{table}</div>'


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _inline(markdown: str) -> str:
    html = escape(markdown).replace("&lt;br&gt;", "<br>").replace("\\*", "*")
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", re.sub("`(.+?)`", r"<code>\1</code>", html))


def _link(table: ReportTable) -> str:
    return f'<a href="#{escape(table.name)}">{escape(table.kind.title.removeprefix("trained in the "))}</a>'


def _table(table: ReportTable) -> str:
    titles = (f"{'<br>'.join(map(escape, render.heading(column, table)))}" for column in table.columns)
    head = "".join(f'<th scope="col"><button type="button">{title}</button></th>' for title in ("method", *titles))
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in render.legend(table, best="In bold"))
    downloads = ", ".join(f'<a href="tables/{table.name}.{suffix}">{suffix}</a>' for suffix in ("txt", "md", "tex"))
    return (
        f'<section class="table" id="{escape(table.name)}"><h3>{escape(table.title)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, table.lines))}</tbody></table></div>"
        f'<ul class="remarks">{remarks}<li>As a file: {downloads}</li></ul></section>'
    )


def _row(line: Line) -> str:
    begins = ' class="first"' if line.first else ""
    return f'<tr{begins}><th scope="row">{escape(line.row.label)}</th>{"".join(map(_cell, line.entries))}</tr>'


def _cell(entry: Entry) -> str:
    first, measured = render.measured_text(entry), entry.measured
    if measured is None:
        shown = f'<span class="none">{first}</span>'
        value = hint = ""
    else:
        shown = f"<strong>{first}</strong>" if entry.best else first
        shown += f" <small>{render.half_width(entry)}</small>"
        value = f' data-value="{measured.value!r}"'
        hint = f' title="95 % over test points: {render.per_cent(measured.low)} to {render.per_cent(measured.high)}"'
    below = (text for text in (render.seeds_text(entry), render.published_text(entry)) if text)
    return f"<td{value}{hint}>{shown}{''.join(f'<br><small>{text}</small>' for text in below)}</td>"


def html_figure(name: str, caption: str, folder: Path) -> str:
    drawing = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
    return (
        f'<figure id="figure-{escape(name)}"><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{drawing}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
