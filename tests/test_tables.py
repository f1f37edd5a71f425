"""Tables as they come: what becomes of numbers, dates, categories and gaps, and what an unseen category does."""

import json
import re
import tracemalloc
import warnings
from dataclasses import asdict, replace
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler

import demur
from demur.classifier import kinds, tables
from demur.classifier.decision import calibrate_decision
from demur.classifier.held_out import split_rows
from demur.classifier.readers import open_inputs
from demur.classifier.tables import MISSING, RARE, UNSEEN, Category, Number
from demur.outliers.synthetic import independent_columns, rank, unseen_cell, widened_box
from demur.outliers.values import build, parse
from demur.provenance import digest
from experiments.fuzz import called
from tests.test_model_file import rewritten

RNG = np.random.default_rng(0)
COUNT = 400


def people(count=COUNT, seed=0):
    """A table of everything: gaps, categories, truth values, dates, and names that are all different."""
    rng = np.random.default_rng(seed)
    group = np.arange(count) % 2
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(count) < 0.2, np.nan, 30 + 25 * group + rng.normal(0, 5, count)),
            "town": np.where(group, rng.choice(["Ulm", "Bonn"], count), rng.choice(["Kiel", "Bonn", "Hof"], count)),
            "member": rng.random(count) < 0.2 + 0.6 * group,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, count), unit="D"),
            "name": [f"p{number}" for number in rng.permutation(10**6)[:count]],
            "pay": rng.lognormal(3, 1, count),
        }
    )
    frame.loc[rng.random(count) < 0.1, "town"] = None
    return frame, np.array(["young", "old"])[group]


@pytest.fixture(scope="module")
def fitted():
    frame, y = people()
    return demur.Classifier("map+nc", epochs=60, device="cpu").fit(frame, y)


def features_of(frame, other=None):
    return kinds.MixedTables.of(frame).read(frame if other is None else other).numpy()


def test_numbers_and_categories_are_as_scikit_learn_has_them():
    frame = people()[0][["age", "pay", "town", "member"]]
    ours = features_of(frame)
    scaled = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["age", "pay"]),
        (OneHotEncoder(), ["town", "member"]),
        sparse_threshold=0,
    )
    theirs = scaled.fit_transform(frame.astype({"town": object, "member": str}).fillna({"town": "~"}))
    age = frame["age"]
    np.testing.assert_allclose(ours[:, 0], (age.fillna(age.median()) - age.mean()) / age.std(ddof=0), rtol=1e-5)
    np.testing.assert_array_equal(ours[:, 1], age.isna())
    np.testing.assert_allclose(ours[:, 3], theirs[:, 1], rtol=1e-4, atol=1e-6)
    assert not ours[:, 4].any()
    ranks = QuantileTransformer(n_quantiles=17, subsample=None).fit_transform(frame[["age", "pay"]])
    for place, there in ((2, age.notna()), (5, np.ones(COUNT, bool))):
        np.testing.assert_allclose(ours[there, place], 12**0.5 * (ranks[there, place // 3] - 0.5), atol=1e-5)
    town, member = ours[:, 6:12], ours[:, 12:15]
    column = kinds.MixedTables.of(frame).columns[2]
    assert set(column.values) == {"Bonn", "Ulm", "Kiel", "Hof"}
    assert column.entries[4:] == (MISSING, UNSEEN)
    order = [sorted([*column.values, "~"]).index(name) for name in (*column.values, "~")]
    np.testing.assert_array_equal(town[:, :5], theirs[:, 2:7][:, order])
    assert not town[:, 5].any()
    assert sorted(map(tuple, member[:, :2].T)) == sorted(map(tuple, theirs[:, 7:].T))


def test_a_gap_that_calibrates_is_also_trained_with():
    """Two rows of 200 have a gap: whatever the seed, one is trained with, so that it is no outlier's mark."""
    gaps = torch.zeros(200, 2, dtype=torch.bool)
    gaps[[7, 150], 0] = True
    labels = torch.arange(200) % 2
    both = 0
    for seed in range(100):
        train, _, calibration = split_rows(labels, 0.1, 0.95, seed, gaps=gaps)
        assert gaps[train, 0].any()
        without = split_rows(labels, 0.1, 0.95, seed, gaps=torch.zeros_like(gaps))[2]
        assert abs(len(calibration) - len(without)) <= 1
        both += int(gaps[without, 0].sum() == 2)
    assert both > 0  # which is what it is for


def test_rare_categories_share_an_entry_and_the_frequent_are_bounded():
    cells = pd.Series(["a"] * 300 + ["b"] * 4 + ["c"] * 3 + [None] * 2)
    column = Category.of(cells)
    assert (column.entries, column.open) == (("a", RARE, MISSING, UNSEEN), False)
    assert column.encode(pd.Series(["a", "b", "c", None, "d", " a "])).tolist() == [0, 1, 1, 2, 3, 0]
    many = Category.of(pd.Series([f"v{number % 120}" for number in range(1200)]))
    assert len(many.values) == tables.MOST
    assert len(many.rare) == 70
    closed = Category.of(pd.Series(["a", "b"] * 50))
    assert closed.encode(pd.Series([None, "a"])).tolist() == [2, 0]  # a gap, of which training rows had none


def test_one_long_cell_does_not_cost_as_much_as_all_cells_of_its_length():
    cells = pd.Series([f"n{number}" for number in range(2000)] + ["x" * 20_000])
    tracemalloc.start()
    Category.of(cells)
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def test_new_names_are_nothing_unusual_where_most_are_new():
    column = Category.of(people()[0]["name"])
    assert (column.entries, column.open, column.rare) == ((RARE,), True, ())
    assert column.encode(pd.Series(["somebody", None])).tolist() == [0, 0]


@pytest.mark.parametrize(("singles", "is_open"), [(4, False), (5, True)])
def test_a_column_is_open_where_more_than_one_row_in_fifty_has_a_name_of_its_own(singles, is_open):
    cells = pd.Series([f"only{number}" for number in range(singles)] + ["often"] * (200 - singles))
    assert Category.of(cells).open is is_open


def test_a_number_has_its_rank_beside_it_unless_the_column_is_constant_or_the_model_older():
    cells = pd.Series([0.0] * 50 + [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 1000] * 5 + [np.nan])
    (column,) = tables.learn_columns(pd.DataFrame({"c": cells}))
    values = torch.tensor([-5.0, 0.0, 0.5, 9.0, 1000.0, 5000.0, np.nan], dtype=torch.float64)
    ranks = column.features(values)[:, 2]
    half = float(np.sqrt(12) / 2)
    np.testing.assert_allclose(
        ranks[[0, 1, 4, 5]], [-half, -half, half, half]
    )  # beyond the ends it is that of the ends
    assert (ranks[1:5].diff() > 0.05).all()
    assert ranks[6] == column.features(torch.tensor([column.fill], dtype=torch.float64))[0, 2]
    (constant,) = tables.learn_columns(pd.DataFrame({"c": [3.0] * 9}))
    older = replace(column, quantiles=())
    for other in (constant, older):
        assert other.features(values).shape == (7, 2)
        assert other.group.width == 2
    saved = json.loads(json.dumps(asdict(older)))
    del saved["quantiles"]
    assert tables.columns_from_json([saved, asdict(column)]) == (older, column)


def test_a_column_of_gaps_alone_says_nothing_but_that():
    frame = pd.DataFrame({"empty": [np.nan] * 6, "full": np.arange(6.0)})
    np.testing.assert_array_equal(features_of(frame)[:, :2], [[0.0, 1.0]] * 6)
    assert tables.learn_columns(frame)[0] == Number(0.0, 1.0, 0.0, True)


def test_what_lies_far_out_is_brought_in_to_where_float32_keeps_the_rest():
    frame = pd.DataFrame({"a": [-1.0, 1.0]})
    far = features_of(frame, pd.DataFrame({"a": [-1e300, -tables.FARTHEST / 2, 1e300]}))
    np.testing.assert_array_equal(far[:, 0], [-tables.FARTHEST, -tables.FARTHEST / 2, tables.FARTHEST])


def test_rows_in_lists_keep_what_they_are_and_get_the_names_that_fit():
    frame = tables.frame_of([[1, "a"], [2.5, "b"]], ["x", "y"])
    assert frame.to_numpy(object).tolist() == [[1, "a"], [2.5, "b"]]
    assert list(frame.columns) == ["x", "y"]
    assert list(tables.frame_of([[1, "a"]], ["x"]).columns) == [0, 1]
    numbers = tables.frame_of(np.array([[1.5, np.nan]]), ["x", "y"])
    assert list(numbers.columns) == ["x", "y"]
    assert [kind.kind for kind in numbers.dtypes] == ["f", "f"]


def test_dates_are_days_in_any_form():
    days = pd.Series(["1970-01-02", "1970-01-03T12:00:00", None] * 10)
    for cells in (days, pd.to_datetime(days, format="ISO8601"), pd.to_datetime(days, format="ISO8601", utc=True)):
        (column,) = tables.learn_columns(pd.DataFrame({"when": cells}))
        assert isinstance(column, Number)
        assert column.date
        np.testing.assert_array_equal(column.encode(cells)[:3], [1, 2.5, np.nan])


def test_truth_values_and_whole_numbers_are_one_category_however_they_are_written():
    for cells in (pd.Series([True, False] * 5), pd.Series(["True", "false"] * 5), pd.Series(["TRUE", "False"] * 5)):
        assert set(Category.of(cells).values) == {"true", "false"}
    codes = Category.of(pd.Series([1, 2] * 5).astype("category"))
    assert codes.encode(pd.Series([1.0, 2.0, np.nan])).tolist()[:2] == codes.encode(pd.Series(["1", "2"])).tolist()


def test_truth_values_are_the_same_as_bits_where_a_column_has_no_other_values():
    column = Category.of(pd.Series([True, False, True] * 5))
    for cells in ([1, 0], ["1", "0"], [1.0, 0.0], ["True", "FALSE"]):
        assert column.encode(pd.Series(cells)).tolist() == [0, 1]
    assert column.encode(pd.Series(["2", "yes"])).tolist() == [2, 2]
    assert Category.of(pd.Series(["true", "false", "maybe"] * 5)).encode(pd.Series(["1"])).tolist() == [3]


def test_dates_of_any_year_are_days():
    days = ["0001-01-01", "9999-12-31", "1970-01-02"] * 4
    for cells in (pd.Series(days), pd.Series(days).astype("datetime64[s]"), pa.array(map(date.fromisoformat, days))):
        frame = tables.frame_of(pa.table({"when": cells}) if isinstance(cells, pa.Array) else cells.to_frame("when"))
        (column,) = tables.learn_columns(frame)
        assert column.encode(frame["when"])[:3].tolist() == [-719162, 2932896, 1]


def test_dates_that_are_categories_have_one_name_however_they_are_stored():
    column = Category.of(pd.Series(pd.to_datetime(["2020-01-01", "2020-02-01"] * 5)).astype("category"))
    assert set(column.values) == {"2020-01-01", "2020-02-01"}
    for cells in (["2020-02-01"], [date(2020, 2, 1)], [pd.Timestamp("2020-02-01")]):
        assert column.encode(pd.Series(cells, dtype=object)).tolist() == [column.values.index("2020-02-01")]
    noon = Category.of(pd.Series([pd.Timestamp("2020-01-01 12:00")] * 5).astype("category"))
    assert noon.values == ("2020-01-01 12:00:00",)


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        ([True, "x", False, "y"] * 5, ("false", "true", "x", "y")),  # truth values are no numbers among words
        (pa.array(["x", "y"] * 5).dictionary_encode(), ("x", "y")),
        (pd.array(["x", None] * 5, dtype="string"), ("x",)),
        (pd.array([True, None] * 5, dtype="boolean"), ("true",)),
        (pd.array([None] * 10, dtype="boolean"), ()),
        ([None] * 10, ()),
    ],
)
def test_categories_of_every_type(cells, what):
    if isinstance(cells, pa.Array):
        cells = pd.Series(cells, dtype=pd.ArrowDtype(cells.type))
    frame = pd.DataFrame({"c": cells})
    (column,) = tables.learn_columns(frame)
    assert isinstance(column, Category)
    assert column.values == what
    assert (column.encode(frame["c"])[:2] < len(column.entries)).all()


@pytest.mark.parametrize(
    ("cells", "mean"),
    [
        (pd.array([1, None, 3] * 4, dtype="Int64"), 2),
        (pd.array([1.0, None, 3.0] * 4, dtype="Float64"), 2),
        (pd.Series(pa.array([1, None, 3] * 4), dtype=pd.ArrowDtype(pa.int64())), 2),
        (pd.Series([1, pd.NA, 3] * 4, dtype=object), 2),
        (pd.arrays.SparseArray([1.0, np.nan, 3.0] * 4), 2),
        ([True, 1, False, 0] * 3, 0.5),
        ([4.0] * 12, 4),
    ],
)
def test_numbers_of_every_type(cells, mean):
    (column,) = tables.learn_columns(pd.DataFrame({"c": cells}))
    assert isinstance(column, Number)
    assert (column.mean, column.date) == (mean, False)
    assert column.scale > 0


@pytest.mark.parametrize("cell", ["1,5", "1.234,5", "12 %", "$ 12.50", "31.12.2020", "12/31/2020", "10:30"])
def test_names_that_look_like_numbers_or_dates_are_told_of(cell):
    frame = pd.DataFrame({"c": [cell, cell, "x"]})
    with pytest.warns(UserWarning, match=f"column 'c' has cells such as {re.escape(repr(cell))}, which are read as"):
        tables.learn_columns(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables.learn_columns(frame.astype("category"))
        tables.learn_columns(pd.DataFrame({"c": [cell, "x", "A 5", "5 A"]}))


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["1", "2", "three", "4"], "'three' in column 'c', among numbers; write it as a number or leave it empty"),
        (["2020-01-01", "2020-01-02", "soon"], "'soon' in column 'c', among dates"),
        ([1.0, np.inf, 2.0], "an infinite value in column 'c'"),
        ([1e300, -1e308, 1e308], "too large to be standardised"),
        ([1e308, -1e308] * 8, "too large to be standardised"),  # their sum is inf - inf
        ([[1], [2], [3]], "a list in column 'c'; make it numbers, dates, strings or truth values"),
        (pd.to_timedelta([1, 2, 3], unit="D"), "column 'c' of dtype timedelta64"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(cells, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        tables.learn_columns(pd.DataFrame({"c": cells}))


def test_what_cannot_be_read_names_the_row_the_column_and_the_value(fitted):
    frame, _ = people(20, seed=1)
    for column, cell, says in (
        ("age", "twelve", "X has in row 3 'twelve' in column 'age', which is no number; write it as one"),
        ("since", "soon", "X has in row 3 'soon' in column 'since', which is no date"),
        ("pay", np.inf, "X has in row 3 inf in column 'pay', which is no number"),
        ("pay", -(10**400), "X has in row 3 -1000"),
        ("pay", pd.Timestamp("2020-01-01"), "X has in row 3 Timestamp('2020-01-01 00:00:00') in column 'pay', which"),
    ):
        changed = frame.astype({column: object})
        changed.loc[3, column] = cell
        with pytest.raises(ValueError, match=re.escape(says)):
            fitted.predict(changed)
    with pytest.raises(ValueError, match=r"in row 0 .* in column 'pay', which is no number"):
        fitted.predict(frame.assign(pay=frame["since"]))
    with pytest.raises(ValueError, match=r"in row 0 .* in column 'pay', which is no number"):
        fitted.predict(frame.assign(pay=1j))
    with pytest.raises(ValueError, match=r"in row 0 .* in column 'since', which is no date"):
        fitted.predict(frame.assign(since=frame["since"].dt.to_period("D")))
    for other in (frame.drop(columns="age"), frame.assign(more=1), frame[frame.columns[::-1]]):
        with pytest.raises(ValueError, match="feature names"):
            fitted.predict(other)


def test_nothing_of_the_columns_is_learned_from_rows_that_are_held_out(fitted):
    frame, y = people()
    held_out = frame.index[fitted.held_out_]
    frame.loc[held_out, ["age", "pay"]] = 1e5
    frame.loc[held_out, "town"] = "Atlantis"
    again = demur.Classifier("map+nc", epochs=1, device="cpu").fit(frame, y)
    np.testing.assert_array_equal(again.held_out_, fitted.held_out_)
    assert again.preprocessing_ == fitted.preprocessing_


def test_tables_of_numbers_are_as_they_were():
    x, y = RNG.normal(size=(80, 3)), np.arange(80) % 2
    model = demur.Classifier("map+nc", epochs=20, device="cpu").fit(x, y)
    assert isinstance(model.preprocessing_, kinds.Tables)
    assert model.report_["outliers"] == "columns+box"
    with pytest.raises(ValueError, match="in row 0 'x' in column 1, which is no number"):
        model.predict([[1.0, "x", 2.0]])
    with pytest.raises(ValueError, match="a NaN or infinite value in input 0"):
        model.predict([[np.nan, 1.0, 2.0]])
    np.testing.assert_array_equal(model.predict_proba(x[:2].astype(str)), model.predict_proba(x[:2]))


def test_gaps_in_an_array_are_learned():
    x, y = RNG.normal(size=(120, 3)) + 3 * (np.arange(120) % 2)[:, None], np.arange(120) % 2
    x[::7, 1] = np.nan
    model = demur.Classifier("map+nc", epochs=30, device="cpu").fit(x, y)
    assert (model.predict(x) == y).mean() > 0.9
    assert model.preprocessing_.columns[1].fill == pytest.approx(
        np.nanmedian(np.delete(x, model.held_out_, axis=0)[:, 1])
    )


def test_what_was_never_seen_makes_an_input_more_suspicious(fitted):
    frame, y = people(200, seed=2)
    assert (fitted.predict(frame) == y).mean() > 0.9
    assert fitted.report_["outliers"] == "columns+box+unseen"
    before = fitted.outlier_score(frame)
    for column, cell in (("town", "Atlantis"), ("member", "maybe"), ("member", None), ("pay", None)):
        odd = frame.assign(**{column: cell})
        assert (fitted.outlier_score(odd) > before).mean() > 0.97
        assert np.isin(fitted.decide(odd).astype(str), ["old", "young"]).mean() < 0.3
    new_names = fitted.outlier_score(frame.assign(name="somebody"))
    np.testing.assert_allclose(new_names, before)


def test_outliers_of_ones_own_may_have_any_category():
    frame, y = people(120)
    others = people(40, seed=3)[0].assign(town="Atlantis")
    model = demur.Classifier("map+nc", epochs=2, device="cpu").fit(frame, y, others)
    assert model.report_["outliers"] == "40 given+unseen"


# synthetic outliers -------------------------------------------------------------------------------------------------


def test_synthetic_rows_are_rows_of_a_table():
    frame, _ = people()
    preprocessing = kinds.MixedTables.of(frame)
    rows, groups = preprocessing.read(frame), preprocessing.groups
    generator = torch.Generator().manual_seed(0)
    start = 0
    made = {source: source(rows, generator, groups) for source in (independent_columns, widened_box, unseen_cell)}
    for group in groups:
        own = slice(start, start + group.width)
        for one in made.values():
            if group.one_hot:
                assert set(one[:, own].unique().tolist()) <= {0.0, 1.0}
                assert (one[:, own].sum(1) == 1).all()
            else:  # what is missing has the median
                gap = one[:, own][:, 1] == 1
                assert (0.1 < gap.float().mean() < 0.3) if group.unseen is None else gap.float().mean() < 0.4
                assert len(one[:, own][gap, 0].unique()) <= 1
                torch.testing.assert_close(one[:, own][:, 2], rank(one[:, own][:, 0], group.knots))
        columns = made[independent_columns][:, own]
        assert sorted(map(tuple, columns.tolist())) == sorted(map(tuple, rows[:, own].tolist()))
        if group.unseen and group.one_hot:
            assert made[widened_box][:, own][:, -1].mean() == pytest.approx(1 / group.width, abs=0.08)
        start += group.width
    marks = zip(ends(groups), groups, strict=True)  # the entry of an unseen category, and that of a gap
    last = [place - (1 if group.one_hot else 2) for place, group in marks if group.unseen]
    assert (made[unseen_cell][:, last].sum(1) == 1).all()  # one cell a row
    assert (made[unseen_cell][:, last].mean(0) > 0.15).all()  # of any column
    assert ((made[unseen_cell] != rows).sum(1) <= 3).all()
    with pytest.raises(ValueError, match="'unseen' need a table of categories"):
        unseen_cell(rows, generator)


def test_outliers_of_tables_are_told_apart_by_what_they_are():
    frame, _ = people(60)
    preprocessing = kinds.MixedTables.of(frame)
    rows, groups = preprocessing.read(frame), preprocessing.groups
    made = [build(parse(name), "tables", rows, groups=groups) for name in ("columns", "columns", "box", "unseen")]
    first, again, box, unseen = map(digest, made)
    assert first == again
    assert len({first, box, unseen}) == 3


def ends(groups):
    return np.cumsum([group.width for group in groups]).tolist()


# files --------------------------------------------------------------------------------------------------------------


def test_a_frame_a_csv_and_a_parquet_file_are_one_table(tmp_path):
    frame, y = people()
    whole = frame.assign(label=y)
    whole.to_csv(tmp_path / "a.csv", index=False)
    whole.astype({"town": "category"}).to_parquet(tmp_path / "a.parquet")
    expected = kinds.MixedTables.of(frame)
    for name in ("a.csv", "a.parquet"):
        given = open_inputs(tmp_path / name, labelled=True, mixed=None)
        read = given.gather()
        assert (given.kind, given.mixed, given.columns) == ("tables", True, tuple(frame.columns))
        assert read.y == y.tolist()
        assert isinstance(read.x, pa.Table)
        found = kinds.MixedTables.of(read.x)
        assert [type(column) for column in found.columns] == [type(column) for column in expected.columns]
        torch.testing.assert_close(found.read(read.x), expected.read(frame))


@pytest.mark.parametrize(
    ("content", "mixed"), [("a,b\n1,2\n3,4\n", False), ("a,b\n1,\n3,4\n", True), ("a,b\n1,x\n3,y\n", True)]
)
def test_a_table_of_numbers_is_read_as_such(tmp_path, content, mixed):
    (tmp_path / "a.csv").write_text(content)
    given = open_inputs(tmp_path / "a.csv", mixed=None)
    assert given.mixed == mixed
    pd.read_csv(tmp_path / "a.csv").to_parquet(tmp_path / "a.parquet")
    assert open_inputs(tmp_path / "a.parquet", mixed=None).mixed == mixed


def test_bad_parquet_files_are_one_sentence(tmp_path):
    whole = pd.DataFrame({"a": [1.0, 2.0], "b": [[1], [2]], "c": ["x", "y"], "label": ["p", None]})
    whole["t"] = pd.to_timedelta([1, 2], unit="D").astype("timedelta64[us]")
    whole.to_parquet(tmp_path / "a.parquet")
    for columns, options, says in (
        (("a", "b"), {"mixed": None}, "has column 'b' of list<"),
        (("a", "c"), {}, "has column 'c' of "),
        (("a", "d"), {}, "has no column 'd'"),
        (("a",), {"labelled": True}, "no label in row 2"),
        (("a", "t"), {"mixed": None}, "has column 't' of duration[us]; make it numbers, dates, strings or truth"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            open_inputs(tmp_path / "a.parquet", columns=columns, **options).gather()
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        open_inputs(tmp_path / "b.parquet")


def test_whole_numbers_beyond_floats_are_rounded_as_those_of_a_csv_are(tmp_path):
    pq.write_table(pa.table({"id": [2**53 + 1, 2**60], "label": ["a", "b"]}), tmp_path / "ids.parquet")
    given = open_inputs(tmp_path / "ids.parquet", labelled=True).gather()
    assert given.x["id"].to_pylist() == [2.0**53, 2.0**60]


def test_labels_that_are_nan_are_missing_labels(tmp_path):
    pq.write_table(pa.table({"a": [1.0, 2.0], "label": [0.0, float("nan")]}), tmp_path / "nan.parquet")
    with pytest.raises(ValueError, match="has no label in row 2; fill it in, or remove the row"):
        open_inputs(tmp_path / "nan.parquet", labelled=True).gather()


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path):
    pq.write_table(pa.table([[1.0, 2.0], ["x", "y"], ["p", "q"]], names=["a", "a", "label"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="has more than one column 'a'; rename all but one"):
        open_inputs(tmp_path / "a.parquet", labelled=True, mixed=None)


@pytest.mark.parametrize(
    "stored",
    [
        lambda town: town.dictionary_encode(),
        lambda town: town.cast(pa.large_string()),
        lambda town: town.cast(pa.string_view()),
    ],
)
def test_parquet_files_of_every_writer_give_the_same_answers(folder, tmp_path, stored):
    frame, _ = people(40, seed=7)
    table = pa.Table.from_pandas(frame)
    others = {
        "town": stored(table["town"].combine_chunks()),
        "since": table["since"].cast(pa.timestamp("ms", tz="UTC")),
        "member": table["member"].cast(pa.int8()),
        "extra": pa.nulls(40),
    }
    columns = {name: others.get(name, cells) for name, cells in zip(table.column_names, table.columns, strict=True)}
    pq.write_table(pa.table({**dict(reversed(columns.items())), "extra": others["extra"]}), tmp_path / "other.parquet")
    pq.write_table(table, tmp_path / "own.parquet")
    for name in ("own", "other"):
        assert called("predict", folder / "model", tmp_path / f"{name}.parquet", "-o", tmp_path / f"{name}.csv")[0] == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "own.csv"), pd.read_csv(tmp_path / "other.csv"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    frame, y = people()
    frame.assign(label=y).to_csv(place / "train.csv", index=False)
    code, said = called("fit", place / "train.csv", "-o", place / "model", "--quick")
    assert code == 0, said
    return place


def test_commands_take_a_table_as_it_comes(folder, tmp_path):
    frame, y = people(60, seed=4)
    frame.assign(label=y).to_parquet(tmp_path / "test.parquet")
    frame.assign(town="Atlantis").to_csv(tmp_path / "odd.csv", index=False)
    out = tmp_path / "out.csv"
    assert called("predict", folder / "model", tmp_path / "test.parquet", "-o", out) == (0, "")
    answers = pd.read_csv(out)
    assert (answers["label"] == y).mean() > 0.85
    assert ((answers["decision"].isin(["unsure", "unknown"])) == (answers["p_value"] <= 0.05 + 1e-9)).all()
    wrong = frame.astype({"age": object, "pay": object})
    wrong.loc[1, "age"], wrong.loc[4, "pay"] = "twelve", "inf"
    wrong.to_csv(tmp_path / "wrong.csv", index=False)
    code, said = called("predict", folder / "model", tmp_path / "wrong.csv", "-o", out)
    assert code == 0
    assert "2 of 60 inputs are invalid" in said
    assert "wrong.csv has in row 2 'twelve' in column 'age', which is no number" in said
    answers = pd.read_csv(out)
    assert answers.index[answers["decision"] == "invalid"].tolist() == [1, 4]
    arguments = ("evaluate", folder / "model", tmp_path / "test.parquet", "--ood", tmp_path / "odd.csv")
    assert called(*arguments, "--report", tmp_path / "report") == (0, "")
    (tmp_path / "few.csv").write_text("age,label\n1,a\n2,b\n3,a\nfour,b\n")
    code, said = called("fit", tmp_path / "few.csv", "-o", tmp_path / "new")
    assert code == 2
    assert "has 'four' in column 'age', row 4, which is no number; write it as one, leave it empty" in said


def test_a_cell_that_is_no_utf_8_is_invalid_alone(folder, tmp_path):
    text = people(3)[0].to_csv(index=False).replace("Bonn", "Kiel").replace("Kiel", "Ki\xe9l", 1)
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    code, said = called("predict", folder / "model", tmp_path / "a.csv", "-o", tmp_path / "out.csv")
    assert (code, "1 of 3 inputs are invalid" in said) == (0, True)


def test_a_model_of_categories_is_moved_reloaded_and_answers_alike(fitted, tmp_path):
    frame, _ = people(50, seed=5)
    fitted.save(tmp_path / "a.demur")
    (tmp_path / "a.demur").rename(tmp_path / "b.demur")
    again = demur.load_model(tmp_path / "b.demur")
    assert again.preprocessing_ == fitted.preprocessing_
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns[0].update(scale=0.0),
        lambda columns: columns[0].update(mean="x"),
        lambda columns: columns[0].update(quantiles=[1.0, 2.0]),
        lambda columns: columns[0]["quantiles"].reverse(),
        lambda columns: columns[0].update(quantiles="x" * 17),
        lambda columns: columns[0].update(quantiles=[float("nan")] * 17),
        lambda columns: columns[1].update(values=[f"{number}" for number in range(1000)]),
        lambda columns: columns[1].update(values=[1, 2, 3, 4]),
        lambda columns: columns[1]["values"].append("one more"),
        lambda columns: columns[1].update(gaps="yes"),
        lambda columns: columns.pop(),
        lambda columns: columns[1].clear(),
    ],
)
def test_columns_that_were_tampered_with_are_refused(fitted, tmp_path, change):
    fitted.save(tmp_path / "model")
    rewritten(tmp_path / "model", lambda saved: change(saved["preprocessing"]["columns"]))
    with pytest.raises(ValueError, match=r"save it anew|damaged|pass the one"):
        demur.load_model(tmp_path / "model")


def test_a_graph_takes_codes_that_its_metadata_explains(fitted, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from demur.classifier.export import export_onnx

    export_onnx(fitted, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    frame, _ = people(40, seed=6)
    frame.loc[3, "town"] = "Atlantis"
    about = json.loads(session.get_modelmeta().custom_metadata_map["demur"])
    codes = np.array(
        [[code_of(column, row[column["name"]]) for column in about["columns"]] for _, row in frame.iterrows()]
    )
    np.testing.assert_array_equal(codes, fitted.preprocessing_.codes(frame))
    found = session.run(["probabilities", "outlier_score", "decision"], {"input": codes})
    np.testing.assert_allclose(found[0], fitted.predict_proba(frame), atol=1e-4)
    np.testing.assert_allclose(found[1], fitted.outlier_score(frame), atol=1e-4)
    assert found[2].tolist() == fitted.decide(frame).tolist()


def test_rows_of_few_categories_are_answered_alike_alone_and_together():
    """Many rows are equal, and so are the scores that set the threshold, but for the last digits of a float."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.choice([*"uvw"], 300, p=[0.5, 0.3, 0.2]), "b": rng.choice([*"xyz"], 300)})
    y = np.where((frame["a"] == "u") ^ (rng.random(300) < 0.1), "p", "q")
    for seed in range(3):
        model = demur.Classifier("map+nc", epochs=15, coverage=0.9, validation=0.4, random_state=seed).fit(frame, y)
        rows = frame.drop_duplicates().index
        for threshold in np.unique(model.outlier_score(frame)):  # whichever of them an inlier had set
            prediction = model.prediction(frame.loc[frame.index[model.outlier_score(frame) == threshold]])
            model.decision_ = calibrate_decision(prediction, "none_share", 0.9)
            together = model.decide(frame.loc[rows])
            assert [model.decide(frame.loc[[row]])[0] for row in rows] == together.tolist()


def code_of(column, cell):
    """By the words of export.py alone."""
    if "entries" not in column:
        return (cell - pd.Timestamp(0)) / pd.Timedelta(days=1) if column["date"] else float(cell)
    entries = column["entries"]
    if pd.isna(cell) and MISSING in entries:
        return entries.index(MISSING)
    name = str(cell).lower() if isinstance(cell, bool | np.bool_) else cell
    if name in entries:
        return entries.index(name)
    return entries.index(RARE if column["open"] or name in column["rare"] else UNSEEN)
