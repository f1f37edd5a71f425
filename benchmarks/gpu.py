"""The rows of a GPU. `shares` are of what the card itself was measured to do: bfloat16 products, and copies.

Where one operation follows another, its bytes are counted as if nothing were fused; a share above one is fusion's gain.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cpu import BATCH, EVER, NETWORKS, as_usual, fresh, functional_loop, gaussian
from benchmarks.fisher_worker import residual_root, residual_signs
from benchmarks.frame import Conditions, Contestant, Reading, Row, Target, timed
from benchmarks.problems import NUM_CLASSES, images, random_task
from demur.inference import MAP, Ensemble
from demur.inference.fisher import diagonal_fisher
from demur.likelihoods import none_class
from demur.networks import as_input, lenet
from demur.outliers.noise import smooth
from demur.predictive import predict
from demur.tasks.base import Task
from demur.training import train
from demur.training_data import Recipe

RECIPES = {
    "lenet": Recipe(epochs=EVER, batch_size=BATCH, optimizer="adam", lr=1e-3),
    "wrn": Recipe(epochs=EVER, batch_size=BATCH, optimizer="sgd", lr=0.1),
}


# what the card can do, and what is asked of it ---------------------------------------------------------------------


REPEATS = 20


@cache
def card_rates(device: str, small: bool) -> tuple[float, float]:
    """Operations of bfloat16 products a second, bytes read and written by a copy a second."""
    size = 64 if small else 8192
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    source = torch.empty(size * size, device=device)
    target = torch.empty_like(source)
    # one after another, or what is seen is the way to the card
    product = min(timed(lambda: repeated(lambda: a @ a), device, REPEATS).seconds for _ in range(5))
    copy = min(timed(lambda: repeated(lambda: target.copy_(source)), device, REPEATS).seconds for _ in range(5))
    return 2 * size**3 / product, 2 * source.nbytes / copy


def repeated(work: Callable[[], object]) -> None:
    for _ in range(REPEATS):
        work()


class Traffic(TorchDispatchMode):
    """Bytes that operations read and write, each for itself; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor))
        return result


def demand(work: Callable[[], object]) -> tuple[float, float]:
    """Operations and bytes of the work, done once in float32."""
    with FlopCounterMode(display=False) as flops, Traffic() as traffic:
        work()
    return flops.get_total_flops(), traffic.bytes


def with_shares(reading: Reading, asked: tuple[float, float], conditions: Conditions) -> Reading:
    rates = card_rates(conditions.device, conditions.small)
    limits = ("bf16 matrix rate", "copy bandwidth")
    shares = {name: one / reading.seconds / rate for name, one, rate in zip(limits, asked, rates, strict=True)}
    return replace(reading, shares=shares)


# rows --------------------------------------------------------------------------------------------------------------


def training_step(network: str, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    steps, batch, device = (1, 4, conditions.device) if conditions.small else (100, BATCH, conditions.device)
    task, recipe = random_task(steps * batch, NETWORKS[network][1], device), replace(RECIPES[network], batch_size=batch)
    ours = train(fresh(network).to(device), none_class(NUM_CLASSES), task.training, recipe)
    eager = eager_step(network, task, recipe)
    asked = demand(eager)

    def eager_epoch() -> None:
        for _ in range(steps):
            eager()

    def our_epoch() -> None:
        next(ours)

    return {
        "demur": lambda: with_shares(timed(our_epoch, device, steps), asked, conditions),
        "eager float32, no loader": lambda: timed(eager_epoch, device, steps),
    }


def eager_step(network: str, task: Task, recipe: Recipe) -> Callable[[], None]:
    """The step of a plain loop, its data at hand and ready."""
    size, model = recipe.batch_size, as_usual(fresh(network)).to(task.training.train.x.device).train()
    x, y = as_input(task.training.train.x[:size]), task.training.train.y[:size]
    both, none = torch.cat([x, x.flip(0)]), torch.full_like(y, NUM_CLASSES)
    optimizer = (
        torch.optim.Adam(model.parameters(), recipe.lr, weight_decay=recipe.weight_decay)
        if recipe.optimizer == "adam"
        else torch.optim.SGD(model.parameters(), recipe.lr, 0.9, weight_decay=recipe.weight_decay, nesterov=True)
    )

    def step() -> None:
        logits = model(both)
        loss = F.cross_entropy(logits[:size], y) + F.cross_entropy(logits[size:], none)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def fisher(network: str, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    count, device = 4 if conditions.small else 8192, conditions.device
    few = min(count, 512)  # all at once in vmap
    model = fresh(network).to(device).eval()
    x = images(count, NETWORKS[network][1], device)
    y = torch.arange(count, device=device) % NUM_CLASSES

    def ours(given: int) -> Tensor:
        found = diagonal_fisher(model, residual_root, x[:given], signs=residual_signs(y[:given], NUM_CLASSES + 1))
        return torch.cat([value.flatten() for value in found.values()])

    def all_of_it() -> None:
        ours(count)

    asked = demand(lambda: model(as_input(x[:few])).logsumexp(1).sum().backward())
    per_image = (asked[0] / few, asked[1] / few)
    same = ours(few).cpu()
    return {
        "demur sampled": lambda: replace(
            with_shares(timed(all_of_it, device, count), per_image, conditions), result=same
        ),
        "vmap(grad)": lambda: timed(lambda: by_vmap(model, as_input(x[:few]), y[:few]), device, few),
    }


def by_vmap(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (one.unsqueeze(0),)), label.unsqueeze(0))

    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for some, labels in zip(x.split(64), y.split(64), strict=True):
        for name, gradient in vmap(grad(loss), (None, 0, 0))(parameters, some, labels).items():
            total[name] += gradient.square().sum(0)
    return torch.cat([value.flatten() for value in total.values()])


def prediction(network: str, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    count, samples = (4, 2) if conditions.small else (10_000, 20)
    device, likelihood = conditions.device, none_class(NUM_CLASSES)
    x = images(count, NETWORKS[network][1], device)
    posterior = gaussian(fresh(network).to(device), samples)
    usual = gaussian(as_usual(fresh(network)).to(device), samples)
    few = min(count, BATCH)
    asked = demand(lambda: posterior.network(as_input(x[:few])))
    per_image = (asked[0] / few, asked[1] / few)
    each = partial(timed, device=device, units=count * samples)
    return {
        "demur": lambda: with_shares(each(lambda: predict(posterior, likelihood, x).probs), per_image, conditions),
        "functional_call loop, float32": lambda: each(lambda: functional_loop(usual, x)),
    }


def five_lenets(conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    steps, batch, device = (1, 4, conditions.device) if conditions.small else (100, BATCH, conditions.device)
    task, likelihood = random_task(steps * batch, NETWORKS["lenet"][1], device), none_class(NUM_CLASSES)
    epochs = 2 if conditions.small else 10  # or what is seen is the recording
    recipe = replace(RECIPES["lenet"], epochs=epochs, batch_size=batch)
    operations, traffic = demand(eager_step("lenet", task, recipe))
    asked = (5 * operations, 5 * traffic)

    def together() -> None:
        Ensemble().fit(lenet, likelihood, task.training, recipe)

    def in_turn() -> None:
        for _, its_recipe in Ensemble().parts(recipe):
            MAP().fit(lenet, likelihood, task.training, its_recipe)

    return {
        "together": lambda: with_shares(timed(together, device, epochs * steps), asked, conditions),
        "one after another": lambda: timed(in_turn, device, epochs * steps),
    }


def smooth_noise(conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    batches = 1 if conditions.small else 64
    x = images(batches * BATCH, NETWORKS["lenet"][1], conditions.device)
    generator = torch.Generator(conditions.device).manual_seed(0)

    def make() -> None:
        smooth(x, generator)

    operations, traffic = demand(make)
    asked = (operations / batches, traffic / batches)
    step = training_step("lenet", conditions, stack)["demur"]
    return {
        "smooth noise": lambda: with_shares(timed(make, conditions.device, batches), asked, conditions),
        "a LeNet step": step,
    }


TRAINED, FISHERS = 14, 5
EPOCHS, SETS, SET_SIZE = 100, 8, 10_000
PASSES = 5 * 20 + 1 + 5 + 1 + 5  # of every network over every set: LA, MAP, ensemble, OE, VB (its 200 heads are free)
TUNING = FISHERS * 11 * 20 * 2_000


def column(network: str, points: int, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    """A column of table 2, added up from its parts: steps, Fishers, predictions."""
    parts = [make(network, conditions, stack) for make in (training_step, fisher, prediction)]
    times = (TRAINED * EPOCHS * (points // BATCH), FISHERS * 2 * points, PASSES * SETS * SET_SIZE + TUNING)

    def added_up(place: int) -> Reading:
        contestants = [list(part.values())[place] for part in parts]
        return Reading(sum(n * contestant().seconds for n, contestant in zip(times, contestants, strict=True)))

    return {"demur": lambda: added_up(0), "the paper's way": lambda: added_up(1)}


ROWS = (
    Row(
        "gpu-wrn-step",
        "WideResNet-16-4, a step of 128 + 128, all included",
        partial(training_step, "wrn"),
        (Target(3.5e-3),),
        "a step",
        "cuda",
    ),
    Row(
        "gpu-lenet-step",
        "LeNet, a step of 128 + 128, all included",
        partial(training_step, "lenet"),
        (Target(0.5e-3),),
        "a step",
        "cuda",
    ),
    Row(
        "gpu-fisher",
        "diagonal Fisher of WideResNet-16-4, one backward pass",
        partial(fisher, "wrn"),
        (Target(60e-6),),
        "an image",
        "cuda",
    ),
    Row(
        "gpu-prediction",
        "20 samples of all of WideResNet-16-4's weights, averaged",
        partial(prediction, "wrn"),
        (Target(3e-6),),
        "an image and sample",
        "cuda",
    ),
    Row(
        "gpu-five-lenets",
        "five LeNets, a step of each",
        five_lenets,
        (Target(2.0, "one after another"),),
        "a step",
        "cuda",
    ),
    Row(
        "gpu-smooth-noise",
        "smooth noise for a step",
        smooth_noise,
        (Target(20.0, "a LeNet step"),),
        "a step",
        "cuda",
    ),
    Row(
        "gpu-fashion-mnist",
        "a column of table 2, extrapolated from a step, a Fisher and a prediction",
        partial(column, "lenet", 58_000),
        (Target(360.0),),
        device="cuda",
        rounds=1,
    ),
    Row(
        "gpu-cifar10",
        "a column of table 2, extrapolated from a step, a Fisher and a prediction",
        partial(column, "wrn", 48_000),
        (Target(1680.0),),
        device="cuda",
        rounds=1,
    ),
)
