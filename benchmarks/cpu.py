"""The rows of a CPU. Seconds depend on the machine; ratios, taken in one run, much less."""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset

import demur
from benchmarks.frame import Conditions, Contestant, Reading, Row, Skipped, Target, timed
from benchmarks.problems import COLOUR, GREY, NUM_CLASSES, images, random_task
from demur.inference.fisher import diagonal_fisher
from demur.inference.kronecker import kronecker_factors
from demur.likelihoods import none_class
from demur.metrics import Separation
from demur.networks import as_input, lenet, wide_resnet
from demur.posterior import Gaussian, Point
from demur.predictive import predict
from demur.training import train
from demur.training_data import Recipe

BATCH = 128
EVER = 10**6  # epochs; a benchmark stops when it has seen enough
NETWORKS: Mapping[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "lenet": (lenet, GREY),
    "wrn": (wide_resnet, COLOUR),
}


def fresh(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name][0](NUM_CLASSES + 1)


def as_usual(model: nn.Module) -> nn.Module:
    """In torch's own memory layout, as a user who knows of no other has it."""
    for p in model.parameters():
        p.data = torch.empty(p.shape).copy_(p.data)  # contiguous() leaves the strides of a single channel as they are
    return model


# training ----------------------------------------------------------------------------------------------------------


class Transformed(Dataset[tuple[Tensor, Tensor]]):
    """Images as PIL transforms make them ready, one at a time: half of them cropped after padding, then a tensor."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.images = [Image.fromarray(one.permute(1, 2, 0).squeeze(2).numpy()) for one in x]
        self.y = y

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if image.mode == "RGB":
            image = image.convert("L")
            if random.random() < 0.5:
                image = random_crop(ImageOps.expand(image, 2), 28)
            else:
                image = image.resize((28, 28), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = random_crop(ImageOps.expand(image, 2), 28)
        return torch.from_numpy(np.array(image, dtype=np.uint8)).unsqueeze(0).float().div(255), self.y[index]


def random_crop(image: Image.Image, size: int) -> Image.Image:
    left, top = (random.randrange(side - size + 1) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def plain_lenet(num_outputs: int) -> nn.Module:
    """The same network as it is usually written."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Linear(1024, num_outputs),
    )


def lenet_training(conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    steps, batch = (1, 4) if conditions.small else (20, BATCH)
    task, likelihood = random_task(steps * batch, GREY), none_class(NUM_CLASSES)
    ours = train(fresh("lenet"), likelihood, task.training, Recipe(epochs=EVER, batch_size=batch))

    outliers = images(steps * batch, COLOUR)
    loaders = [
        DataLoader(Transformed(x, y), batch, shuffle=True)
        for x, y in (
            (task.training.train.x, task.training.train.y),
            (outliers, torch.full((len(outliers),), NUM_CLASSES)),
        )
    ]
    model = plain_lenet(NUM_CLASSES + 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=5e-4)

    def eager_epoch() -> None:
        for (x, y), (x_out, y_out) in zip(*loaders, strict=True):
            logits = model(torch.cat([x, x_out]))
            loss = nn.functional.cross_entropy(logits[:batch], y) + nn.functional.cross_entropy(logits[batch:], y_out)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def our_epoch() -> None:
        next(ours)

    return {
        "demur": lambda: timed(our_epoch, units=steps),
        "DataLoader, PIL, eager": lambda: timed(eager_epoch, units=steps),
    }


def two_processes(conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    """Two networks to train: both at once on a thread each, or one after the other on two threads."""
    context, steps = get_context("spawn"), 2 if conditions.small else 30

    def pool(processes: int, threads: int) -> Contestant:
        workers = stack.enter_context(ProcessPoolExecutor(processes, context, torch.set_num_threads, (threads,)))

        def turn() -> Reading:
            started = time.perf_counter()
            list(workers.map(train_some, [steps, steps]))
            return Reading(time.perf_counter() - started)

        return turn

    return {
        "two processes, a thread each": pool(2, 1),
        "one process, two threads": pool(1, 2),
        "two processes, two threads each": pool(2, 2),
    }


def train_some(steps: int) -> None:
    task = random_task(steps * BATCH, GREY)
    next(train(fresh("lenet"), none_class(NUM_CLASSES), task.training, Recipe(epochs=1, batch_size=BATCH)))


# start-up ----------------------------------------------------------------------------------------------------------


def in_python(code: str, *arguments: str, says: bool = False) -> Reading:
    """Seconds that a fresh interpreter takes; or, if it says so itself, those that the code writes."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - started
    return Reading(json.loads(done.stdout) if says else seconds)


FIRST_STEP = f"""
from dataclasses import replace
from demur import Recipe, Split, lenet, none_class
from benchmarks.problems import GREY, random_task
from demur.training import train
task = random_task(60_000, GREY)
one_batch = replace(task, train=Split(task.training.train.x[:128], task.training.train.y[:128]))
next(train(lenet({NUM_CLASSES + 1}), none_class({NUM_CLASSES}), one_batch, Recipe(epochs=1)))
"""
HELP = "from demur.cli import main; main()"
IMPORT = """
import time, torch
started = time.perf_counter()
import demur
for name in demur.__all__: getattr(demur, name)
print(time.perf_counter() - started)
"""


def start_up(conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    return {"demur": lambda: in_python(FIRST_STEP)}


def help_text(conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    return {"demur": lambda: in_python(HELP, "--help")}


def importing(conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    return {"demur": lambda: in_python(IMPORT, says=True)}


# curvature ---------------------------------------------------------------------------------------------------------


def fisher(
    network: str, ours: str, backends: tuple[str, ...], count: int, conditions: Conditions, stack: ExitStack
) -> dict[str, Contestant]:
    """Ours and back ends of laplace-torch on the same images, each in its own process."""
    python = conditions.laplace_python
    if python is None and subprocess.run([sys.executable, "-c", "import laplace"], capture_output=True).returncode:
        raise Skipped(
            "needs laplace-torch: pip install laplace-torch in an environment of its own, pip uninstall torchvision "
            "there (or nothing imports), and name its python with --laplace-python"
        )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    pythons = {ours: sys.executable} | dict.fromkeys(backends, python or sys.executable)
    count = 4 if conditions.small else count
    return {name: worker(stack, its, network, name, count, folder / f"{name}.npy") for name, its in pythons.items()}


def worker(stack: ExitStack, python: str, network: str, contestant: str, count: int, result: Path) -> Contestant:
    root = Path(demur.__file__).parents[1]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); from benchmarks.fisher_worker import serve; "
        f"serve({network!r}, {contestant!r}, {count}, {torch.get_num_threads()}, {str(result)!r})"
    )
    process = subprocess.Popen([python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    assert process.stdin is not None
    assert process.stdout is not None
    into, out = process.stdin, process.stdout
    stack.callback(into.close)

    def turn() -> Reading:
        into.write("\n")
        into.flush()
        answer = out.readline()
        if not answer:
            raise Skipped(f"{contestant} failed in {python}; what it said is above")
        return Reading(**json.loads(answer), result=torch.from_numpy(np.load(result, allow_pickle=False)) / count)

    return turn


def kronecker(network: str, count: int, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    """Both kinds of curvature by the same estimator: one backward pass of random signs."""
    count = 4 if conditions.small else count
    model, root = fresh(network).eval(), none_class(NUM_CLASSES).fisher_root
    x, signs = as_input(images(count, NETWORKS[network][1])), torch.ones(count, NUM_CLASSES + 1)

    def factors() -> None:
        kronecker_factors(model, root, x, signs=signs)

    def diagonal() -> None:
        diagonal_fisher(model, root, x, signs=signs)

    return {
        "Kronecker factors": lambda: timed(factors, units=count),
        "diagonal": lambda: timed(diagonal, units=count),
    }


# prediction --------------------------------------------------------------------------------------------------------


def gaussian(model: nn.Module, num_samples: int, over_head: bool = False) -> Gaussian:
    chosen = {n: torch.full_like(p, 1e-4) for n, p in model.named_parameters() if not over_head or n.startswith("head")}
    return Gaussian(model.eval(), chosen, num_samples, over_head=over_head)


@torch.no_grad()
def functional_loop(posterior: Gaussian, x: Tensor) -> Tensor:
    """What one writes with torch.func."""
    total = torch.zeros(len(x), NUM_CLASSES + 1, device=x.device)
    for sample in range(posterior.num_samples):
        parameters = posterior.parameters_at(sample)
        for start in range(0, len(x), BATCH):
            logits = functional_call(posterior.network, parameters, (as_input(x[start : start + BATCH]),))
            total[start : start + BATCH] += logits.softmax(1) / posterior.num_samples
    return total[:, :NUM_CLASSES]


def prediction(network: str, count: int, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    samples, count = (2, 8) if conditions.small else (20, count)
    x = images(count, NETWORKS[network][1])
    likelihood, posterior = none_class(NUM_CLASSES), gaussian(fresh(network), samples)
    usual = gaussian(as_usual(fresh(network)), samples)
    each = partial(timed, units=count * samples)
    return {
        "demur": lambda: each(lambda: predict(posterior, likelihood, x).probs),
        "functional_call loop": lambda: each(lambda: functional_loop(usual, x)),
        "functional_call loop, our network": lambda: each(lambda: functional_loop(posterior, x)),
    }


def head_prediction(network: str, count: int, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    samples, count = (5, 8) if conditions.small else (200, count)
    x, likelihood, model = images(count, NETWORKS[network][1]), none_class(NUM_CLASSES), fresh(network).eval()
    posterior = gaussian(model, samples, over_head=True)

    def one_pass() -> None:
        predict(Point(model), likelihood, x)

    def of_head() -> None:
        predict(posterior, likelihood, x)

    return {
        "200 samples of the head": lambda: timed(of_head, units=count),
        "one forward pass": lambda: timed(one_pass, units=count),
    }


# metrics -----------------------------------------------------------------------------------------------------------


def metrics(tied: bool, conditions: Conditions, stack: ExitStack) -> dict[str, Contestant]:
    generator, count = np.random.default_rng(0), 1_000 if conditions.small else 500_000
    inside, outside = generator.normal(1, 1, count), generator.normal(0, 1, count)
    if tied:
        inside, outside = inside.round(2), outside.round(2)
    truth, values = np.repeat([1, 0], count), np.concatenate([inside, outside])

    def ours() -> Tensor:
        found = Separation(inside, outside)
        return torch.tensor([found.auroc, found.aupr, found.fpr95], dtype=torch.float64)

    def theirs() -> Tensor:
        share, _, thresholds = roc_curve(truth, values, drop_intermediate=False)
        passing = share[thresholds >= np.quantile(inside, 0.05)][-1]
        found = [roc_auc_score(truth, values), average_precision_score(truth, values), passing]
        return torch.tensor(found, dtype=torch.float64)

    return {"demur": lambda: timed(ours), "scikit-learn": lambda: timed(theirs)}


ROWS = (
    Row(
        "lenet-training",
        "train LeNet on 128 inliers and 128 outliers, augmented",
        lenet_training,
        (Target(4.0, "DataLoader, PIL, eager"),),
        "a step",
    ),
    Row("start-up", "import, 60,000 images and as many outliers, first step of LeNet", start_up, (Target(6.0),)),
    Row("help", "demur --help", help_text, (Target(0.3),)),
    Row("import", "import every public name, beyond torch itself", importing, (Target(2.5),)),
    Row(
        "fisher-lenet",
        "diagonal Fisher of LeNet, one backward pass",
        partial(fisher, "lenet", "demur sampled", ("AsdlEF", "BackPackEF"), 512),
        (Target(2.0, "AsdlEF"), Target(2.0, "BackPackEF"), Target(1.0, "AsdlEF", "memory")),
        "an image",
    ),
    Row(
        "fisher-lenet-exact",
        "diagonal Fisher of LeNet, exact",
        partial(fisher, "lenet", "demur exact", ("AsdlGGN", "BackPackGGN"), 128),
        (),
        "an image",
    ),
    Row(
        "fisher-lenet-default",
        "the same beside laplace-torch's default back end, of few images: it takes 400 MiB for each",
        partial(fisher, "lenet", "demur exact", ("CurvlinopsGGN",), 8),
        (Target(20.0, "CurvlinopsGGN"), Target(1.0, "CurvlinopsGGN", "memory")),
        "an image",
    ),
    Row(
        "fisher-wrn",
        "diagonal Fisher of WideResNet-16-4, one backward pass",
        partial(fisher, "wrn", "demur sampled", ("CurvlinopsEF", "AsdlEF"), 128),
        (Target(1.8, "CurvlinopsEF"), Target(1.0, "CurvlinopsEF", "memory")),
        "an image",
    ),
    *(
        Row(
            f"kronecker-{short}",
            f"Kronecker factors of {name}'s Fisher beside its diagonal, one backward pass",
            partial(kronecker, short, count),
            (),
            "an image",
        )
        for short, name, count in (("lenet", "LeNet", 512), ("wrn", "WideResNet-16-4", 32))
    ),
    Row(
        "prediction-lenet",
        "20 samples of all LeNet's weights, averaged",
        partial(prediction, "lenet", 1024),
        (Target(1.5, "functional_call loop"),),
        "an image and sample",
    ),
    Row(
        "prediction-wrn",
        "20 samples of all of WideResNet-16-4's weights, averaged",
        partial(prediction, "wrn", 128),
        (Target(1.2, "functional_call loop"),),
        "an image and sample",
    ),
    Row(
        "head-wrn",
        "200 samples of WideResNet-16-4's head, averaged",
        partial(head_prediction, "wrn", 512),
        (Target(1 / 1.1, "one forward pass"),),
        "an image",
    ),
    Row(
        "head-lenet",
        "200 samples of LeNet's head, averaged",
        partial(head_prediction, "lenet", 4096),
        (Target(1 / 1.1, "one forward pass"),),
        "an image",
    ),
    Row(
        "two-processes",
        "train two LeNets",
        two_processes,
        (Target(1.27, "one process, two threads"),),
    ),
    Row(
        "metrics",
        "AUROC, AUPR and FPR95 of a million scores",
        partial(metrics, False),
        (Target(5.0, "scikit-learn"),),
    ),
    Row(
        "metrics-ties",
        "the same of scores with two decimals",
        partial(metrics, True),
        (Target(5.0, "scikit-learn"),),
    ),
)
