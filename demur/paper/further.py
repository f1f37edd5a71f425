"""Inputs that a cell may be asked to predict beside its task's own: images under shift, the plane of the toy, and
what a method may be chosen by without a look at what it is tested with."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from demur.paper.counts import COUNTS, counts
from demur.paper.suite import printed_letters, suite
from demur.study.fits import DataSource, Further, Inputs
from demur.tasks import Split, Store
from demur.tasks import load as load_task
from demur.tasks.images import fit_images
from demur.tasks.shift import CORRUPTIONS, SEVERITIES, corrupt

IMAGES = 2_000  # of the test set: 95 times 10,000 predictions would be 45 MB a cell
HALF_WIDTHS = MappingProxyType({"near the data": 7.0, "zoomed out": 70.0})
PIXELS = 150


def shift(data: DataSource, store: Store) -> Inputs:
    """The same test images under every corruption, as `shift/fog/3`."""
    return _corrupted(data.name, data.limit, store)


@lru_cache(maxsize=1)  # 0.6 GB, and half a minute on one core
def _corrupted(name: str, limit: int | None, store: Store) -> Inputs:
    # of those that neither convention validates with; made on a CPU, so that they are the same everywhere
    test = load_task(name, store=store, outliers="uniform", limit=limit, validation="test").testing.test
    images = Split(test.x[:IMAGES], test.y[:IMAGES])
    return images.y, {shift_set_name(c, s): corrupt(images.x, c, s) for c in CORRUPTIONS for s in SEVERITIES}


def shift_set_name(corruption: str, severity: int) -> str:
    """What the set is called."""
    return f"shift/{corruption}/{severity}"


def plane(data: DataSource, store: Store) -> Inputs:
    """A grid of points around the classes, near and from afar."""
    return torch.empty(0, dtype=torch.long), {where: grid(half) for where, half in HALF_WIDTHS.items()}


def grid(half: float) -> Tensor:
    """(PIXELS ** 2, 2): column by column, each from below."""
    line = torch.linspace(-half, half, PIXELS)
    return torch.cartesian_prod(line, line)


VALIDATION, PRINTED = "validation/inliers", "validation/printed_letters"
LETTER_COUNT = 2_000


def validation(data: DataSource, store: Store) -> Inputs:
    """Held-out inliers, and letters that are nobody's test data: for tasks of images."""
    held_out = load_task(data.name, store=store, outliers="uniform", limit=data.limit).training.held_out
    shape = held_out.x.shape[1:]
    return held_out.y, {VALIDATION: held_out.x, PRINTED: fit_images(printed_letters(LETTER_COUNT, shape[-1]), shape)}


FURTHER: Mapping[str, Further] = MappingProxyType(
    {"shift": shift, "plane": plane, "validation": validation, "suite": suite, COUNTS: counts}
)
