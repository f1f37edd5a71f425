"""Images: clothes, trained beside digits, natural images and shuffled patches, then shown letters and KMNIST.

python examples/fashion.py DATA    # the folder that `demur data get` fills
"""

import sys
from pathlib import Path

import numpy as np
import torch

import demur

DIGITS_AND_IMAGES = 3000  # of each


def main(data: Path, count: int = 6000, epochs: int = 12, tested: int = 2000) -> dict[str, float]:
    store = demur.Store(data)
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))[:count]
    x, y = (each[order] for each in store.images("fashion_mnist", "train"))
    digits, _ = store.images("mnist", "train")
    natural, _ = store.images("tiny_imagenet32", "train")
    grey = natural[:: len(natural) // DIGITS_AND_IMAGES].float().mean(1, keepdim=True).byte()
    outliers = torch.cat([digits[:DIGITS_AND_IMAGES], grey[:, :, 2:30, 2:30]])  # at 28x28, as the clothes

    model = demur.Classifier("la+nc", synthetic="patches", epochs=epochs).fit(x, y, outliers)
    model.save("fashion.demur")

    x_test, y_test = (each[:tested] for each in store.images("fashion_mnist", "test"))
    answers = model.predict_all(x_test)
    values = {
        "accuracy": float((answers.label == y_test.numpy()).mean()),
        "accepted": 1 - float(np.isin(answers.decision, ["unsure", "unknown"]).mean()),
    }
    for name in ("kmnist", "emnist_letters"):
        unseen, _ = store.images(name, "test")
        values[f"{name} abstained"] = float(np.isin(model.decide(unseen[:tested]), ["unsure", "unknown"]).mean())
    return values


if __name__ == "__main__":
    for name, value in main(Path(sys.argv[1])).items():
        print(f"{name:>22} {100 * value:5.1f} %")
