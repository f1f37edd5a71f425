"""The study `toy`, without a folder to keep: how sure five methods are of points in the plane."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from demur.metrics import Prediction
from demur.paper.studies import study_named
from demur.study.cells import Place, run_cell
from demur.study.results import read_result
from demur.tasks import Store


def toy_planes(epochs: int | None = None) -> dict[str, Mapping[str, Prediction]]:
    """By method, near the data and zoomed out; `epochs` instead of the recipe's."""
    study, planes = study_named("toy"), {}
    with TemporaryDirectory() as runs:
        place = Place(Path(runs), Store(Path(runs)))  # it needs no data
        for cell in (replace(cell, epochs=epochs) for cell in study.cells):
            folder = run_cell(cell, study.resolve(cell, place.store), place, study.further)
            planes[cell.method] = read_result(folder, cell).further["plane"].sets
    return planes
