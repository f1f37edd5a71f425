"""`demur outliers`: audits find what was planted, and nothing that is there already is replaced."""

import json
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

from demur.audit import audit_outliers
from demur.classifier.proposing import Problem, as_long_as, candidates, propose, select
from demur.classifier.readers import open_inputs
from demur.data.formats import to_png
from demur.data.store import Store, image_column
from experiments.fuzz import called

WORDS = ("when", "where", "what", "who", "how", "many", "far", "red", "blue", "green", "the", "of", "in", "is")


def blurred(count, size=32, sigma=2.0, seed=0):
    """Colour images (N, 3, H, W) of blobs."""
    noise = np.random.default_rng(seed).normal(size=(count, 3, size, size))
    smooth = gaussian_filter(noise, (0, 0, sigma, sigma))
    return (127 + 60 * smooth / smooth.std()).clip(0, 255).astype(np.uint8)


def giveaways(audit):
    return {giveaway.feature: giveaway.auroc for giveaway in audit.giveaways}


def test_planted_duplicates_are_found_and_nothing_else():
    inliers, outliers = blurred(60), blurred(50, seed=1)
    outliers[[7, 20]] = inliers[[3, 40]]
    outliers[7, :, 0, 0] = 0  # one pixel changed
    audit = audit_outliers(inliers, outliers)
    assert audit.duplicates == ((7, 3), (20, 40))
    assert "2 of the 50 outliers are also an inlier" in audit.lines()[0]
    larger = [
        np.stack([np.asarray(Image.fromarray(x.transpose(1, 2, 0)).resize((96, 96))) for x in each])
        for each in (inliers, outliers)
    ]
    assert audit_outliers(*(torch.from_numpy(x.transpose(0, 3, 1, 2)) for x in larger)).duplicates == audit.duplicates


def test_sharpness_brightness_and_colour_are_told_apart():
    inliers = blurred(80)
    assert max(giveaways(audit_outliers(inliers, blurred(80, seed=1))).values()) < 0.8
    sharp = giveaways(audit_outliers(inliers, blurred(80, sigma=1.0, seed=1)))
    assert sharp["sharpness"] > 0.95
    assert sharp["brightness"] < 0.8
    grey = giveaways(audit_outliers(inliers, np.repeat(blurred(80, seed=1)[:, :1], 3, 1)))
    assert grey["colour"] == 1
    audit = audit_outliers(inliers, blurred(80, seed=1) // 4)
    assert giveaways(audit)["brightness"] == 1
    assert any(line.startswith("brightness alone tells the outliers") for line in audit.lines())


def sentence(draw, length):
    return " ".join(draw.choice(WORDS, length))


def test_texts_are_told_by_length_and_by_a_mark():
    draw = np.random.default_rng(0)
    inliers = [f"{sentence(draw, draw.integers(4, 9))} {draw.integers(10**6)}" for _ in range(80)]
    outliers = [f"{sentence(draw, draw.integers(12, 19))} {draw.integers(10**6)}" for _ in range(60)]
    outliers[5] = inliers[9].upper() + " !"
    audit = audit_outliers(inliers, outliers)
    assert audit.duplicates == ((5, 9),)
    assert giveaways(audit)["length"] > 0.95
    alike = audit_outliers([f"{text} ?" for text in inliers], inliers[:40])
    assert giveaways(alike)["the word '?'"] == 1
    assert "the word '?' alone tells the outliers with AUROC 100 %" in "; ".join(alike.lines())


def test_rows_are_told_by_one_column_or_its_gaps():
    draw = np.random.default_rng(0)
    inliers, outliers = draw.normal(size=(80, 3)), draw.normal(size=(60, 3))
    outliers[3] = inliers[5]
    outliers[4, 1] = inliers[6, 1] = np.nan
    outliers[4, ::2] = inliers[6, ::2]
    assert audit_outliers(inliers, outliers).duplicates == ((3, 5), (4, 6))
    outliers[:, 2] = np.nan
    audit = audit_outliers(inliers, outliers, ("a", "b", "c"))
    assert audit.giveaways[0].feature == "column c"
    assert audit.giveaways[0].auroc == 1


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match=r"\(5, 3, 8, 8\) and outliers of shape \(5, 1, 8, 8\) cannot be compared"):
        audit_outliers(np.zeros((5, 3, 8, 8)), np.zeros((5, 1, 8, 8)))


def test_pieces_of_a_corpus_are_as_long_as_inliers_and_used_once():
    corpus = [f"{' '.join(f'w{paragraph}_{place}' for place in range(30))}." for paragraph in range(100)]
    lengths = [3, 3, 7]
    pieces = as_long_as(corpus, lengths, 60, torch.Generator().manual_seed(0))
    assert len(pieces) == 60
    assert {len(piece.split()) for piece in pieces} == {3, 7}
    assert max(Counter(piece.split("_")[0] for piece in pieces).values()) == 1
    sentences = ["one two three. four five six seven eight nine ten!", "a b c", "a b c"]
    whole = as_long_as(sentences, lengths, 9, torch.Generator().manual_seed(0))
    assert sorted(whole) == ["a b c", "four five six seven eight nine ten!", "one two three."]
    joined = as_long_as(["a b", "c d", "e f"], [5], 9, torch.Generator().manual_seed(0))
    assert [len(text.split()) for text in joined] == [5]


def write_folder(path, images, classes):
    for number, (image, name) in enumerate(zip(images, classes, strict=True)):
        (path / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(path / name / f"{number:03d}.png")


def problem_at(path, **asked):
    inputs = open_inputs(path, labelled=True, **asked)
    inliers = inputs.gather()
    return Problem(inputs, inliers.x, tuple(sorted(set(inliers.y))))


@pytest.fixture
def mine(tmp_path):
    write_folder(tmp_path / "mine", blurred(40), ["cat", "frog"] * 20)
    return tmp_path / "mine"


def never():
    raise AssertionError("the store was opened")


def test_inliers_and_their_classes_are_left_out(mine, tmp_path):
    others = blurred(60, seed=1)
    others[1] = blurred(40)[10]
    write_folder(tmp_path / "others", others, ["tree", "tree", "bullfrog", "sky"] * 15)
    chosen = select(problem_at(mine), str(tmp_path / "others"), never, 100, 0)
    assert chosen.shown.shared == ["bullfrog"]
    assert (chosen.shown.num_shared, len(chosen.twice), chosen.originals, len(chosen.shown)) == (15, 1, [5], 44)
    assert set(chosen.shown.classes) == {"tree", "sky"}
    fewer = select(problem_at(mine), str(tmp_path / "others"), never, 10, 0, without=["sky"])
    assert set(fewer.shown.classes) == {"tree"}
    assert len(fewer.shown) == 10
    assert fewer.shown.shared == ["bullfrog", "sky"]


def write_set(store, name, images):
    table = pa.table(
        {"image": image_column(to_png(image.transpose(1, 2, 0)) for image in images), "label": [0] * len(images)}
    )
    store.write(name, "train", [table], "a test")


def test_colour_images_are_proposed_before_grey_digits_and_ones_own(mine, tmp_path):
    store = Store(tmp_path / "store")
    write_set(store, "mnist", blurred(60, 28, seed=2)[:, :1])
    write_set(store, "tiny_imagenet32", blurred(60, seed=3))
    write_set(store, "cifar10", np.concatenate([blurred(40), blurred(20, seed=4)]))
    problem = problem_at(mine)
    assert candidates(problem, store) == ["mnist", "cifar10", "tiny_imagenet32", "smooth", "patches"]
    found = [select(problem, name, lambda: store, 60, 0) for name in candidates(problem, store)]
    by_name = {chosen.shown.source: chosen for chosen in found}
    assert len(by_name["cifar10"].twice) == 40
    assert propose(found) == ["tiny_imagenet32", "patches"]
    assert propose(found[3:]) == ["smooth", "patches"]


def outcome(*command):
    printed = []
    code, errors = called("outliers", *command, printed=printed)
    return code, errors, "".join(printed)


def test_a_folder_is_written_that_fit_takes(mine, tmp_path):
    write_folder(tmp_path / "others", blurred(30, seed=1), ["tree", "frog"] * 15)
    out, given = tmp_path / "shown", tmp_path / "others"
    code, errors, printed = outcome(mine, "--from", given, "--from", "patches", "-o", out)
    assert (code, errors) == (0, "")
    assert "frog" in printed
    files = sorted(out.rglob("*.png"))
    assert len(files) == 15 + 40
    originals = {file.read_bytes() for file in (given / "tree").iterdir()}
    assert {file.read_bytes() for file in (out / "others").iterdir()} == originals
    page = (tmp_path / "shown.html").read_text("utf-8")
    assert page.count("<img") == 36 + 15 + 36
    assert not re.search(r'(src|href)="(?!data:)', page)  # it needs nothing beside it
    printed = []
    fit = ("fit", mine, "--outliers", out, "--epochs", 1, "--coverage", 0.8, "--method", "map+nc")
    assert called(*fit, "-o", tmp_path / "m", printed=printed)[0] == 0
    assert f"outliers  49: images of {out}" in printed[0]


def test_nothing_is_replaced(mine, tmp_path):
    write_folder(tmp_path / "others", blurred(30, seed=1), ["tree"] * 30)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    (tmp_path / "page.html").write_text("mine")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    given = ("--from", tmp_path / "others")
    for out, reason in (
        ("taken", "is there already; name a new place"),
        ("page", "page.html is there already"),
        ("mine/others", "lies in .*mine, which is read"),
        ("others/new", "lies in .*others, which is read"),
        ("nowhere/new", "does not exist; create it first"),
        ("new.txt", "images are written to a folder"),
    ):
        code, errors, printed = outcome(mine, *given, "-o", tmp_path / out)
        assert (code, printed) == (2, ""), out
        assert re.search(reason, errors), errors
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_nothing_half_written_stays(suffix, tmp_path, monkeypatch):
    """On a full disk, or when the command is stopped."""
    from demur.classifier import proposing
    from demur.cli import outliers as command

    def stops(path, suffix, pools):
        if not suffix:
            path.mkdir()
            path = path / "00000.png"
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(proposing, "write_inputs", stops)
    with pytest.raises(OSError, match="No space left"):
        command._write(tmp_path / f"shown{suffix}", [])
    assert not list(tmp_path.iterdir())


def test_a_source_of_ones_own_classes_alone_has_nothing_to_show(mine, tmp_path):
    code, errors, printed = outcome(mine, "--from", mine, "--without", "cat", "-o", tmp_path / "new")
    assert (code, errors) == (2, f"demur: nothing of {mine} is left to show; name another source\n")
    assert " 0 " in printed
    code, errors, _ = outcome(mine, "--from", mine, "--without", "zebra")
    assert (code, "class 'zebra' is in none of the sources; leave it out" in errors) == (2, True)


def test_what_is_no_source_is_refused(mine, tmp_path):
    for source, reason in (
        ("nothing/here", "nothing/here does not exist"),
        ("patchs", "did you mean 'patches'"),
        ("smooth+patches", "is several; name each with a --from of its own"),
        ("spectrum_matched", "give NAME_spectrum_matched"),
        (mine / "cat" / "nothing.png", "does not exist"),
    ):
        code, errors, _ = outcome(mine, "--from", source, "--data", tmp_path)
        assert code == 2
        assert reason in errors
        assert errors.count("\n") == 1


def test_texts_are_written_a_line_each_and_tables_with_their_columns(tmp_path):
    draw = np.random.default_rng(0)
    texts = [{"text": sentence(draw, 6), "label": "ab"[number % 2]} for number in range(30)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    (tmp_path / "corpus.txt").write_text("".join(f"n{number} {sentence(draw, 20)}.\n" for number in range(50)))
    out = tmp_path / "shown.txt"
    assert outcome(tmp_path / "mine.jsonl", "--from", tmp_path / "corpus.txt", "-o", out)[:2] == (0, "")
    assert [len(line.split()) for line in out.read_text().splitlines()] == [6] * 50
    header, *rows = [
        "a,kind,label",
        *(f"{number}.5,{'red' if number % 3 else 'blue'},{number % 2}" for number in range(30)),
    ]
    (tmp_path / "mine.csv").write_text("\n".join([header, *rows]) + "\n")
    out = tmp_path / "rows.csv"
    assert outcome(tmp_path / "mine.csv", "--from", "columns", "-o", out)[:2] == (0, "")
    lines = out.read_text().splitlines()
    assert lines[0] == '"a","kind"'
    cells = {line.replace('"', "") for line in lines[1:]}
    assert cells.isdisjoint(row.rsplit(",", 1)[0] for row in rows)  # a row that came out as it was is an inlier
    assert {cell.split(",")[0] for cell in cells} <= {row.split(",")[0] for row in rows}
    code, errors, _ = outcome(tmp_path / "mine.csv", "--from", "box")
    assert code == 2
    assert "demur fit --synthetic box" in errors


def test_without_a_store_synthetic_ones_are_proposed(mine, tmp_path):
    code, _, printed = outcome(mine, "--data", tmp_path)
    assert code == 0
    assert "proposed: smooth and patches" in printed
    assert "--from smooth --from patches -o FOLDER" in printed
