"""The paper's studies, and OpenOOD's, as the engine takes them."""

from demur.names import choose
from demur.paper import openood
from demur.paper.conventions import resolve
from demur.paper.counts import with_counts
from demur.paper.further import FURTHER
from demur.paper.grid import CHOICE_SCORES, STUDIES
from demur.study.grid import Study

NAMES = (*STUDIES, openood.STUDY.name)


def study_named(name: str) -> Study:
    if name == openood.STUDY.name:
        return openood.STUDY
    cells = STUDIES[choose(dict(zip(NAMES, NAMES, strict=True)), name, "study")]
    scores = CHOICE_SCORES if name == "choice" else ()
    return Study(name, tuple(map(with_counts, cells)), resolve, FURTHER, scores)
