"""Texts: questions by what they ask for, trained beside an encyclopaedia, then shown film reviews and captions.

python examples/trec.py DATA            # the folder that `demur data get` fills; on the features of a sentence encoder
python examples/trec.py DATA scratch    # with a small network from scratch, which needs no further package
"""

import sys
from pathlib import Path

import numpy as np

import demur


def main(
    data: Path, backbone: str | None = "minilm", epochs: int | None = None, tested: int = 2000
) -> dict[str, float]:
    store = demur.Store(data)
    questions, y = store.texts("trec", "train")
    articles, _ = store.texts("wikitext2", "train")
    outliers = pieces(articles, [len(question.split()) for question in questions])

    model = demur.Classifier("la+nc", backbone=backbone, epochs=epochs).fit(questions, y, outliers)
    model.save("trec.demur")

    x_test, y_test = store.texts("trec", "test")
    answers = model.predict_all(x_test)
    values = {
        "accuracy": float((answers.label == y_test.numpy()).mean()),
        "accepted": 1 - float(np.isin(answers.decision, ["unsure", "unknown"]).mean()),
    }
    for name in ("sst", "snli"):
        unseen, _ = store.texts(name, "test")
        values[f"{name} abstained"] = float(np.isin(model.decide(unseen[:tested]), ["unsure", "unknown"]).mean())
    return values


def pieces(articles: list[str], lengths: list[int], count: int = 20_000) -> list[str]:
    """Articles cut into pieces as long as questions are, or length alone would tell them apart."""
    words = " ".join(articles).split()
    ends = np.cumsum(np.random.default_rng(0).choice(lengths, count))
    return [" ".join(words[start:end]) for start, end in zip([0, *ends], ends, strict=False) if end <= len(words)]


if __name__ == "__main__":
    for name, value in main(Path(sys.argv[1]), None if "scratch" in sys.argv[2:] else "minilm").items():
        print(f"{name:>14} {100 * value:5.1f} %")
