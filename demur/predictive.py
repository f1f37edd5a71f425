"""The only Monte-Carlo average."""

import torch
from torch import Tensor

from demur.likelihoods import Likelihood
from demur.metrics import Prediction, entropy, spread
from demur.networks import mixed_precision, own_input
from demur.posterior import Posterior

BLOCK = 8192  # inputs whose sums, and trunk's outputs, are held at a time


@torch.inference_mode()
def predict(posterior: Posterior, likelihood: Likelihood, x: Tensor, batch_size: int | None = None) -> Prediction:
    """Class probabilities averaged over the posterior; (N, ...) to (N, K)."""
    if len(x) == 0:
        raise ValueError("x is empty; predict needs at least one input")
    # a CPU is fastest while what passes between layers stays in its cache
    values, most = (2**24, 4096) if x.is_cuda else (2**17, 1024)
    batch_size = batch_size or min(most, max(64, values // x[0].numel()))
    blocks = [_predict_block(posterior, likelihood, block, batch_size) for block in x.split(BLOCK)]
    probs, none, expected_entropy = zip(*blocks, strict=True)
    return Prediction(
        torch.cat(probs), torch.cat(none) if likelihood.has_none_class else None, torch.cat(expected_entropy)
    )


def _predict_block(
    posterior: Posterior, likelihood: Likelihood, x: Tensor, batch_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    probs = torch.zeros(len(x), likelihood.num_classes, dtype=torch.float64, device=x.device)
    none, expected_entropy = torch.zeros_like(probs[:, 0]), torch.zeros_like(probs[:, 0])
    batches = [slice(start, start + batch_size) for start in range(0, len(x), batch_size)]
    for share, component in posterior.components():
        if component.network.training:
            raise ValueError(
                "the posterior's network is in training mode; call .eval(), or batch norm and dropout act up"
            )
        # what all draws share is kept; inputs, which are larger, are made ready anew
        with mixed_precision(component.network, x.device):
            shared = {b.start: component.trunk(own_input(x[b])) for b in batches} if component.over_head else {}
        weight = share / component.num_draws
        for network in component.networks():
            for rows in batches:
                if component.over_head:
                    logits = network(shared[rows.start])
                else:
                    with mixed_precision(component.network, x.device):
                        logits = network(own_input(x[rows]))
                in_class, in_none = likelihood.probs(logits.float().reshape(-1, *logits.shape[-2:]))
                probs[rows] += weight * in_class.sum(0, dtype=torch.float64)
                expected_entropy[rows] += weight * entropy(spread(in_class, in_none)).sum(0, dtype=torch.float64)
                if in_none is not None:
                    none[rows] += weight * in_none.sum(0, dtype=torch.float64)
    return probs.float().cpu(), none.float().cpu(), expected_entropy.float().cpu()
