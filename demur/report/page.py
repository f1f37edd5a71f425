"""The report as files: tidy figures, tables, drawings, and one page that shows them all and needs no network."""

import base64
import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from demur.method import METHODS
from demur.metrics import METRICS, mmc, ood_metrics
from demur.report import render
from demur.report.compare import Entry, Kind, ReportTable, kind_of, outliers_of, tables, unusual
from demur.report.figures import (
    BySeverity,
    draw_noise_confidence,
    draw_reliability,
    draw_roc,
    draw_scores,
    draw_shift,
    save_figure,
)
from demur.study import published
from demur.study.grid import Cell
from demur.study.results import Result

CELL = ("task", "outliers", "method", "seed", "convention", "epochs", "limit")


def write_report(results: Sequence[Result], out: Path, shift: BySeverity | None = None) -> None:
    """results.csv, compared.csv, cells.csv, tables/, figures/ and index.html; the same bytes for the same results, but
    for cells.csv, which has the times. `shift` adds the plot of ECE by severity: method to severity to ECE."""
    if not results:
        raise ValueError("there are no results to report; run a study first")
    results = sorted(results, key=lambda result: [str(value) for value in _place(result.cell)])
    made = tables(results)
    for folder in (out / "tables", out / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    (out / "results.csv").write_text(results_csv(results), "utf-8")
    (out / "compared.csv").write_text(compared_csv(made), "utf-8")
    (out / "cells.csv").write_text(cells_csv(results), "utf-8")
    for table in made:
        for suffix, write in (("txt", render.text), ("md", render.markdown), ("tex", render.latex)):
            (out / "tables" / f"{table.name}.{suffix}").write_text(write(table), "utf-8")
    drawn: dict[str, str] = {}
    for name, (caption, figure) in draw(results, shift):
        save_figure(figure, out / "figures" / name)
        drawn[name] = caption
    (out / "index.html").write_text(page(results, made, drawn, out / "figures"), "utf-8")


# CSV ----------------------------------------------------------------------------------------------------------------


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return written.getvalue()


def _place(cell: Cell) -> tuple[object, ...]:
    """The columns CELL; empty where the recipe decides."""
    limits = ("" if value is None else value for value in (cell.epochs, cell.limit))
    return cell.task, outliers_of(cell), cell.method, cell.seed, cell.convention, *limits


def results_csv(results: Sequence[Result]) -> str:
    """Every figure of every set, as a fraction in full precision, one a line."""
    rows = []
    for result in results:
        figures = {("test", name): metric(result.test, result.y) for name, metric in METRICS.items()}
        for name, outside in result.ood.items():
            figures |= {(name, metric): value for metric, value in ood_metrics(result.test, outside).items()}
        rows += [(*_place(result.cell), *place, repr(value)) for place, value in figures.items()]
    return _csv((*CELL, "set", "metric", "value"), sorted(rows, key=lambda row: [str(field) for field in row]))


def compared_csv(made: Sequence[ReportTable]) -> str:
    """Every place of every table: published and measured, as fractions."""
    header = ("table", *Kind._fields, "task", "set", "method", "score", "metric", "metric_convention")
    figures = ("published", "sem", "measured", "low", "high", "seeds", "least", "greatest", "difference")

    def row(table: ReportTable, column: published.Column, of: published.Row, entry: Entry) -> list[object]:
        printed, found = entry.published, entry.measured
        fields: list[object] = [table.table.name, *table.kind, column.task, column.set, *of]
        fields += [column.metric, column.convention]
        fields += [None, None] if printed is None else [printed.value, printed.sem]
        if found is None:
            return [*fields, *[None] * 7]
        seeds = [len(found.by_seed), min(found.by_seed), max(found.by_seed)]
        return [*fields, found.value, found.low, found.high, *seeds, entry.difference]

    return _csv(
        (*header, *figures),
        (
            row(table, column, line.row, entry)
            for table in made
            for line in table.lines
            for column, entry in zip(table.columns, line.entries, strict=True)
        ),
    )


def cells_csv(results: Sequence[Result]) -> str:
    """What each cell was made with, and how long it took."""
    flat = [dict(_flatten(result.record)) for result in results]
    names = sorted({name for record in flat for name in record})
    rows = ((*_place(result.cell), *map(record.get, names)) for result, record in zip(results, flat, strict=True))
    return _csv((*CELL, *names), rows)


def _flatten(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, json.dumps(value) if isinstance(value, list) else value


# figures ------------------------------------------------------------------------------------------------------------


def draw(results: Sequence[Result], shift: BySeverity | None) -> Iterator[tuple[str, tuple[str, Figure]]]:
    """The figures that the results allow, each with a name and a caption; of several seeds the first is drawn."""
    by_group: dict[tuple[Kind, str, str], list[Result]] = {}
    for result in sorted(results, key=lambda one: (METHODS.index(one.cell.method), one.cell.seed)):
        cell = result.cell
        group = by_group.setdefault((kind_of(cell), cell.task, outliers_of(cell)), [])
        if all(other.cell.method != cell.method for other in group):
            group.append(result)
    yield from _noise_figures(by_group)
    if shift:
        caption = "ECE under dataset shift: boxes over the corruptions of each severity"
        yield "shift", (caption, draw_shift(shift, published.shift_by_severity()))
    captions = {
        "reliability": (
            "Reliability: accuracy by confidence, ECE (%) in brackets; the darker a bar, the more inputs it has",
            draw_reliability,
        ),
        "scores": ("Confidence of inliers and of all outliers but the far-away ones", draw_scores),
        "roc": ("ROC: inliers kept against outliers kept, as the threshold on confidence moves", draw_roc),
    }
    for (kind, task, outliers), group in sorted(by_group.items(), key=repr):
        special = unusual(task, outliers)
        trained = f", trained with {outliers}" * bool(special)
        for name, (caption, make) in captions.items():
            parts = (name, task, special, kind.slug)
            yield "-".join(filter(None, parts)), (f"{task}{trained}. {caption}; {kind.title}", make(group))


def _noise_figures(
    by_group: Mapping[tuple[Kind, str, str], Sequence[Result]],
) -> Iterator[tuple[str, tuple[str, Figure]]]:
    printed: dict[str, dict[str, float]] = {}
    for figure in published.figures():
        if (figure.table, figure.set, figure.row.score) == ("mmc", "uniform", "max_prob"):
            printed.setdefault(figure.task, {})[figure.row.method] = figure.value
    for kind in sorted({kind for kind, _, _ in by_group}, key=repr):
        measured = {
            task: {one.cell.method: mmc(one.ood["uniform"]) for one in group if "uniform" in one.ood}
            for (other, task, outliers), group in sorted(by_group.items(), key=repr)
            if other == kind and not unusual(task, outliers)
        }
        shown = {task: figures for task, figures in measured.items() if figures.keys() & {"map+oe", "de", "vb", "la"}}
        if shown:
            caption = f"Mean confidence on uniform noise, the paper's figure 1; {kind.title}"
            yield "-".join(filter(None, ("noise", kind.slug))), (caption, draw_noise_confidence(shown, printed))


# the page -----------------------------------------------------------------------------------------------------------


def page(results: Sequence[Result], made: Sequence[ReportTable], drawn: Mapping[str, str], figures: Path) -> str:
    """One HTML document with its style, script and pictures inside."""
    frame = (files("demur.report") / "page.html").read_text("utf-8")
    tasks = list(dict.fromkeys(result.cell.task for result in results))
    methods = {result.cell.method for result in results}
    summary = f"{len(results)} cells: {len(methods)} methods on {', '.join(tasks)}."
    by_title: dict[str, list[ReportTable]] = {}
    for table in made:
        by_title.setdefault(table.table.title, []).append(table)
    contents = "".join(f"<li>{escape(title)}: {', '.join(map(_link, group))}</li>" for title, group in by_title.items())
    filled = {
        "SUMMARY": escape(summary),
        "CONTENTS": contents,
        "TABLES": "".join(map(_table, made)),
        "FIGURES": "".join(_figure(name, caption, figures) for name, caption in drawn.items()),
    }
    for name, html in filled.items():
        frame = frame.replace(f"<!-- {name} -->", html)
    return frame


def _link(table: ReportTable) -> str:
    return f'<a href="#{escape(table.name)}">{escape(table.kind.title.removeprefix("trained in the "))}</a>'


def _table(table: ReportTable) -> str:
    titles = (f"{'<br>'.join(map(escape, render.heading(column, table)))}" for column in table.columns)
    head = "".join(f'<th scope="col"><button type="button">{title}</button></th>' for title in ("method", *titles))
    rows = (
        f'<tr><th scope="row">{escape(line.row.label)}</th>{"".join(map(_cell, line.entries))}</tr>'
        for line in table.lines
    )
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in render.legend(table))
    downloads = ", ".join(f'<a href="tables/{table.name}.{suffix}">{suffix}</a>' for suffix in ("txt", "md", "tex"))
    return (
        f'<section class="table" id="{escape(table.name)}"><h3>{escape(table.title)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<ul class="remarks">{remarks}<li>As a file: {downloads}</li></ul></section>'
    )


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


def _figure(name: str, caption: str, folder: Path) -> str:
    drawing = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
    return (
        f'<figure id="figure-{escape(name)}"><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{drawing}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
