"""Texts as a backbone's own tokens."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from demur.classifier.extras import import_extra
from demur.networks import Network
from demur.training_data import Recipe

LONGEST = 256  # words or tokens of a text


def check_width(width: int, unit: str) -> None:
    if not 0 < width <= LONGEST:
        raise ValueError(f"width {width} is not between 1 and {LONGEST}, the most {unit} of a text")


@dataclass(frozen=True)
class Tokens:
    """Sentences as the numbers of their tokens plus one, 0 being padding on the right; without special tokens.

    `tokenizer` is the JSON of the package tokenizers, so that a model file needs no other to read texts by.
    """

    tokenizer: str
    width: int  # tokens of a text; longer ones lose their ends
    kind: ClassVar[str] = "texts"
    synthetic_kind: ClassVar[str] = "texts"

    def __post_init__(self) -> None:
        check_width(self.width, "tokens")

    def read(self, X: Any, what: str = "X") -> Tensor:
        texts = list(X)
        tokens = torch.zeros(len(texts), self.width, dtype=torch.long)
        for row, encoded in enumerate(parse_tokenizer(self.tokenizer).encode_batch(texts, add_special_tokens=False)):
            ids = encoded.ids[: self.width]
            tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.long) + 1
        return tokens

    def network(self, name: str | None) -> Network:
        raise ValueError(f"network {name!r} does not read a backbone's tokens; leave network out, or the backbone")

    def recipe(self, count: int) -> Recipe:
        raise AssertionError("what is trained on tokens is a backbone, which has a recipe of its own")


@lru_cache(maxsize=8)
def parse_tokenizer(tokenizer: str) -> Any:
    """The tokenizer that the JSON describes, cutting and padding nothing by itself."""
    tokenizers = import_extra("tokenizers", "hf")
    try:
        parsed = tokenizers.Tokenizer.from_str(tokenizer)
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"its tokenizer is none ({error}); save it anew") from None
    parsed.no_truncation()
    parsed.no_padding()
    return parsed


def special_tokens(tokenizer: str) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and behind a text."""
    parsed = parse_tokenizer(tokenizer)
    bare, whole = parsed.encode("a", add_special_tokens=False).ids, parsed.encode("a").ids
    start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]
