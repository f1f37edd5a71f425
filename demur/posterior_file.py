"""A posterior as one safetensors file with a JSON header; nothing in it is code.

What the header says is checked before a tensor is read or a network built: a file can ask for no more than it holds.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from demur.files import TensorEntry, find_not_finite, list_tensors, read_tensors, replacing
from demur.names import with_current_names
from demur.posterior import Gaussian, Mixture, Point, Posterior, Tuning, check_bases, check_settings, check_variance

FORMAT = 1
BASES = ("left", "right")  # of a Kronecker-factored Gaussian
FLOATS = ("F64", "F32", "F16", "BF16")
LONGEST = 2**24  # characters of the header
DEEPEST = 8  # mixtures of mixtures


def save(posterior: Posterior, path: str | Path, about: Mapping[str, str] | None = None) -> None:
    """Write the posterior to one file, whole or not at all. `about` says what it is, for whoever reads it back."""
    tensors: dict[str, Tensor] = {}
    header = {"format": FORMAT, "posterior": _pack(posterior, "", tensors), "about": dict(about or {})}
    with replacing(Path(path)) as unfinished:
        save_file(_unshare(tensors), unfinished, metadata={"demur": json.dumps(header)})


def load(path: str | Path, build: Callable[[], nn.Module], device: torch.device | str = "cpu") -> Posterior:
    """Read a posterior back; `build` makes a fresh network of the kind it was fitted with, its head included."""
    header = _header(path)
    _, tensors = read_tensors(path)
    if name := find_not_finite(tensors):
        raise ValueError(f"{path} has NaN or infinite weights, in {name}; fit and save it anew")
    return _unpack(header["posterior"], "", tensors, build, device)


def read_about(path: str | Path) -> dict[str, str]:
    """What the file says that it is."""
    return _header(path)["about"]


def _header(path: str | Path) -> dict[str, Any]:
    """The header, once it agrees with the tensors that the file lists."""
    try:
        metadata, entries = list_tensors(path)
        text = metadata["demur"]
        if len(text) > LONGEST:
            raise TypeError(f"its header has more than {LONGEST} characters")
        header = json.loads(text)
        if header["format"] != FORMAT:
            raise ValueError(f"{path} has format {header['format']!r}, this demur reads {FORMAT}; save it anew")
        if not isinstance(header["about"], dict):
            raise TypeError("about is no object")
        owned = {key for leaf in _leaves(header["posterior"], "", entries, DEEPEST) for key in leaf}
        if stray := entries.keys() - owned:
            raise TypeError(f"{min(stray)} belongs to no network")
    except FileNotFoundError:
        raise ValueError(f"posterior {path} does not exist; fit one and save it first") from None
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a posterior saved by demur, or it is damaged ({error}); save it anew"
        ) from None
    return header


def _leaves(node: Any, prefix: str, entries: Mapping[str, TensorEntry], deepest: int) -> Iterator[list[str]]:
    """The keys of every point's and Gaussian's tensors; each has some, so there are no more of them than tensors."""
    if node["kind"] == "mixture":
        if not isinstance(node["parts"], list) or not node["parts"] or deepest == 0:
            raise TypeError("a mixture has no parts, or too many within each other")
        for index, part in enumerate(node["parts"]):
            yield from _leaves(part, f"{prefix}{index}/", entries, deepest - 1)
        return
    if node["kind"] not in ("point", "gaussian"):
        raise TypeError(f"{node['kind']!r} is no kind of posterior")

    def under(kind: str) -> dict[str, TensorEntry]:
        start = f"{prefix}{kind}/"
        return {key.removeprefix(start): entry for key, entry in entries.items() if key.startswith(start)}

    mean, variance, left, right = (under(kind) for kind in ("mean", "variance", *BASES))
    if not mean:
        raise TypeError(f"{prefix or 'the posterior'} has no weights")
    for name, entry in (*mean.items(), *variance.items(), *left.items(), *right.items()):
        if entry.dtype not in FLOATS:
            raise TypeError(f"{name} is of dtype {entry.dtype}")
    if node["kind"] == "gaussian":
        settings = with_current_names(node["settings"])
        if set(settings) != {"num_samples", "seed", "over_head"}:
            raise TypeError("its settings are others than num_samples, seed and over_head")
        check_settings(**settings)
        check_variance(
            {name: entry.shape for name, entry in variance.items()},
            {name: entry.shape for name, entry in mean.items()},
            settings["over_head"],
        )
        if sorted(node.get("varied", variance)) != sorted(variance):
            raise TypeError("a variance is missing")
        if right.keys() - left.keys() or sorted(node.get("turned", ())) != sorted([*left, *right]):
            raise TypeError("a basis is missing, or one too many")
        check_bases(
            {name: [side[name].shape for side in (left, right) if name in side] for name in left},
            {name: entry.shape for name, entry in variance.items()},
        )
        _tuning(node)
    elif variance or left or right:
        raise TypeError("a point has variances")
    kinds = tuple(f"{prefix}{kind}/" for kind in ("mean", "buffer", "variance", *BASES))
    yield [key for key in entries if key.startswith(kinds)]


def _tuning(node: Mapping[str, Any]) -> Tuning | None:
    saved = node.get("tuning")
    if saved is None:
        return None
    tuning = Tuning(saved["chosen"], tuple(tuple(row) for row in saved["rows"]), tuple(saved["at_map"]))
    numbers = [tuning.chosen, *tuning.at_map, *(value for row in tuning.rows for value in row)]
    if len(tuning.at_map) != 2 or any(len(row) != 3 for row in tuning.rows):
        raise TypeError("its tuning is no table")
    if any(type(number) not in (int, float) or not math.isfinite(number) for number in numbers):
        raise TypeError("its tuning has something else than numbers")
    return tuning


def _unshare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory, as components around one network do, each with its own."""
    seen: set[int] = set()
    apart = {}
    for key, value in tensors.items():
        pointer = value.untyped_storage().data_ptr()
        apart[key] = value.clone() if pointer in seen else value
        seen.add(pointer)
    return apart


def _pack(posterior: Posterior, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Put the tensors under their names and return what else there is to say."""
    if isinstance(posterior, Mixture):
        return {
            "kind": "mixture",
            "parts": [_pack(part, f"{prefix}{index}/", tensors) for index, part in enumerate(posterior.parts)],
        }
    assert isinstance(posterior, Point | Gaussian)
    # parameters and buffers rather than the state_dict, which lists tied weights twice
    for kind, named in (("mean", posterior.network.named_parameters()), ("buffer", posterior.network.named_buffers())):
        tensors |= {f"{prefix}{kind}/{name}": value.detach().contiguous() for name, value in named}
    if isinstance(posterior, Point):
        return {"kind": "point"}
    tensors |= {f"{prefix}variance/{name}": value.contiguous() for name, value in posterior.variance.items()}
    for kind, side in zip(BASES, (0, 1), strict=True):
        side_bases = {name: each[side] for name, each in posterior.bases.items() if len(each) > side}
        tensors |= {f"{prefix}{kind}/{name}": value.contiguous() for name, value in side_bases.items()}
    settings = {"num_samples": posterior.num_samples, "seed": posterior.seed, "over_head": posterior.over_head}
    packed = {"kind": "gaussian", "settings": settings, "varied": list(posterior.variance)}
    if posterior.bases:
        packed["turned"] = [name for name, each in posterior.bases.items() for _ in each]
    return packed | ({} if posterior.tuning is None else {"tuning": asdict(posterior.tuning)})


def _unpack(
    header: dict[str, Any],
    prefix: str,
    tensors: Mapping[str, Tensor],
    build: Callable[[], nn.Module],
    device: torch.device | str,
) -> Posterior:
    if header["kind"] == "mixture":
        parts = enumerate(header["parts"])
        return Mixture(tuple(_unpack(part, f"{prefix}{index}/", tensors, build, device) for index, part in parts))
    network = build().to(device).eval()
    stored = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    slots: dict[str, Tensor] = {f"mean/{name}": value for name, value in network.named_parameters()}
    slots |= {f"buffer/{name}": value for name, value in network.named_buffers()}
    of_the_gaussian = tuple(f"{kind}/" for kind in ("variance", *BASES))
    for key in slots.keys() | {key for key in stored if not key.startswith(of_the_gaussian)}:
        saved, fresh = (tuple(side[key].shape) if key in side else None for side in (stored, slots))
        if saved != fresh:
            raise ValueError(
                f"{key.split('/', 1)[1]} is {saved or 'absent'} in the saved posterior, {fresh or 'absent'} in the "
                "network; pass the network that it was fitted with"
            )
    with torch.no_grad():
        for key, slot in slots.items():
            slot.copy_(stored[key])
    if header["kind"] == "point":
        return Point(network)
    variance, left, right = (
        {key.partition("/")[2]: value.to(device) for key, value in stored.items() if key.startswith(f"{kind}/")}
        for kind in ("variance", *BASES)
    )
    bases = {name: tuple(side[name] for side in (left, right) if name in side) for name in left}
    return Gaussian(network, variance, **with_current_names(header["settings"]), tuning=_tuning(header), bases=bases)
