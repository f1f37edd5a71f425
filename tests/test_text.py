"""Sentences as numbers: normalised words, a vocabulary of the training set alone, and padding that changes nothing."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from demur.data.store import MissingData, Store
from demur.networks import gru
from demur.tasks.text import (
    PADDING,
    UNKNOWN,
    WIDTH,
    Vocabulary,
    cut_pieces,
    normalise,
    sst,
    training_and_validation,
    trec,
)

REVIEWS = ["A warm film , a good film", "A dull film , a bad film", "Good , good !", "Bad : dull"]


def add(store: Store, name: str, split: str, texts: list[str], labels: list[int] | None = None) -> None:
    columns = {"text": texts} if labels is None else {"text": texts, "label": labels}
    store.write(name, split, [pa.table(columns)], "a test")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    add(store, "sst", "train", REVIEWS, [1, 0, 1, 0])
    add(store, "sst", "validation", ["warm", "dull"], [1, 0])
    add(store, "sst", "test", ["a warm sunset sunset", "..."], [1, 0])
    questions = [f"What is {i} and who was {i} ?" for i in range(40)]
    add(store, "trec", "train", questions, list(range(40)))
    add(store, "trec", "test", ["Who was he ?"], [28])
    add(store, "wikitext2", "train", ["The <unk> of a Film was good . It had a warm @-@ hearted good end ."] * 5)
    add(store, "brown", "train", ["A Film of good and bad dogs ."] * 3)
    add(store, "snli", "test", ["a film is bad", "a dog"])
    add(store, "wmt16", "test", [f"film {i}" for i in range(10_050)])
    return store


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 1,000 film-makers (J.R.R.)!", "it s 1 000 film makers j r r"),
        ("Café ``naïve'' #1_a", "cafe naive 1 a"),
        ("the <unk> of 0 @.@ 7 kg", "the <unk> of 0 7 kg"),
        ("can't , can 't and ca n't", "ca nt ca nt and ca nt"),
        ("... -- ?", ""),
    ],
)
def test_normalised_words(text: str, words: str) -> None:
    assert normalise(text) == words.split()


def test_one_sentence_has_the_same_words_in_every_source() -> None:
    versions = [
        "He does n't like John 's `` well-made '' films , at all .",  # SST, TREC
        "he does n't like john 's well-made films at all",  # SNLI
        "He doesn't like John's \"well-made\" films, at all.",  # Multi30k, Brown
        "he doesn &apos;t like john &apos;s &quot; well-made &quot; films , at all .",  # WMT16
        'He does n\'t like John ’s " well @-@ made " films , at all .',  # WikiText-2
    ]
    assert len({tuple(normalise(version)) for version in versions}) == 1


def test_vocabulary_has_the_most_frequent_words_that_occur_twice() -> None:
    sentences = [["c", "b", "a"], ["c", "b"], ["c", *["<unk>"] * 4]]
    assert Vocabulary.of(sentences).words == ("<pad>", "<unk>", "c", "b")
    assert Vocabulary.of(sentences, size=3).words == ("<pad>", "<unk>", "c")
    assert set(Vocabulary.of(sentences, min_count=1).words) > {"a", "b", "c"}


def test_encode_pads_on_the_left_and_cuts_on_the_right() -> None:
    vocabulary = Vocabulary(("<pad>", "<unk>", "a", "b"))
    x = vocabulary.encode([["a", "b"], ["<unk>", "b", "a", "a", "a"], [], ["<pad>"]], width=4)
    assert x.dtype == torch.int64
    assert x.tolist() == [[0, 0, 2, 3], [1, 3, 2, 2], [0, 0, 0, 1], [0, 0, 0, 1]]


def test_vocabulary_is_of_training_sentences_alone(store: Store) -> None:
    task = sst(store)
    frequent = Counter(word for text in REVIEWS for word in normalise(text))
    assert int(task.training.train.x.max()) == 1 + sum(count > 1 for count in frequent.values())
    # "sunset" occurs twice in the test set, and "warm" once in training: both are unknown
    assert frequent["warm"] == 1
    assert task.testing.test.x[0, -4:].tolist()[1:] == [UNKNOWN] * 3
    assert task.testing.test.x[1].tolist() == [0] * (WIDTH - 1) + [UNKNOWN]


def test_pieces_are_consecutive_and_as_long_as_inliers() -> None:
    words = [str(i) for i in range(30_000)]
    lengths = torch.tensor([2, 2, 2, 7])
    cut = cut_pieces(words, lengths, torch.Generator().manual_seed(0))
    together = [word for piece in cut for word in piece]
    assert together == words[: len(together)]
    assert len(words) - len(together) < 7
    counts = Counter(map(len, cut))
    assert set(counts) == {2, 7}
    assert counts[2] / len(cut) == pytest.approx(0.75, abs=0.02)


def test_a_missing_test_set_is_named_and_missing_outliers_are_an_error(store: Store, tmp_path: Path) -> None:
    task = sst(store)
    assert task.missing == ("multi30k",)
    assert set(task.testing.ood) == {"snli", "wmt16"}
    assert len(task.testing.ood["wmt16"]) == 10_000
    with pytest.raises(ValueError, match="unknown outliers 'wikitext'; did you mean 'wikitext2'"):
        sst(store, outliers="wikitext")
    for file in (tmp_path / "brown").iterdir():
        file.unlink()
    with pytest.raises(MissingData, match="brown"):
        sst(store, outliers="brown")
    with pytest.raises(ValueError, match="limit 0"):
        sst(store, limit=0)


def test_mixed_outliers_come_in_equal_parts(store: Store) -> None:
    parts = [sst(store, outliers=name).training.outliers for name in ("wikitext2", "brown")]
    mixed = sst(store, outliers="wikitext2+brown").training.outliers
    assert mixed.shape == (2 * min(part.shape[0] for part in parts), WIDTH)


def test_shuffled_words_are_the_training_words(store: Store) -> None:
    task = trec(store, outliers="shuffled_words")
    shown = Counter(task.training.outliers.epoch(torch.Generator()).flatten().tolist())
    inside = Counter(task.training.train.x.flatten().tolist())
    del shown[0], inside[0]
    assert shown <= inside
    assert shown.total() > inside.total() - WIDTH


def test_validation_is_the_sets_own_or_held_out_of_training(store: Store) -> None:
    assert len(sst(store).training.validation) == 2
    task = trec(store)
    assert len(task.training.validation) == 4
    assert sorted([*task.training.train.y.tolist(), *task.training.validation.y.tolist()]) == list(range(40))
    limited = trec(store, limit=7)
    assert torch.equal(limited.training.train.y, task.training.train.y[:7])
    assert torch.equal(limited.training.validation.y, task.training.validation.y)


def test_tokenizers_may_differ_inside_and_outside(store: Store) -> None:
    task = sst(store, inside="cased", outside="lowered")
    blank = sst(store, inside="cased", outside="lowered", tested="unknown")
    words = Vocabulary.of(map(str.split, training_and_validation(store, "sst")[0][0])).words
    film, lower_a, upper_a = (words.index(word) for word in ("film", "a", "A"))
    assert (task.training.train.x == upper_a).any()
    shown = task.training.outliers.epoch(torch.Generator())
    assert not (shown == upper_a).any()
    assert (shown == lower_a).any()
    assert (shown == film).any()  # written Film there
    assert torch.equal(blank.training.outliers.epoch(torch.Generator()), shown)
    for name, x in blank.testing.ood.items():
        assert x.unique().tolist() in ([PADDING, UNKNOWN], [UNKNOWN])
        assert torch.equal(x == PADDING, task.testing.ood[name] == PADDING)  # of the same length


def test_unless_rare_words_are_unknown_only_outliers_have_unknown_words(store: Store) -> None:
    """The published vocabulary has every training word, so that a new word makes a test sentence an outlier."""
    assert (sst(store).training.train.x == UNKNOWN).any()
    task = sst(store, min_count=1)
    assert not (task.training.train.x == UNKNOWN).any()
    assert (task.training.outliers.epoch(torch.Generator()) == UNKNOWN).any()


def test_padding_does_not_change_the_gru() -> None:
    torch.manual_seed(0)
    network = gru(3).eval()
    vocabulary = Vocabulary(("<pad>", "<unk>", *map(str, range(500))))
    sentences = [[str(word) for word in torch.randint(600, (length,)).tolist()] for length in (1, 5, 20, 0)]
    with torch.no_grad():
        wide, narrow = (network(vocabulary.encode(sentences, width)) for width in (WIDTH, 20))
        alone = torch.cat([network(vocabulary.encode([sentence])) for sentence in sentences])
    torch.testing.assert_close(wide, narrow)
    torch.testing.assert_close(wide, alone)
    assert (wide[0] - wide[1]).abs().max() > 1e-3


@pytest.mark.parametrize(("load", "classes", "sizes"), [(sst, 2, (6920, 872, 1821)), (trec, 50, (4907, 545, 500))])
def test_real_tasks(data_root: Path, load, classes: int, sizes: tuple[int, int, int]) -> None:
    task = load(Store(data_root))
    assert task.num_classes == classes
    assert tuple(map(len, (task.training.train, task.training.validation, task.testing.test))) == sizes
    shown = task.training.outliers.epoch(torch.Generator())
    sets = [task.training.train.x, task.training.validation.x, task.testing.test.x, shown, *task.testing.ood.values()]
    assert all(x.dtype == torch.int64 and x.max() < 10_000 and (x[:, -1] > 0).all() for x in sets)
    assert (task.training.train.x == UNKNOWN).any()
    inside, outside = ((x > 0).sum(1) for x in (task.training.train.x, shown))
    wins = (inside[:, None] < outside).float().mean() + 0.5 * (inside[:, None] == outside).float().mean()
    assert float(wins) == pytest.approx(0.5, abs=0.02)
