"""What every inference method offers."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from demur.likelihoods import Likelihood
from demur.networks import Network, own_input
from demur.posterior import Borrowed, Posterior
from demur.training_data import Recipe, TrainingData, check_labels


class Inference(Protocol):
    """What every inference method has: a frozen dataclass of hyperparameters with `parts` and `fit`."""

    def parts(self, recipe: Recipe) -> "list[tuple[Inference, Recipe]]":
        """The posteriors that this one is made from, to be fitted first; a study shares them between methods."""
        ...

    def fit(
        self,
        network: Network,
        likelihood: Likelihood,
        data: TrainingData,
        recipe: Recipe,
        parts: Sequence[Posterior] = (),
    ) -> Posterior:
        """The posterior over the network's weights; without `parts` it fits them itself."""
        ...


def fit_parts(
    inference: Inference, network: Network, likelihood: Likelihood, data: TrainingData, recipe: Recipe
) -> list[Posterior]:
    return [part.fit(network, likelihood, data, its_recipe) for part, its_recipe in inference.parts(recipe)]


def networks_in(inference: Inference) -> int:
    """How many are trained, one after another."""
    return sum(networks_in(part) for part, _ in inference.parts(Recipe())) or 1


def check_copies(model: torch.nn.Module, data: TrainingData) -> None:
    """Refuse, before it is trained, a network that samples of its weights could not be put into.

    A sampled network is a copy with other weights. A lock or a kept activation in it cannot be copied; a closure or a
    hook that refers to the original keeps using that one's weights.
    """
    name, x, mode = type(model).__name__, own_input(data.train.x[:2]), model.training
    before = model.eval()(x)
    try:
        borrowed = Borrowed(model)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise ValueError(
            f"the network ({name}) cannot be copied ({error}), which sampling its weights needs; keep locks, "
            "files and activations out of it, or choose a method of 'map' or 'de'"
        ) from None
    with torch.no_grad():
        changed = borrowed.put({each: value + 1 for each, value in model.named_parameters()})
        if isinstance(before, Tensor) and torch.equal(before, changed(x)):
            raise ValueError(
                f"a copy of the network ({name}) with other weights gives the same logits, because its forward pass "
                "refers to the original (a closure, a hook); call submodules through self"
            )
    for each, module in model.named_modules(remove_duplicate=False):
        if next(module.parameters(), None) is not None and each not in dict(model.named_modules()):
            raise ValueError(f"module {each} of the network ({name}) stands in it twice; share its weights instead")
    model.train(mode)


def build(network: Network, likelihood: Likelihood, data: TrainingData) -> torch.nn.Module:
    """A fresh network with the right head, where the data is."""
    check_labels("the training data", data.train.y, likelihood.num_classes)
    return network(likelihood.num_outputs).to(data.device)
