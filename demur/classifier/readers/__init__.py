"""Inputs as people have them, read a batch at a time: images, tables, texts.

| given | taken for | label |
|---|---|---|
| a folder of images, or one image | images, brought to one size and to grey or RGB | the folder below the given |
| .csv with a column `text` | texts | a column |
| any other .csv, .parquet | a table: numbers, dates, categories, gaps; every column but the label's | a column |
| .jsonl of {"text": ..., "label": ...} | texts | `label` |
| .txt | a text a line | none |
| .npz with x and y | uint8 (N, H, W) or with channels: images; (N, D): rows; (N,) of str: texts | `y` |
| - | standard input, csv or jsonl | as there |

What cannot be read is refused in one sentence that names the file and the place in it. `tolerant`
reading passes over single inputs that cannot be read, and says which.
"""

from demur.classifier.readers.base import BATCH, Batch, Inputs, Kind, X, join_names
from demur.classifier.readers.images import LARGEST
from demur.classifier.readers.opening import check_kind, drop_names, open_for, open_inputs, wanted_by
from demur.classifier.readers.outliers import read_outliers

__all__ = [
    "BATCH",
    "LARGEST",
    "Batch",
    "Inputs",
    "Kind",
    "X",
    "check_kind",
    "drop_names",
    "join_names",
    "open_for",
    "open_inputs",
    "read_outliers",
    "wanted_by",
]
