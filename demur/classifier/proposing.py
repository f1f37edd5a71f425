"""Outliers for a problem of one's own: where there are some, what is wrong with them, and a selection to train with."""

import bisect
import itertools
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch

from demur.audit.outliers import OutlierAudit, audit_outliers
from demur.classifier.kinds import MixedTables
from demur.classifier.readers.base import Inputs, X, join_names
from demur.classifier.readers.images import read_images
from demur.classifier.readers.outliers import STORED, check_is_no_path, check_stored, open_like
from demur.data.catalogue import CATALOGUE
from demur.data.formats import IMAGES, find_files, to_png
from demur.data.store import Store
from demur.names import choose
from demur.outliers.overlap import overlapping_classes, read_class_names
from demur.outliers.spectrum import match_spectrum, mean_power
from demur.outliers.synthetic import BY_DEFAULT, SYNTHETIC, independent_columns
from demur.outliers.values import MATCHED, Natural, SpectrumMatched, Synthetic, build, leaves, parse
from demur.streams import generator_for
from demur.tasks.images import fit_images, recolour, to_train_with

FEWEST = 1_000  # outliers that are proposed, however few inliers there are
COLUMNS = "columns"
SPARE = 1.5  # times as many are taken as are wanted, since some may be left out
SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Problem:
    """The inliers that outliers are sought for, as they were read, and their classes."""

    inputs: Inputs
    x: X
    classes: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.inputs.kind

    def values(self, x: X) -> Any:
        """What is audited of inputs of this kind."""
        if self.kind == "texts":
            return list(x)
        if self.kind == "images":
            return torch.from_numpy(np.asarray(x))
        if self.inputs.mixed:
            return MixedTables.of(self.x).codes(x)
        return np.asarray(x, dtype=np.float64)


@dataclass(frozen=True)
class Pool:
    """Outliers of one source: as a fit will see them, and of each what is to be written and its class, if it is known.

    What is written of an image is its file or its pixels. `there` is how many the source has, 0 of synthetic ones;
    `num_shared` of them, in the classes `shared`, are of the problem's classes, and not here.
    """

    source: str
    x: X
    classes: Sequence[str | None]
    there: int
    images: Sequence[Path | np.ndarray] = ()
    shared: Sequence[str] = ()
    num_shared: int = 0

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def name(self) -> str:
        """Short enough for a table."""
        return Path(self.source).name

    def take(self, rows: Sequence[int]) -> "Pool":
        classes, images = [self.classes[row] for row in rows], [self.images[row] for row in rows if self.images]
        return replace(self, x=take_inputs(self.x, rows), classes=classes, images=images)


@dataclass(frozen=True)
class Selection:
    """Of one source what is shown, its audit, and what was left out because it is the inlier of that index."""

    shown: Pool
    audit: OutlierAudit
    twice: Pool
    originals: Sequence[int]

    @property
    def mean_auroc(self) -> float:
        """Of telling them by trivial things; 1 where nothing could be measured."""
        aurocs = [giveaway.auroc for giveaway in self.audit.giveaways]
        return sum(aurocs) / len(aurocs) if aurocs else 1.0


def take_inputs(x: X, rows: Sequence[int]) -> X:
    if isinstance(x, list):
        return [x[row] for row in rows]
    return x.take(pa.array(rows, pa.int64())) if isinstance(x, pa.Table) else x[list(rows)]


def candidates(problem: Problem, store: Store) -> list[str]:
    """Names of the sets of the store that hold inputs of that kind to train with, then synthetic ones."""
    kind = STORED.get(problem.kind)
    held = [name for name, known in CATALOGUE.items() if known.kind == kind and store.has(name, "train")]
    by_default = [str(leaf) for leaf in leaves(parse(BY_DEFAULT[problem.kind]))]
    return [*held, *(name for name in by_default if problem.kind != "tables" or name == COLUMNS)]


def propose(selections: Sequence[Selection]) -> list[str]:
    """The real ones that trivial things tell least, on average, and beside images their patches; else synthetic ones.

    A set of which one in a hundred is an inlier may be where the inliers come from.
    """
    synthetic = [chosen.shown.source for chosen in selections if not chosen.shown.there]
    real = [chosen for chosen in selections if chosen.shown.there and len(chosen.shown)]
    real = [chosen for chosen in real if len(chosen.twice) < 0.01 * len(chosen.shown)]
    if not real:
        return synthetic
    return [
        min(real, key=lambda chosen: chosen.mean_auroc).shown.source,
        *(name for name in synthetic if name == "patches"),
    ]


def select(
    problem: Problem, source: str, store: Callable[[], Store], count: int, seed: int, without: Collection[str] = ()
) -> Selection:
    """As many outliers of a source as are wanted, or as there are: none that is an inlier, or of one of its classes.

    Classes are compared by words; `without` names more of the source's that are not to be shown.
    """
    pool = gather(problem, source, store, round(SPARE * count) + 1, seed, without)
    inside, columns = problem.values(problem.x), problem.inputs.columns
    pairs = audit_outliers(inside, problem.values(pool.x), columns).duplicates if len(pool) else ()
    original = dict(reversed(pairs))
    shown = pool.take([row for row in range(len(pool)) if row not in original][:count])
    none = OutlierAudit(problem.kind, 0, (), ())
    audit = audit_outliers(inside, problem.values(shown.x), columns) if len(shown) else none
    twice = sorted(original)
    return Selection(shown, audit, pool.take(twice), [original[row] for row in twice])


def check_without(names: Collection[str], selections: Sequence[Selection]) -> None:
    """Refuse a name that left nothing out: it may be misspelt."""
    shared = sorted({name for chosen in selections for name in chosen.shown.shared})
    for name in names:
        if not overlapping_classes(shared, [name]):
            known = sorted({of for chosen in selections for of in chosen.shown.classes if of is not None})
            remedy = f"give one of theirs: {join_names(known)}" if known else "leave it out: they have no classes"
            raise ValueError(f"class {name!r} is in none of the sources; {remedy}")


# where they come from -----------------------------------------------------------------------------------------------


def gather(
    problem: Problem,
    source: str,
    store: Callable[[], Store],
    count: int,
    seed: int,
    without: Collection[str] = (),
) -> Pool:
    """At most so many outliers, in random order, of a path, a set of the store or a synthetic kind."""
    unwanted = [*problem.classes, *without]
    generator = generator_for("outliers", seed)
    if Path(source).exists():
        return _from_path(problem, Path(source), count, generator, unwanted)
    leaf, *others = leaves(parse(source))
    if others:
        raise ValueError(f"source {source!r} is several; name each with a --from of its own")
    if isinstance(leaf, Synthetic):
        return _synthetic(problem, leaf, count, generator)
    check_is_no_path(source)
    of = leaf.of if isinstance(leaf, SpectrumMatched) else leaf
    if not isinstance(of, Natural):
        raise ValueError(f"source {source!r} says not which images are to be filtered; give NAME_{source}")
    return _from_store(problem, of, isinstance(leaf, SpectrumMatched), store(), count, generator, unwanted)


def _by_class(classes: Sequence[str | None], unwanted: Collection[str]) -> tuple[list[int], list[str]]:
    """The rows that are of no unwanted class, and the names of the classes that are such."""
    names = sorted({name for name in classes if name is not None})
    shared = [names[place] for place in overlapping_classes(names, [*unwanted])]
    return [row for row, name in enumerate(classes) if name not in shared], shared


def _from_path(problem: Problem, path: Path, count: int, generator: torch.Generator, unwanted: Collection[str]) -> Pool:
    shape = problem.inputs.shape
    if problem.kind == "images" and (path.is_dir() or path.suffix.lower() in IMAGES):
        files = find_files(path) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path} holds no images; give a folder of {', '.join(sorted(IMAGES))} files")
        assert shape
        places = [file.relative_to(path).parts if path.is_dir() else () for file in files]
        classes = [place[0] if len(place) > 1 else None for place in places]
        free, shared = _by_class(classes, unwanted)
        rows = [free[row] for row in _some(len(free), count, generator)]
        chosen, named = [files[row] for row in rows], [classes[row] for row in rows]
        return Pool(str(path), read_images(chosen, shape), named, len(files), chosen, shared, len(files) - len(free))
    x = open_like(path, problem.inputs).gather().x
    if isinstance(x, list):
        return _texts(problem, str(path), x, count, generator)
    rows = _some(len(x), count, generator)
    taken = take_inputs(x, rows)
    images = list(np.asarray(taken)) if problem.kind == "images" else []
    return Pool(str(path), taken, [None] * len(rows), len(x), images)


def _from_store(
    problem: Problem,
    of: Natural,
    matched: bool,
    store: Store,
    count: int,
    generator: torch.Generator,
    unwanted: Collection[str],
) -> Pool:
    name = of.name
    check_stored(name, problem.kind, store)
    if problem.kind == "texts":
        return _texts(problem, name, store.texts(name, "train")[0], count, generator)
    images, labels = store.images(name, "train")
    names = read_class_names(store.root / name) or store.classes(name, "train")
    first = CATALOGUE[name].first_label if name in CATALOGUE else 0
    classes = (
        [names[label - first] for label in labels.tolist()] if names and labels is not None else [None] * len(images)
    )
    free, shared = _by_class(classes, unwanted)
    rows = [free[row] for row in _some(len(free), count, generator)]
    assert problem.inputs.shape
    shape = torch.Size(problem.inputs.shape)
    chosen = recolour(images[rows], shape[0])
    larger = chosen.shape[2] > shape[1] and chosen.shape[3] > shape[2]
    if larger or matched:
        chosen = to_train_with(chosen, shape).epoch(generator)
    if matched:
        chosen = match_spectrum(chosen, mean_power(torch.from_numpy(np.asarray(problem.x))))
    source = f"{name}_{MATCHED}" if matched else name
    seen, named = fit_images(chosen, shape).numpy(), [classes[row] for row in rows]
    return Pool(source, seen, named, len(images), list(chosen.numpy()), shared, len(images) - len(free))


def _synthetic(problem: Problem, leaf: Synthetic, count: int, generator: torch.Generator) -> Pool:
    rows = _some(len(problem.x), count, generator)
    some, nameless = take_inputs(problem.x, rows), [None] * len(rows)
    if isinstance(some, list):
        choose(SYNTHETIC["texts"], leaf.name, "synthetic outliers for texts")
        words = [word for text in some for word in text.split()]
        dealt = iter([words[place] for place in torch.randperm(len(words), generator=generator).tolist()])
        texts = [" ".join(itertools.islice(dealt, len(text.split()))) for text in some]
        return Pool(leaf.name, texts, nameless, 0)
    if problem.kind == "tables":
        if leaf.name != COLUMNS:
            choose(SYNTHETIC["tables"], leaf.name, "synthetic outliers for tables")
            raise ValueError(
                f"source {leaf.name!r} is made by a fit, anew in every epoch: demur fit --synthetic {leaf}"
            )
        return Pool(leaf.name, _shuffled_columns(some, generator), nameless, 0)
    synthetic = build(leaf, "images", torch.from_numpy(np.asarray(some))).epoch(generator).numpy()
    return Pool(leaf.name, synthetic, nameless, 0, list(synthetic))


def _shuffled_columns(rows: X, generator: torch.Generator) -> X:
    """As `columns` are made, of cells as they are."""
    if isinstance(rows, pa.Table):
        orders = [torch.randperm(len(rows), generator=generator).numpy() for _ in rows.columns]
        columns = [column.take(pa.array(order)) for column, order in zip(rows.columns, orders, strict=True)]
        return pa.table(columns, names=rows.column_names)
    return independent_columns(torch.from_numpy(np.asarray(rows)), generator).numpy()


def _some(total: int, count: int, generator: torch.Generator) -> list[int]:
    return torch.randperm(total, generator=generator)[:count].tolist()


def _texts(problem: Problem, source: str, texts: Sequence[str], count: int, generator: torch.Generator) -> Pool:
    lengths = [max(1, len(str(text).split())) for text in problem.x]
    pieces = as_long_as(texts, lengths, count, generator)
    return Pool(source, pieces, [None] * len(pieces), len(texts))


def as_long_as(texts: Sequence[str], lengths: Sequence[int], count: int, generator: torch.Generator) -> list[str]:
    """At most so many texts of as many words as inliers have: whole sentences if there are any, else cut or joined.

    Each sentence is used once.
    """
    sentences = [sentence.split() for sentence in dict.fromkeys(s for text in texts for s in SENTENCE.split(text))]
    by_length: dict[int, list[list[str]]] = {}
    for place in torch.randperm(len(sentences), generator=generator).tolist():
        if sentences[place]:
            by_length.setdefault(len(sentences[place]), []).append(sentences[place])
    lengths_left, pieces = sorted(by_length), []
    for draw in torch.randint(len(lengths), (count,), generator=generator).tolist():
        words: list[str] = []
        while (missing := lengths[draw] - len(words)) > 0 and lengths_left:
            place = min(bisect.bisect_left(lengths_left, missing), len(lengths_left) - 1)
            words += by_length[lengths_left[place]].pop()[:missing]
            if not by_length[lengths_left[place]]:
                del lengths_left[place]
        if words:
            pieces.append(" ".join(words))
    return pieces


# written ------------------------------------------------------------------------------------------------------------


def write_inputs(path: Path, suffix: str, pools: Sequence[Pool]) -> None:
    """A folder of images, one below it a source, or a file of that suffix: what `demur fit --outliers` takes."""
    if not suffix:
        for pool, name in zip(pools, _names_of(pools), strict=True):
            _write_images(path / name, pool)
    elif suffix == ".csv":
        tables = [pool.x if isinstance(pool.x, pa.Table) else _table(np.asarray(pool.x)) for pool in pools]
        pyarrow.csv.write_csv(pa.concat_tables(tables, promote_options="permissive"), path)
    else:
        texts = [" ".join(text.split()) for pool in pools for text in pool.x]  # each on one line
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts] if suffix == ".jsonl" else texts
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _names_of(pools: Sequence[Pool]) -> list[str]:
    """Of folders, each its own."""
    names: list[str] = []
    for pool in pools:
        name = re.sub(r"[^\w-]+", "_", Path(pool.source).stem).lstrip("_") or "outliers"
        names.append(name if name not in names else f"{name}_{len(names) + 1}")
    return names


def _write_images(folder: Path, pool: Pool) -> None:
    """Files as they are, pixels as PNG."""
    folder.mkdir(parents=True)
    for number, image in enumerate(pool.images):
        if isinstance(image, Path):
            (folder / f"{number:05}{image.suffix.lower()}").write_bytes(image.read_bytes())
        else:
            (folder / f"{number:05}.png").write_bytes(to_png(image.transpose(1, 2, 0)))


def _table(rows: np.ndarray) -> pa.Table:
    return pa.table(list(rows.T), names=[str(column + 1) for column in range(rows.shape[1])])
