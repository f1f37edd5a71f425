"""Sentences as numbers: `sst` and `trec`, one pipeline for every set inside and outside.

A set must not be known by its typography: one source keeps upper case, another strips punctuation, a third writes
`&apos;t` for what a fourth writes `n't`. So every text becomes normalised words, which become numbers by the training
set's vocabulary, and the numbers stand at the right end of WIDTH places, after padding.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from demur.data.store import Store
from demur.names import choose
from demur.outliers.noise import Mixed
from demur.outliers.values import leaves, parse
from demur.streams import generator_for
from demur.tasks.base import Task, TestData, check_labelled, check_limit, shuffled_order
from demur.training_data import Fixed, OutlierSource, Split, TrainingData

PADDING, UNKNOWN = 0, 1
WIDTH = 60  # the longest labelled sentence has 56 words; longer outliers lose their ends
OOD = ("snli", "multi30k", "wmt16")
OOD_COUNT = 10_000
SHUFFLED = "shuffled_words"
OUTLIERS = ("wikitext2", "brown", SHUFFLED)

ACCENT = re.compile("[\u0300-\u036f]")  # as they stand alone once letters are decomposed
APOSTROPHE = re.compile("[\u2018\u2019\u2032`]")
NEGATION = re.compile(r"n ?'t\b")  # don't, do n't and don 't
WORD = re.compile(r"<unk>|[^\W_]+")  # WikiText-2 writes <unk> for its own unknown words


def normalise(text: str) -> list[str]:
    """Words without case, accents and punctuation; "n't" and what follows an apostrophe are words of their own."""
    plain = ACCENT.sub("", unicodedata.normalize("NFKD", html.unescape(text).lower()))
    return WORD.findall(NEGATION.sub(" nt", APOSTROPHE.sub("'", plain)))


def split_cased(text: str) -> list[str]:
    """What stands between spaces, as it is written."""
    return text.split()


def split_lowered(text: str) -> list[str]:
    """What stands between spaces, in lower case."""
    return text.lower().split()


def unknown(text: str) -> list[str]:
    """As many unknown words as stand between spaces: what is left of a text whose own vocabulary was never built."""
    return ["<unk>"] * len(text.split())


Labelled = tuple[list[str], Tensor]
Tokenizer = Callable[[str], list[str]]
TOKENIZERS: dict[str, Tokenizer] = {
    "normalised": normalise,
    "cased": split_cased,
    "lowered": split_lowered,
    "unknown": unknown,
}


@dataclass(frozen=True)
class Vocabulary:
    """The words with numbers of their own; words[0] and words[1] stand for padding and for all other words."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], size: int = 10_000, min_count: int = 2) -> "Vocabulary":
        """The most frequent words, at most `size` with the two special ones.

        A word must occur twice: were every training word known, the unknown word would occur in training outliers
        alone, and a rare word would make any test sentence an outlier. The published code knew every word: of TREC's
        test questions 53 % have a word that training has not, and networks shown outliers took these for outliers.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        counts.pop("<unk>", None)
        frequent = [word for word, count in counts.most_common(size - 2) if count >= min_count]
        return cls(("<pad>", "<unk>", *frequent))

    def encode(self, sentences: Iterable[Sequence[str]], width: int = WIDTH) -> Tensor:
        """(N, width) int64, padded on the left and cut on the right; no words at all are one unknown word."""
        number = {word: index for index, word in enumerate(self.words) if index > UNKNOWN}
        rows = []
        for sentence in sentences:
            row = [number.get(word, UNKNOWN) for word in sentence[:width]] or [UNKNOWN]
            rows.append([PADDING] * (width - len(row)) + row)
        return torch.tensor(rows).view(-1, width)


def text_task(
    name: str,
    store: Store,
    *,
    outliers: str = "wikitext2",
    inside: str = "normalised",
    outside: str = "normalised",
    tested: str | None = None,
    min_count: int = 2,
    limit: int | None = None,
) -> Task:
    """A labelled set of the store as a task.

    `outliers` are `wikitext2`, `brown`, `shuffled_words` (the training set's words in random order) or a mix, `a+b`.
    `inside` and `outside` name the tokenizers of the labelled sets and of all others; any two but the same let the
    network go by typography; `tested` names that of the OOD test sets, where it is not `outside`. Words that
    occur less often than `min_count` in training are unknown. `limit` keeps that many training sentences. Validation
    sentences are the set's own, or a tenth of the training set where it has none; they are never the test's.
    """
    tokens_in, tokens_out = choose(TOKENIZERS, inside, "tokenizer"), choose(TOKENIZERS, outside, "tokenizer")
    tokens_ood = tokens_out if tested is None else choose(TOKENIZERS, tested, "tokenizer")
    (train_texts, train_y), (validation_texts, validation_y) = training_and_validation(store, name, limit)
    test_texts, test_y = load_split(store, name, "test")
    sentences = [tokens_in(text) for text in train_texts]
    vocabulary = Vocabulary.of(sentences, min_count=min_count)
    lengths = torch.tensor([min(max(len(sentence), 1), WIDTH) for sentence in sentences])

    def source(part: str) -> OutlierSource:
        choose(dict.fromkeys(OUTLIERS), part, "outliers")
        texts = train_texts if part == SHUFFLED else store.texts(part, "train")[0]
        words = [word for text in texts for word in tokens_out(text)]
        if part == SHUFFLED:
            words = [words[i] for i in shuffled_order(len(words)).tolist()]
        return Fixed(vocabulary.encode(cut_pieces(words, lengths, generator_for("pieces"))))

    def split(texts: list[str], y: Tensor) -> Split:
        return Split(vocabulary.encode(map(tokens_in, texts)), y)

    sources = tuple(source(str(leaf)) for leaf in leaves(parse(outliers)))
    return Task(
        name,
        store.classes(name, "train"),
        TrainingData(
            split(train_texts, train_y),
            split(validation_texts, validation_y),
            sources[0] if len(sources) == 1 else Mixed(sources),
        ),
        TestData(
            split(test_texts, test_y),
            {ood: vocabulary.encode(map(tokens_ood, texts)) for ood, texts in ood_texts(store).items()},
        ),
        trained_with=outliers,
        missing=tuple(ood for ood in OOD if not store.has(ood, "test")),
    )


sst = partial(text_task, "sst")  # sentences of film reviews, negative or positive
trec = partial(text_task, "trec")  # questions, by what they ask for; some of the 50 classes have only a few


def cut_pieces(words: Sequence[str], lengths: Tensor, generator: torch.Generator) -> list[Sequence[str]]:
    """Consecutive pieces of a text, as long as inliers are: each length is drawn from `lengths`.

    A WikiText paragraph has 100 words, a question 10: uncut, length alone would tell them apart.
    """
    sampled = lengths[torch.randint(len(lengths), (len(words),), generator=generator)]
    ends = [end for end in sampled.cumsum(0).tolist() if end <= len(words)]
    return [words[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def load_split(store: Store, name: str, split: str) -> Labelled:
    texts, y = store.texts(name, split)
    return texts, check_labelled(name, split, y)


def training_and_validation(store: Store, name: str, limit: int | None = None) -> tuple[Labelled, Labelled]:
    """Shuffled training sentences, and validation sentences: the set's own, or a tenth of the training set held out."""
    check_limit(limit)
    texts, y = load_split(store, name, "train")
    order = shuffled_order(len(texts)).tolist()
    if store.has(name, "validation"):
        validation = load_split(store, name, "validation")
    else:
        held_out, order = order[: len(texts) // 10], order[len(texts) // 10 :]
        validation = [texts[i] for i in held_out], y[held_out]
    return ([texts[i] for i in order[:limit]], y[order[:limit]]), validation


def ood_texts(store: Store) -> dict[str, list[str]]:
    """The OOD test sets that are there, at most OOD_COUNT sentences each."""
    sets = {}
    for name in OOD:
        if store.has(name, "test"):
            texts, _ = store.texts(name, "test")
            sets[name] = [texts[i] for i in shuffled_order(len(texts))[:OOD_COUNT].tolist()]
    return sets
