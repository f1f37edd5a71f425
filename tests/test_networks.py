"""Networks: sizes that are known elsewhere."""

import torch

from demur.networks import resnet18_32


def test_resnet18_for_32_pixels_is_the_usual_one():
    """11,173,962 weights with ten classes, as every implementation of it has; features are 512."""
    model = resnet18_32(10).eval()
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    with torch.no_grad():
        assert model.features(torch.rand(2, 3, 32, 32)).shape == (2, 512)
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
