"""The paper's networks: each a function of the head size, each with `.features` (the trunk) and `.head` (affine).

Your own network works the same way: any function from the head size to a fresh `nn.Module` whose forward pass gives
logits of shape (batch, head size). Methods that treat the head apart (`vb`, `la` over the head) also need `.features`,
giving (batch, width), and `.head`, an `nn.Linear`, with forward = head(features(x)).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demur.fused import norm_relu

Network = Callable[[int], nn.Module]
CONVOLUTIONS = torch.channels_last  # this layout of their weights makes them up to twice as fast, on CPU and GPU alike


def as_input(x: Tensor) -> Tensor:
    """What a network is fed: uint8 images become floats in [0, 1], floats float32; token numbers pass."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() else x


def own_input(x: Tensor) -> Tensor:
    """As `as_input`, in memory of its own: a network may begin in place, and the data must stay what it is."""
    inputs = as_input(x)
    return inputs.clone() if inputs is x else inputs


class PatchConv2d(nn.Conv2d):
    """A convolution of a grey image, for which GPU libraries have no fast kernel: there, one product with patches."""

    def forward(self, x: Tensor) -> Tensor:
        return self.by_patches(x) if x.is_cuda else super().forward(x)

    def by_patches(self, x: Tensor) -> Tensor:
        (height, width), (top, left) = self.kernel_size, self.padding  # type: ignore[str-unpack]
        patches = F.pad(x, (left, left, top, top)).unfold(2, height, 1).unfold(3, width, 1)  # type: ignore[arg-type]
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3)
        aligned = (0, -patches.shape[3] % 8)  # what matrix units want
        y = F.linear(F.pad(patches, aligned), F.pad(self.weight.flatten(1), aligned), self.bias)
        return y.permute(0, 3, 1, 2)


class HeadedNetwork(nn.Module):
    """A trunk and a linear head."""

    def __init__(self, features: nn.Module, width: int, num_outputs: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        with torch.autocast(features.device.type, enabled=False):
            return self.head(features.float())


def has_head(network: nn.Module) -> bool:
    """Whether it names a linear head and features apart, as methods and scores over these need."""
    return isinstance(getattr(network, "head", None), nn.Linear) and callable(getattr(network, "features", None))


def mixed_precision(network: nn.Module, device: torch.device) -> torch.autocast:
    """Trunks run in bfloat16 where a GPU has units for it; heads, likelihoods, weights and averages stay float32.

    So do networks of other makes, whose heads cannot be told from their trunks: logits would have two digits.
    """
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16, enabled=supported and isinstance(network, HeadedNetwork))


def mlp(num_outputs: int, *, inputs: int = 2, hidden: Sequence[int] = (100, 100)) -> nn.Module:
    """Layers of ReLU units on flattened inputs."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise((inputs, *hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return HeadedNetwork(nn.Sequential(*layers), hidden[-1], num_outputs)


def lenet(num_outputs: int, *, channels: int = 1, size: int = 28, hidden: int = 1024) -> nn.Module:
    """Two 5x5 convolutions of 32 and 64 channels and a hidden layer, for images of size x size."""
    # pooling before the ReLU gives the same values as after it, from a quarter of the ReLUs
    features = nn.Sequential(
        PatchConv2d(channels, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (size // 4) ** 2, hidden),
        nn.ReLU(),
    )
    return HeadedNetwork(features, hidden, num_outputs).to(memory_format=CONVOLUTIONS)  # type: ignore[call-overload]


class PreActivationBlock(nn.Module):
    """Norm, ReLU, convolution, twice, beside the identity (or a 1x1 convolution where the shape changes)."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(fan_in)
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(fan_out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.shortcut = None if fan_in == fan_out and stride == 1 else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = norm_relu(x, self.norm1)
        beside = x if self.shortcut is None else self.shortcut(h)
        h = norm_relu(self.conv1(h), self.norm2)
        return self.conv2(self.dropout(h)).add_(beside)  # in place: less memory, and less of it moved


def wide_resnet(
    num_outputs: int, *, depth: int = 16, width: int = 4, dropout: float = 0.3, channels: int = 3
) -> nn.Module:
    """WideResNet-depth-width for 32x32 images."""
    blocks, remainder = divmod(depth - 4, 6)
    if remainder or blocks < 1:
        raise ValueError(f"depth {depth} of a WideResNet is not 6 n + 4; try 10, 16, 22 or 28")
    widths = (16, 16 * width, 32 * width, 64 * width)
    layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)]
    for group, (fan_in, fan_out) in enumerate(pairwise(widths)):
        for block in range(blocks):
            stride = 2 if group > 0 and block == 0 else 1
            layers.append(PreActivationBlock(fan_in if block == 0 else fan_out, fan_out, stride, dropout))
    layers += [nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = HeadedNetwork(nn.Sequential(*layers), widths[-1], num_outputs)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    nn.init.zeros_(network.head.bias)
    return network.to(memory_format=CONVOLUTIONS)  # type: ignore[call-overload]


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, beside the identity (or a 1x1 convolution where the shape changes)."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(fan_out)
        self.shortcut: nn.Module = nn.Identity()
        if fan_in != fan_out or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, stride, bias=False), nn.BatchNorm2d(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.conv2(norm_relu(self.conv1(x), self.norm1)))
        return F.relu(h + self.shortcut(x))


def resnet18_32(num_outputs: int, *, channels: int = 3) -> nn.Module:
    """ResNet-18 for 32x32 images, as OpenOOD has it: a 3x3 convolution of stride 1 first, and no pooling after it."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for fan_in, fan_out, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [ResidualBlock(fan_in, fan_out, stride), ResidualBlock(fan_out, fan_out, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = HeadedNetwork(nn.Sequential(*layers), 512, num_outputs)
    return network.to(memory_format=CONVOLUTIONS)  # type: ignore[call-overload]


class LastState(nn.Module):
    """The last state of a GRU over token numbers, 0 being padding on the left; it does not depend on the padding."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.gru = nn.GRU(embedding, hidden, layers, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens != 0).sum(1).clamp_min(1)
        longest = int(lengths.max())
        start = tokens.shape[1] - lengths
        # packing wants padding on the right
        columns = start[:, None] + torch.arange(longest, device=tokens.device)
        tokens = tokens.gather(1, columns.clamp_max(tokens.shape[1] - 1))
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return self.gru(packed)[1][-1]


def gru(
    num_outputs: int, *, vocabulary: int = 10_000, embedding: int = 50, hidden: int = 128, layers: int = 2
) -> nn.Module:
    """A GRU over token numbers with a linear head on the last state of its last layer."""
    return HeadedNetwork(LastState(vocabulary, embedding, hidden, layers), hidden, num_outputs)
