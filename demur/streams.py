"""Random numbers for one purpose are independent of those for another, whatever the seed."""

import zlib

import torch


def seed_for(purpose: str, *numbers: int) -> int:
    """32 mixed bits, all that a CPU generator keeps; seeds 0, 1, 2, ... themselves are those of fresh networks."""
    return zlib.crc32("/".join([purpose, *map(str, numbers)]).encode())


def generator_for(purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed_for(purpose, *numbers))
