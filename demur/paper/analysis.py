"""What a report shows of its cells in more than one place, each computed once."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import pandas as pd

from demur.paper.agreement import compare_printed
from demur.paper.causes import Cause, Disagreement, disagreements
from demur.paper.choice import Candidate
from demur.paper.claims import CLAIMS, Claim
from demur.paper.grid import CONVENTIONS
from demur.paper.recommended import Validated, recommend, validate
from demur.paper.verdicts import Verdict, examine
from demur.paper.views import View, own_view, printed_view
from demur.study.table import Measured

CORRECTED, PUBLISHED = CONVENTIONS


class Analysis:
    def __init__(self, cells: Sequence[Measured]) -> None:
        self.cells = cells

    @cached_property
    def views(self) -> Mapping[str, View]:
        """By convention."""
        return {convention: own_view(self.cells, convention) for convention in CONVENTIONS}

    @cached_property
    def printed(self) -> pd.DataFrame:
        """Every printed value beside ours."""
        return compare_printed(self.cells)

    @cached_property
    def disagreements(self) -> list[tuple[Disagreement, Cause]]:
        return list(disagreements(self.cells))

    @cached_property
    def verdicts(self) -> list[tuple[Claim, list[Verdict]]]:
        """Of every claim: in each convention and, where the paper prints values, by these."""
        printed = printed_view()
        return [
            (claim, [examine(claim, view) for view in (*self.views.values(), *[printed] * claim.is_printed)])
            for claim in CLAIMS
        ]

    @cached_property
    def candidates(self) -> list[Validated]:
        """All that a method is recommended from, best first."""
        return validate(self.views[CORRECTED])

    @cached_property
    def recommended(self) -> Candidate | None:
        return recommend(self.candidates)
