"""What the studies hold: every cell of the paper, the published conventions, and inputs beside a task's own."""

import shlex
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from demur.cli import app
from demur.data.formats import to_png
from demur.data.store import image_column
from demur.inference import Laplace
from demur.likelihoods import plain, soft_labels
from demur.networks import mlp
from demur.paper.conventions import TunedOnTrainingData, resolve
from demur.paper.further import (
    HALF_WIDTHS,
    PIXELS,
    PRINTED,
    VALIDATION,
    grid,
    shift,
    shift_set_name,
    validation,
)
from demur.paper.grid import PAPER_ROWS, STUDIES, commands, select, setting, union
from demur.paper.measuring import values_of
from demur.paper.published import SHIFT_SETS
from demur.paper.suite import LETTERS, printed_letters
from demur.study.cells import Place, parts_of
from demur.study.engine import results_of
from demur.study.fits import Data, Fit, folder_name
from demur.study.grid import Cell
from demur.study.results import is_done, pack, read_results, unpack
from demur.tasks import Recipe, Split, Store
from demur.tasks import load as load_task
from demur.tasks.shift import CORRUPTIONS, SEVERITIES, corrupt
from tests.conftest import changed, make_task
from tests.test_study import folder_of, of, run_cell

NOWHERE = Store(Path("nowhere"))


# the grid -----------------------------------------------------------------------------------------------------------


def bare(cell: Cell) -> Cell:
    return replace(cell, further=())


def test_all_is_every_other_study_without_repetition():
    everything = [bare(cell) for cell in STUDIES["all"]]
    assert len(set(everything)) == len(everything)
    assert set(everything) == {bare(cell) for cells in STUDIES.values() for cell in cells}
    asking = [cell for name in ("shift", "toy", "recommended", "choice") for cell in STUDIES[name]]
    of_each = {(bare(cell), kind) for cell in STUDIES["all"] for kind in cell.further}
    assert of_each == {(bare(cell), *cell.further) for cell in asking}


def test_a_cell_has_what_any_study_asks_of_it():
    cell = Cell("cifar10", "la+nc")
    several = [replace(cell, further=further) for further in (("validation",), (), ("shift",), ("shift", "validation"))]
    assert union([several[:1], several[1:3]]) == union([several[3:], [cell]]) == (several[3],)
    assert union([[cell], [cell]]) == (cell,)
    of_each = {cell.method for cell in STUDIES["all"] if cell.further == ("shift", "suite", "validation")}
    assert of_each == {"la+nc", "la+sl"}  # candidates that are rows of the paper's, with the usual outliers
    assert {cell.task for cell in STUDIES["recommended"] if cell.further == ("validation",)} == {
        "mnist",
        "fashion_mnist",
        "cifar10",
    }


def test_shift_has_the_networks_of_the_first_table():
    cifar10 = [cell for cell in STUDIES["table1"] if cell.task == "cifar10"]
    assert [bare(cell) for cell in STUDIES["shift"]] == cifar10
    named = [replace(cell, outliers="smooth") for cell in (cifar10[3], STUDIES["shift"][3])]
    assert len({folder_name(resolve(cell, NOWHERE)) for cell in named}) == 1


def test_printed_letters_are_white_on_black_always_the_same_and_all_different():
    letters = printed_letters(2 * len(LETTERS), 28)
    assert torch.equal(letters, printed_letters(2 * len(LETTERS), 28))
    assert letters.shape == (2 * len(LETTERS), 1, 28, 28)
    assert letters.dtype == torch.uint8
    assert len(letters.flatten(1).unique(dim=0)) == len(letters)
    assert (letters[:, :, 0, 0] == 0).all()
    assert (letters.amax((1, 2, 3)) > 200).all()
    share = (letters > 127).float().mean((1, 2, 3))
    assert ((share > 0.02) & (share < 0.4)).all()


def test_the_help_names_every_study():
    shown = CliRunner().invoke(app, ["study", "--help"]).output
    assert all(name in shown for name in STUDIES)


def test_a_method_may_have_a_setting_of_its_own():
    precisions = {name: setting("blobs", name).inference for name in ("map", "la", "la+nc", "la+sl")}
    assert precisions == {
        "map": None,
        "la": Laplace(prior_precision=300.0),
        "la+nc": Laplace(prior_precision=300.0),
        "la+sl": Laplace(prior_precision=10.0),
    }


def typed(command: str) -> list[Cell]:
    """The cells that a command asks for."""
    _, _, study, *rest = shlex.split(command)
    options: dict[str, list[str]] = {}
    for option, value in zip(rest[::2], rest[1::2], strict=True):
        options.setdefault(option, []).append(value)
    numbers = {name: int(options[f"--{name}"][0]) for name in ("seeds", "epochs", "limit") if f"--{name}" in options}
    convention = options.get("--convention", [None])[0]
    chosen = {name: options.get(f"--{name}") for name in ("task", "method", "outliers")}
    return select(
        study,
        tasks=chosen["task"],
        methods=chosen["method"],
        outliers=chosen["outliers"],
        convention=convention,
        **numbers,
    )


@pytest.mark.parametrize(
    "cells",
    [
        select("all"),
        select("table2", tasks=["mnist"], convention="corrected", seeds=3) + select("table2", tasks=["mnist"]),
        select("shift", methods=["map", "la+nc"], epochs=1, limit=600) + select("table1", tasks=["cifar10"]),
        select("aux", methods=["flipout"], convention="published") + select("noise", tasks=["svhn"], seeds=2),
        select("recommended", tasks=["mnist"], outliers=["usual", "tiny_imagenet32+patches"], methods=["map+nc"]),
        select("all", tasks=["cifar10"], methods=["map", "la+nc", "la+sl"], seeds=2),
        [Cell("cifar10", "la+nc", further=("shift", "validation")), Cell("cifar10", "la+nc", 1, further=("shift",))],
    ],
)
def test_commands_make_the_cells_that_they_were_made_from(cells: list[Cell]):
    made = [cell for command in commands(cells) for cell in typed(command)]
    assert set(union([made])) == set(union([cells]))


def test_commands_are_few():
    assert commands(select("matrix")) == ["demur study matrix --task digits"]
    assert commands(select("shift", seeds=2)) == ["demur study shift --task cifar10 --seeds 2"]
    assert commands([Cell("mnist", "la+nc", outliers="mine")]) == []
    assert commands([Cell("cifar10", "la+nc", further=("shift", "validation"))]) == [
        "demur study shift --task cifar10 --convention corrected --method la+nc",
        "demur study recommended --task cifar10 --convention corrected --outliers usual --method la+nc",
    ]
    shared = Cell(
        "cifar10", "de+nc", convention="published", further=("validation",)
    )  # asked of the corrected one alone
    assert commands([shared]) == ["demur study aux --task cifar10 --convention published --method de+nc"]


def test_outliers_that_a_study_lacks_are_refused():
    with pytest.raises(ValueError, match="unknown outliers of study 'recommended' 'smoke'; known: usual, tiny"):
        select("recommended", outliers=["smoke"])
    assert {cell.outliers for cell in select("recommended", outliers=["usual"])} == {None}


def test_a_study_with_further_inputs_is_not_whole_where_a_cell_lacks_them():
    cells = [replace(cell, further=()) if cell.method == "vb" else cell for cell in STUDIES["shift"]]
    made = [cell for command in commands(cells) for cell in typed(command)]
    assert not any(cell.method == "vb" and cell.further for cell in made)
    assert any(cell.method == "vb" for cell in made)


# published conventions ----------------------------------------------------------------------------------------------


def resolved(task: str, method: str, convention: str = "published") -> Fit:
    return resolve(Cell(task, method, convention=convention, outliers="smooth"), NOWHERE)


def test_soft_labels_on_cifar100_have_their_loss_divided_by_k():
    fit = resolved("cifar100", "map+sl")
    inside, outside, y = torch.randn(5, 7), torch.randn(5, 7), torch.arange(5)
    usual = soft_labels(7, smoothing=1e-30).log_prob(inside, y, outside)
    torch.testing.assert_close(fit.likelihood(7).log_prob(inside, y, outside), usual / 7)
    assert fit.recipe.clip_norm is None
    assert resolved("cifar100", "vb+sl").inference.tau == 0.001
    assert [folder_name(part) for part in parts_of(resolved("cifar100", "la+sl"))] == [folder_name(fit)]


@pytest.mark.parametrize(
    ("task", "method", "convention"),
    [("cifar10", "vb+sl", "published"), ("cifar100", "vb+nc", "published"), ("cifar100", "vb+sl", "corrected")],
)
def test_other_cells_are_not_touched_by_that(task: str, method: str, convention: str):
    fit = resolved(task, method, convention)
    assert (fit.recipe.clip_norm, fit.inference.tau) == (10.0, 0.1)


@pytest.mark.parametrize("task", ["cifar10", "mnist", "sst"])
def test_outlier_exposure_has_the_weight_of_the_literature_in_both_conventions(task: str):
    weights = {
        resolved(task, method, convention).likelihood(10).outside.weight
        for method in ("map+oe", "la+oe", "vb+oe")
        for convention in ("published", "corrected")
    }
    assert weights == {0.5}


def test_published_texts_are_tested_as_unknown_words_and_laplace_shares_the_network_of_map():
    fit, alone = resolved("trec", "la"), resolved("trec", "map")
    assert (fit.data.inside, fit.data.outside, fit.data.tested) == ("lowered", "lowered", "unknown")
    assert resolved("sst", "la").data.inside == "cased"
    assert {resolved(task, "la").data.min_count for task in ("sst", "trec")} == {1}  # every training word was known
    assert resolved("trec", "la", "corrected").data.min_count == 2
    assert [folder_name(part) for part in parts_of(fit)] == [folder_name(alone)]
    assert resolved("trec", "la", "corrected").data.tested is None


def test_the_published_prior_of_text_is_tuned_on_the_training_set():
    theirs, ours = (resolve(Cell("sst", "la", convention=c), NOWHERE).inference for c in ("published", "corrected"))
    assert isinstance(theirs, TunedOnTrainingData)
    assert isinstance(ours, Laplace)
    assert (min(theirs.laplace.grid), max(theirs.laplace.grid)) == pytest.approx((0.1, 1000))


@pytest.mark.filterwarnings("ignore:the best prior precision")  # three values, so that the best is at an edge
@pytest.mark.filterwarnings("ignore:every prior precision")
def test_tuned_on_what_it_was_fitted_to_it_is_surer():
    """The validation labels are shuffled, and enough to count: whoever asks them learns to doubt."""
    task = make_task(count=240)
    train = task.training.train
    task = changed(task, validation=Split(train.x, train.y.roll(1)))
    network, recipe = lambda outputs: mlp(outputs, inputs=4, hidden=(8,)), Recipe(epochs=200)
    laplace = Laplace(grid=(1.0, 1e3, 1e6), slack=0.0)
    doubting = laplace.fit(network, plain(3), task.training, recipe)
    sure = TunedOnTrainingData(laplace).fit(network, plain(3), task.training, recipe)
    assert all((sure.variance[name] < value).all() for name, value in doubting.variance.items())


# further inputs -----------------------------------------------------------------------------------------------------


def test_further_predictions_join_those_that_are_there(tmp_path: Path):
    place, cell = Place(tmp_path / "runs", NOWHERE), Cell("blobs", "la+nc", epochs=1, limit=200)
    folder = run_cell(cell, place)
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    toy = replace(cell, further=("plane",))
    assert [result.cell for result in results_of(of([cell, toy]), place)] == [cell]
    assert run_cell(toy, place) == folder
    assert stamps.items() < {path: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}.items()
    (result,) = read_results(place.runs)  # one cell, whatever else it was asked
    assert result.cell == toy
    for where, half in HALF_WIDTHS.items():
        assert len(result.further["plane"].sets[where]) == PIXELS**2
        assert grid(half).amax() == half

    files = pack(place.runs, tmp_path / "packs")
    elsewhere = Place(tmp_path / "elsewhere", NOWHERE)
    run_cell(cell, elsewhere)
    assert unpack(files, elsewhere.runs) == [elsewhere.runs / folder.name]  # only what was not there
    assert unpack(files, elsewhere.runs) == []
    ours, theirs = (load_file(runs / folder.name / "plane.safetensors") for runs in (place.runs, elsewhere.runs))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert is_done(folder_of(toy, elsewhere), ["plane"])


@pytest.fixture
def noise_as_cifar10(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    for place, (name, split, count) in enumerate(
        (("cifar10", "train", 70), ("cifar10", "test", 40), ("tiny_imagenet32", "train", 50))
    ):
        pixels = torch.randint(256, (count, 32, 32, 3), generator=torch.Generator().manual_seed(place))
        images = image_column(map(to_png, pixels.byte().numpy()))
        columns = {"image": images, "label": [i % 10 for i in range(count)]}
        store.write(name, split, [pa.table(columns)], "a test")
    return store


def test_a_cell_under_shift(noise_as_cifar10: Store, tmp_path: Path):
    """95 sets of the same images, which neither convention validates with; generated once, and measured."""
    ours, theirs = (Data("cifar10", limit=30, validation=split) for split in ("train", "test"))
    y, sets = shift(ours, noise_as_cifar10)
    assert shift(theirs, noise_as_cifar10)[1] is sets
    task = load_task("cifar10", store=noise_as_cifar10, outliers="uniform", limit=30, validation="test")
    assert torch.equal(sets[shift_set_name("fog", 2)], corrupt(task.testing.test.x, "fog", 2))
    place = Place(tmp_path / "runs", noise_as_cifar10)
    run_cell(Cell("cifar10", "map", epochs=1, limit=30, further=("shift",)), place)
    (result,) = read_results(place.runs)
    further = result.further["shift"]
    assert list(further.sets) == [shift_set_name(c, s) for c in CORRUPTIONS for s in SEVERITIES] == list(sets)
    assert torch.equal(further.y, y)
    right = further.sets[shift_set_name("snow", 4)].probs.argmax(1) == y
    assert values_of(result)[shift_set_name("snow", 4), "accuracy"].value == float(right.double().mean())


@pytest.mark.parametrize(
    "asked", [[("shift",), ("validation",)], [("validation",), ("shift", "validation")], [("shift", "validation")]]
)
def test_a_cell_under_shift_that_is_validated_too(
    noise_as_cifar10: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, ...]]
):
    """Whichever comes first stays as it is; both are read back, and measured."""
    monkeypatch.setattr("demur.paper.further.LETTER_COUNT", 20)
    place, cell = Place(tmp_path / "runs", noise_as_cifar10), Cell("cifar10", "map+nc", epochs=1, limit=30)
    both, stamps = replace(cell, further=("shift", "validation")), {}
    for further in asked:
        assert not is_done(folder_of(cell, place), further)
        assert results_of(of([both]), place) == []
        folder = run_cell(replace(cell, further=further), place)
        now = {path: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
        assert stamps.items() < now.items()
        stamps = now
    (result,) = read_results(place.runs)
    assert result.cell == both
    assert [one.cell for one in results_of(of([both, cell]), place)] == [both, cell]
    figures = values_of(result)
    for kind in ("shift", "validation"):
        (alone,) = results_of(of([replace(cell, further=(kind,))]), place)
        assert list(alone.further) == [kind]
        assert values_of(alone).items() < figures.items()
    y, inputs = validation(resolve(cell, noise_as_cifar10).data, noise_as_cifar10)
    assert list(result.further["validation"].sets) == list(inputs) == [VALIDATION, PRINTED]
    right = result.further["validation"].sets[VALIDATION].probs.argmax(1) == y
    assert figures[VALIDATION, "accuracy"].value == pytest.approx(float(right.double().mean()), abs=1e-6)
    assert {(PRINTED, "none_share_fpr95"), (SHIFT_SETS[3], "ece")} <= figures.keys()


def test_the_papers_rows_are_in_every_image_study():
    for name in ("table1", "table2", "mmc", "fpr95", "auroc", "aupr", "noise", "shift"):
        assert {cell.method for cell in STUDIES[name]} == set(PAPER_ROWS)
