"""The paper's studies, as the engine takes them."""

from demur.names import choose
from demur.paper.conventions import resolve
from demur.paper.further import FURTHER
from demur.paper.grid import STUDIES
from demur.study.grid import Study


def study_named(name: str) -> Study:
    return Study(name, choose(STUDIES, name, "study"), resolve, FURTHER)
