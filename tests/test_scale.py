"""Prediction in parts: every input once, whatever is cut, stopped or stored elsewhere; equal to one csv."""

import json
import logging
import os
import shutil
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from demur.classifier import Classifier
from demur.scale import answering, fragments
from demur.scale.answering import Job, Outcome, attempt, predict_parts
from demur.scale.fragments import Fragment, list_inputs
from demur.scale.parts import MANIFEST, SCHEMA
from demur.scale.places import locate
from experiments.fuzz import called
from tests.serving import images, png, save_models, table, texts


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"))


def write_inputs(kind: str, folder: Path) -> Path:
    """50 inputs in several files, below folders; two images are damaged."""
    (folder / "more").mkdir(parents=True)
    if kind == "image":
        for number, image in enumerate(images(50)[0]):
            content = b"no image" if number in (7, 33) else png(image[0])
            (folder / ("more" if number % 3 else ".") / f"{number:03}.png").write_bytes(content)
    elif kind == "table":
        rows, _ = table(50)
        rows[:20].to_csv(folder / "first.csv", index=False)
        rows[20:].to_parquet(folder / "more" / "second.parquet", row_group_size=7)
    else:
        given, _ = texts(50)
        (folder / "first.txt").write_text("\n".join(given[:20]))
        pq.write_table(pa.table({"text": given[20:]}), folder / "more" / "second.parquet", row_group_size=7)
    (folder / "notes.md").write_text("not an input")
    return folder


def frame(folder: Path) -> pd.DataFrame:
    """All parts, as any reader of parquet reads such a folder."""
    return pq.read_table(folder).to_pandas()


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of a few inputs."""
    monkeypatch.setattr(fragments, "IMAGES_EACH", 8)
    monkeypatch.setattr(fragments, "ROWS_EACH", 10)
    monkeypatch.setattr(fragments, "LARGE", 1)


@pytest.mark.parametrize("kind", ["table", "image", "text"])
def test_parts_are_the_csv_row_by_row(kind: str, models: dict[str, Path], tmp_path: Path, cut_small: None) -> None:
    inputs = write_inputs(kind, tmp_path / "inputs")
    assert called("predict", models[kind], inputs, "-o", tmp_path / "one.csv")[0] == 0
    printed: list[str] = []
    assert called("predict", models[kind], inputs, "-o", tmp_path / "parts.parquet", printed=printed)[0] == 0
    one = pd.read_csv(tmp_path / "one.csv", dtype={"input": str}, keep_default_na=False, na_values=[""])
    parts = frame(tmp_path / "parts.parquet")
    assert parts["input"].is_unique
    assert len(parts) == 50
    assert len(list((tmp_path / "parts.parquet").glob("part-*.parquet"))) > 2
    assert f"{len(parts)} inputs answered" in printed[0]
    for name in ("input", "decision", "label"):
        assert parts[name].tolist() == one[name].where(one[name].notna(), None).tolist()
    for name in ("probability", "outlier_score", "p_value"):
        np.testing.assert_allclose(parts[name], one[name], rtol=1e-4, atol=1e-5)
    assert (parts["decision"] == "invalid").sum() == (2 if kind == "image" else 0)


def test_large_parquet_files_are_cut_where_row_groups_begin(
    models: dict[str, Path], tmp_path: Path, cut_small: None
) -> None:
    rows, _ = table(50)
    rows.to_parquet(tmp_path / "rows.parquet", row_group_size=7)
    cuts = list_inputs(locate(str(tmp_path / "rows.parquet")), "tables").fragments
    assert [(cut.groups, cut.before) for cut in cuts] == [((0, 1), 0), ((2, 3), 14), ((4, 5), 28), ((6, 7), 42)]
    assert called("predict", models["table"], tmp_path / "rows.parquet", "-o", tmp_path / "out.parquet")[0] == 0
    assert frame(tmp_path / "out.parquet")["input"].tolist() == [str(row) for row in range(1, 51)]


def run(model: Path, inputs: Path, out: Path, engine: Any = None, **options: Any) -> answering.Summary:
    classifier = Classifier.load(model, device="cpu")
    chosen = engine or answering.on_this_machine(classifier)
    kind = classifier.preprocessing_.kind
    return predict_parts(locate(str(inputs)), locate(str(out)), kind, "hash", chosen, **options)


def test_a_run_that_was_stopped_goes_on_and_answers_nothing_twice(
    models: dict[str, Path], tmp_path: Path, cut_small: None
) -> None:
    inputs, out = write_inputs("image", tmp_path / "inputs"), tmp_path / "out"
    classifier = Classifier.load(models["image"], device="cpu")

    def stopped(job: Job, given: Sequence[Fragment]) -> Iterator[Outcome]:
        for fragment in given[:3]:
            yield attempt(classifier, job, fragment)
        (Path(job.to.path) / f"_unfinished-{'0' * 32}").write_bytes(b"half a part")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(models["image"], inputs, out, stopped)
    times = {part.name: part.stat().st_mtime_ns for part in out.glob("part-*")}
    assert len(times) == 3
    done = run(models["image"], inputs, out)
    assert (done.parts, done.kept, done.inputs, done.invalid) == (
        7,
        3,
        26,
        0,
    )
    assert times.items() <= {part.name: part.stat().st_mtime_ns for part in out.glob("part-*")}.items()
    assert not list(out.glob("_unfinished*"))
    run(models["image"], inputs, tmp_path / "whole")
    pd.testing.assert_frame_equal(frame(out), frame(tmp_path / "whole"))
    assert run(models["image"], inputs, out).inputs == 0


def test_a_run_whose_output_another_takes_adds_nothing_to_it(
    models: dict[str, Path], tmp_path: Path, cut_small: None
) -> None:
    """With --overwrite, by another model or of other inputs: else the parts would be of both."""
    inputs, other = write_inputs("image", tmp_path / "inputs"), write_inputs("image", tmp_path / "other")
    (other / "000.png").write_bytes(png(images(2, seed=5)[0][1, 0]))
    out, classifier = tmp_path / "out", Classifier.load(models["image"], device="cpu")

    def overtaken(job: Job, given: Sequence[Fragment]) -> Iterator[Outcome]:
        yield attempt(classifier, job, given[0])
        run(models["image"], other, out, overwrite=True)
        for fragment in given[1:]:
            yield attempt(classifier, job, fragment)

    with pytest.raises(ValueError, match="was taken by another run"):
        run(models["image"], inputs, out, overtaken)
    run(models["image"], other, tmp_path / "whole")
    pd.testing.assert_frame_equal(frame(out), frame(tmp_path / "whole"))
    assert run(models["image"], other, out).inputs == 0


def test_inputs_that_change_meanwhile_are_told(models: dict[str, Path], tmp_path: Path, cut_small: None) -> None:
    inputs, classifier = write_inputs("image", tmp_path / "inputs"), Classifier.load(models["image"], device="cpu")

    def meanwhile(change: Any) -> Any:
        def engine(job: Job, given: Sequence[Fragment]) -> Iterator[Outcome]:
            for fragment in given:
                yield attempt(classifier, job, fragment)
            change()

        return engine

    later = inputs / "later.png"
    for number, (change, told) in enumerate(
        [
            (lambda: None, False),
            (lambda: later.write_bytes(b""), True),
            (later.unlink, True),
            (lambda: inputs.rename(tmp_path / "gone"), True),
        ]
    ):
        assert run(models["image"], inputs, tmp_path / f"out{number}", meanwhile(change)).changed == told


def test_a_model_that_is_replaced_while_it_is_read_is_refused(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the answers would be kept as those of another."""
    inputs, model = write_inputs("table", tmp_path / "inputs"), tmp_path / "table.demur"
    shutil.copy(models["table"], model)
    load = Classifier.load

    def overtaken(path: Path, **options: Any) -> Classifier:
        loaded = load(path, **options)
        shutil.copy(models["image"], path)
        return loaded

    monkeypatch.setattr(Classifier, "load", overtaken)
    code, said = called("predict", model, inputs, "-o", tmp_path / "out.parquet")
    assert (code, "was replaced while it was read" in said) == (2, True)
    assert not (tmp_path / "out.parquet").exists()


def test_a_link_in_a_url_is_followed_as_in_a_path(models: dict[str, Path], tmp_path: Path) -> None:
    """Answers must not come to lie among the inputs."""
    inputs = write_inputs("table", tmp_path / "inputs")
    (tmp_path / "link").symlink_to(inputs)
    with pytest.raises(ValueError, match="is where the inputs are"):
        predict_parts(
            locate(f"file://{tmp_path}/link"),
            locate(f"file://{inputs}/out"),
            "tables",
            "hash",
            answering.on_this_machine(Classifier.load(models["table"], device="cpu")),
        )
    assert not (inputs / "out").exists()


def test_what_is_there_of_other_inputs_or_somebody_else_stays(models: dict[str, Path], tmp_path: Path) -> None:
    inputs, out = write_inputs("image", tmp_path / "inputs"), tmp_path / "out.parquet"
    run(models["image"], inputs, out)
    before = frame(out)
    (inputs / "000.png").write_bytes(png(images(2, seed=5)[0][1, 0]))
    with pytest.raises(ValueError, match="has answers to other inputs"):
        run(models["image"], inputs, out)
    pd.testing.assert_frame_equal(frame(out), before)
    run(models["image"], inputs, out, overwrite=True)
    assert not frame(out).equals(before)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"holds something else, such as thesis\.txt"):
            run(models["image"], inputs, tmp_path / "else", overwrite=overwrite)
    with pytest.raises(ValueError, match="is where the inputs are"):
        run(models["image"], inputs, inputs / "out")


def test_one_file_that_cannot_be_read_does_not_hold_up_the_others(models: dict[str, Path], tmp_path: Path) -> None:
    inputs, out = write_inputs("table", tmp_path / "inputs"), tmp_path / "out"
    good = (inputs / "first.csv").read_bytes()
    (inputs / "first.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"first\.csv has no column 'a'.*the same command goes on"):
        run(models["table"], inputs, out)
    assert len(frame(out)) == 30
    (inputs / "first.csv").write_bytes(good)
    with pytest.raises(ValueError, match="has answers to other inputs"):  # the file is another now
        run(models["table"], inputs, out)


def test_strict_stops_at_the_first_input_that_cannot_be_read(models: dict[str, Path], tmp_path: Path) -> None:
    inputs = write_inputs("image", tmp_path / "inputs")
    with pytest.raises(ValueError, match=r"033\.png|007\.png"):
        run(models["image"], inputs, tmp_path / "out", strict=True)


def test_parts_that_workers_wrote_elsewhere_are_missed(models: dict[str, Path], tmp_path: Path) -> None:
    inputs = write_inputs("image", tmp_path / "inputs")
    with pytest.raises(ValueError, match=r"1 of 1 parts are not in .*give a folder that all of them share"):
        run(models["image"], inputs, tmp_path / "out", lambda job, given: [Outcome(50)])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket of moto's S3, with a place for `name` in it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    reset = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()  # what an earlier server of this process held
    url = f"s3://bucket/{{name}}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    fs.FileSystem.from_uri(f"{url.format(name='')}&allow_bucket_creation=true")[0].create_dir("bucket")
    yield url
    server.stop()


@pytest.mark.parametrize("kind", ["table", "image"])
def test_s3_to_s3(kind: str, bucket: str, models: dict[str, Path], tmp_path: Path, cut_small: None) -> None:
    inputs = write_inputs(kind, tmp_path / "inputs")
    source, to = locate(bucket.format(name="inputs")), bucket.format(name="answers")
    fs.copy_files(str(inputs), source.path, destination_filesystem=source.files)
    printed: list[str] = []
    code, said = called("predict", models[kind], bucket.format(name="inputs"), "-o", to, printed=printed)
    assert code == 0, said
    assert printed[-1].startswith("wrote s3://bucket/answers: ")
    assert called("predict", models[kind], inputs, "-o", tmp_path / "here.parquet")[0] == 0
    stored = locate(to)
    there = pq.read_table(stored.path, filesystem=stored.files).to_pandas()
    pd.testing.assert_frame_equal(there, frame(tmp_path / "here.parquet"))
    names = {file.base_name for file in stored.files.get_file_info(fs.FileSelector(stored.path))}
    assert not [name for name in names if name.startswith("_") and name != MANIFEST]
    assert called("predict", models[kind], bucket.format(name="inputs"), "-o", to, printed=printed)[0] == 0
    assert "; 0 inputs answered" in printed[-1]
    code, said = called("predict", models[kind], bucket.format(name="nothing"), "-o", to)
    assert (code, "s3://bucket/nothing does not exist" in said) == (2, True)


def test_keys_in_a_url_are_not_told() -> None:
    with pytest.raises(ValueError, match=r"a URL of s3:// cannot be opened") as caught:
        locate("s3://key:very-secret@bucket/x?no_such_option=1")
    assert "very-secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(ValueError, match=r"a URL of ftp:// cannot be opened"):
        locate("ftp://host/x")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--engine", "spark", "-o", "x.parquet"), "unknown engine 'spark'"),
        (("--engine", "ray"), "writes a folder of parquet parts"),
        (("--engine", "ray", "-o", "x.csv"), "writes a folder of parquet parts"),
        (("--address", "auto", "-o", "x.parquet"), "add --engine ray"),
    ],
)
def test_engines_are_checked_first(options: tuple[str, ...], says: str, tmp_path: Path) -> None:
    code, said = called("predict", tmp_path / "no.demur", tmp_path, *options)
    assert code == 2
    assert says in said


def test_the_manifest_says_what_was_answered_by_what(models: dict[str, Path], tmp_path: Path) -> None:
    run(models["image"], write_inputs("image", tmp_path / "inputs"), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["model"] == "hash"
    assert manifest["parts"] == 1
    assert pq.read_schema(tmp_path / "out" / "part-000000.parquet").equals(SCHEMA)


def test_a_manifest_of_somebody_else_is_not_replaced(models: dict[str, Path], tmp_path: Path) -> None:
    inputs, out = write_inputs("table", tmp_path / "inputs"), tmp_path / "out.parquet"
    out.mkdir()
    (out / "part-000000.parquet").write_text("mine")
    for content in ('{"tables": ["mine"]}', "[" * 10**5, "no JSON", ""):
        (out / MANIFEST).write_text(content)
        for overwrite in (False, True):
            with pytest.raises(ValueError, match="holds something else"):
                run(models["table"], inputs, out, overwrite=overwrite)
        assert (out / "part-000000.parquet").read_text() == "mine"


def test_an_empty_part_is_none_and_neither_is_a_folder(models: dict[str, Path], tmp_path: Path) -> None:
    inputs, out = write_inputs("table", tmp_path / "inputs"), tmp_path / "out"
    run(models["table"], inputs, out)
    whole = frame(out)
    (out / "part-000000.parquet").write_bytes(b"")
    assert run(models["table"], inputs, out).kept == 1
    pd.testing.assert_frame_equal(frame(out), whole)
    (out / "part-000000.parquet").unlink()
    (out / "part-000000.parquet").mkdir()
    with pytest.raises(ValueError, match=r"part-000000\.parquet"):
        run(models["table"], inputs, out)


def test_two_runs_at_once_do_not_fail_each_other(models: dict[str, Path], tmp_path: Path) -> None:
    inputs, out = write_inputs("table", tmp_path / "inputs"), tmp_path / "out"
    classifier = Classifier.load(models["table"], device="cpu")

    def overtaken(job: Job, given: Sequence[Fragment]) -> Iterator[Outcome]:
        for fragment in given:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(answering, "read_fragment", reading_late)
                yield attempt(classifier, job, fragment)

    def reading_late(*given: Any) -> Iterator[Any]:
        yield from fragments.read_fragment(*given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(answering, "read_fragment", fragments.read_fragment)
            run(models["table"], inputs, out)  # which removes what is unfinished

    assert run(models["table"], inputs, out, overtaken).parts == 2
    assert len(frame(out)) == 50


def test_files_below_a_folder_are_not_left_out_in_silence(models: dict[str, Path], tmp_path: Path) -> None:
    inputs, out = write_inputs("table", tmp_path / "inputs"), tmp_path / "out"
    (inputs / "gone.csv").symlink_to(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"gone\.csv.*; the others are in"):
        run(models["table"], inputs, out)
    (inputs / "gone.csv").rename(inputs / "gone.md")
    with pytest.raises(ValueError, match=r"gone\.md is a link to nothing; mend or remove it"):
        run(models["table"], inputs, out)
    (inputs / "gone.md").unlink()
    (inputs / "again").symlink_to(inputs)
    with pytest.raises(ValueError, match=r"again is a link to a folder that it lies in; remove it"):
        run(models["table"], inputs, out)
    (inputs / "again").unlink()
    name = os.fsencode(inputs) + b"/\xff.csv"
    with open(name, "wb"):
        pass
    with pytest.raises(ValueError, match=r"xff\.csv has a name that is no UTF-8; rename it"):
        run(models["table"], inputs, out)
