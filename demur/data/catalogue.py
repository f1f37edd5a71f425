"""The data sets known by name: what they hold, under which licence, and where the Hugging Face hub keeps them.

The hub's folders were read from stored copies of its pages, not from the hub itself, and a repository can move:
`demur.data.hub` checks files and columns when it gets them. The notes say what is less sure than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal

CONVERTED = "refs/convert/parquet"  # the branch on which the hub keeps parquet copies of repositories in other formats


@dataclass(frozen=True)
class HubFiles:
    """A data set's place on the hub, and its columns' names there."""

    repo: str
    files: Mapping[str, str]  # from a split of ours to the pattern of its parquet files
    image: str | None = None
    text: str | None = None  # a dot reaches into a struct
    label: str | None = None  # left out where the set only serves as outliers
    revision: str = "main"
    rows: int | None = None  # take the first rows only
    skip: str | None = None  # leave out texts that match this expression
    match_names: bool = False  # the classes are numbered otherwise there, so go by their names
    resize: bool = False  # the images are larger there


@dataclass(frozen=True)
class DataSet:
    """What is known of a data set before a file of it is read."""

    kind: Literal["images", "text"]
    splits: tuple[str, ...]
    licence: str
    shape: tuple[int, int, int] | None = None  # channels, height, width
    classes: tuple[str, ...] = ()
    num_classes: int = 0  # where the classes are not named here
    first_label: int = 0
    hub: HubFiles | None = None
    note: str = ""

    @property
    def labels(self) -> range:
        """The labels that may occur; empty where the set has none."""
        return range(self.first_label, self.first_label + (len(self.classes) or self.num_classes))


def allowed_labels(known: DataSet | None) -> range:
    """Those of the data set; of one that is not in the catalogue, or has no classes there, any from 0."""
    return known.labels if known and known.labels else range(2**63 - 1)


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
DIGITS = tuple("0123456789")

FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# fmt: off
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on

# fmt: off
TREC = (
    "ABBR:abb", "ABBR:exp", "DESC:def", "DESC:desc", "DESC:manner", "DESC:reason", "ENTY:animal", "ENTY:body",
    "ENTY:color", "ENTY:cremat", "ENTY:currency", "ENTY:dismed", "ENTY:event", "ENTY:food", "ENTY:instru",
    "ENTY:lang", "ENTY:letter", "ENTY:other", "ENTY:plant", "ENTY:product", "ENTY:religion", "ENTY:sport",
    "ENTY:substance", "ENTY:symbol", "ENTY:techmeth", "ENTY:termeq", "ENTY:veh", "ENTY:word", "HUM:desc", "HUM:gr",
    "HUM:ind", "HUM:title", "LOC:city", "LOC:country", "LOC:mount", "LOC:other", "LOC:state", "NUM:code",
    "NUM:count", "NUM:date", "NUM:dist", "NUM:money", "NUM:ord", "NUM:other", "NUM:perc", "NUM:period", "NUM:speed",
    "NUM:temp", "NUM:volsize", "NUM:weight",
)
# fmt: on


def shards(folder: str, *splits: str) -> dict[str, str]:
    """The hub's usual file names, split by split."""
    return {split: f"{folder}/{split}-*.parquet" for split in splits}


CATALOGUE: Mapping[str, DataSet] = {
    "mnist": DataSet(
        "images",
        ("train", "test"),
        "unclear: given as CC BY-SA 3.0 and as MIT",
        GREY,
        DIGITS,
        hub=HubFiles("ylecun/mnist", shards("mnist", "train", "test"), image="image", label="label"),
    ),
    "fashion_mnist": DataSet(
        "images",
        ("train", "test"),
        "MIT",
        GREY,
        FASHION,
        hub=HubFiles(
            "zalando-datasets/fashion_mnist", shards("fashion_mnist", "train", "test"), image="image", label="label"
        ),
    ),
    "emnist_letters": DataSet(
        "images",
        ("test",),
        "unknown; derived from NIST Special Database 19",
        GREY,
        tuple(ascii_lowercase),
        first_label=1,
        hub=HubFiles("tanganke/emnist_letters", shards("emnist-letters", "test"), image="image"),
        note="upright; whether the hub's copy is upright too could not be checked",
    ),
    "kmnist": DataSet(
        "images",
        ("test",),
        "CC BY-SA 4.0",
        GREY,
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        hub=HubFiles("tanganke/kmnist", shards("kmnist", "test"), image="image", label="label"),
    ),
    "svhn": DataSet(
        "images",
        ("train", "test"),
        "non-commercial use only",
        COLOUR,
        DIGITS,
        hub=HubFiles("ufldl-stanford/svhn", shards("cropped_digits", "train", "test"), image="image", label="label"),
    ),
    "cifar10": DataSet(
        "images",
        ("train", "test"),
        "unknown",
        COLOUR,
        CIFAR10,
        hub=HubFiles("uoft-cs/cifar10", shards("plain_text", "train", "test"), image="img", label="label"),
    ),
    "cifar100": DataSet(
        "images",
        ("train", "test"),
        "unknown",
        COLOUR,
        CIFAR100,
        hub=HubFiles("uoft-cs/cifar100", shards("cifar100", "train", "test"), image="img", label="fine_label"),
    ),
    "cifar10_c": DataSet(
        "images",
        (),
        "CC BY 4.0",
        COLOUR,
        CIFAR10,
        note="one split a corruption: severities 1 to 5 in turn, each the 10,000 test images",
    ),
    "places_classroom": DataSet(
        "images", ("test",), "unknown; images of Places, for research", COLOUR, note="stands in for lsun_classroom"
    ),
    "lsun_classroom": DataSet("images", ("test",), "unknown", COLOUR, note="resize the images to 32x32 before adding"),
    "tiny_imagenet32": DataSet(
        "images",
        ("train",),
        "research only (ImageNet)",
        COLOUR,
        num_classes=200,
        hub=HubFiles(
            "zh-plus/tiny-imagenet", {"train": "data/train-*.parquet"}, image="image", label="label", resize=True
        ),
        note="Tiny-ImageNet-200 at half its size; stands in for imagenet32",
    ),
    "imagenet32": DataSet(
        "images",
        ("train",),
        "research only (ImageNet)",
        COLOUR,
        num_classes=1000,
        hub=HubFiles(
            "benjamin-paine/imagenet-1k-32x32", {"train": "data/train-*.parquet"}, image="image", label="label"
        ),
        note="the hub's repository could not be looked at; it may ask for a login",
    ),
    "sst": DataSet(
        "text",
        ("train", "validation", "test"),
        "unknown",
        classes=("negative", "positive"),
        hub=HubFiles(
            "SetFit/sst2",
            {split: f"default/{split}/*.parquet" for split in ("train", "validation", "test")},
            text="text",
            label="label",
            revision=CONVERTED,
        ),
        note="binary, whole sentences",
    ),
    "trec": DataSet(
        "text",
        ("train", "test"),
        "unknown",
        classes=TREC,
        hub=HubFiles(
            "CogComp/trec",
            {split: f"default/{split}/*.parquet" for split in ("train", "test")},
            text="text",
            label="fine_label",
            revision=CONVERTED,
            match_names=True,
        ),
        note="the 50 fine classes in alphabetical order",
    ),
    "snli": DataSet(
        "text",
        ("test",),
        "CC BY-SA 4.0",
        hub=HubFiles("stanfordnlp/snli", shards("plain_text", "test"), text="hypothesis"),
        note="hypothesis sentences",
    ),
    "multi30k": DataSet(
        "text",
        ("test",),
        "unknown",
        hub=HubFiles(
            "bentrevett/multi30k", {"test": "default/train/*.parquet"}, text="en", revision=CONVERTED, rows=10_000
        ),
        note="English captions, the first 10,000",
    ),
    "wmt16": DataSet(
        "text",
        ("test",),
        "unknown",
        hub=HubFiles("wmt/wmt16", shards("de-en", "test"), text="translation.en"),
        note="English sentences",
    ),
    "wikitext2": DataSet(
        "text",
        ("train",),
        "CC BY-SA 3.0",
        hub=HubFiles("Salesforce/wikitext", shards("wikitext-2-v1", "train"), text="text", skip=r"^(= .* =)?$"),
        note="paragraphs, without headings",
    ),
    "brown": DataSet("text", ("train",), "non-commercial use only", note="sentences of NLTK's corpus brown"),
}
