"""Whole training steps as CUDA graphs, of several networks side by side, and what can be compiled."""

import logging
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from demur.distributed import num_processes

logger = logging.getLogger(__name__)

WORTH_COMPILING = 20_000  # steps; it takes some 20 s, and then saves up to a millisecond in each


def can_compile(model: nn.Module) -> bool:
    """Whether torch.compile has its tools, and the model is of a kind that gains from it."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return not recurrent and compiler is not None and find_spec("triton") is not None


def compiled(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Its forward pass, compiled anew for every head and size of batch that a study has of one network."""
    forward = torch.compile(model, dynamic=False)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.config.patch(recompile_limit=64):
            logits: torch.Tensor = forward(x)
        return logits

    return call


class Step(Protocol):
    """A network in training, of which a call takes one step."""

    device: torch.device

    @property
    def settings(self) -> list[dict[str, object]]: ...

    @property
    def generator(self) -> torch.Generator: ...

    def __call__(self) -> None: ...


class Recorded:
    """Steps of several learners, side by side: on a GPU recorded as one CUDA graph after a few plain ones.

    Replayed, they cost the host next to nothing. Steps that wait for the host, or draw random numbers there, cannot be
    recorded and stay plain; what is computed is the same either way, up to how convolutions are rounded.
    """

    PLAIN = 3  # steps in which libraries and optimiser set themselves up

    def __init__(self, learners: Sequence[Step]) -> None:
        self.learners = learners
        self.settings = [learner.settings for learner in learners]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.plain_steps = 0
        self.device = learners[0].device
        self.recordable = self.device.type == "cuda" and num_processes() == 1
        self.streams = [torch.cuda.Stream(self.device) for _ in learners] if self.recordable else []

    def unless_changed(self) -> "Recorded":
        """Itself, or a fresh one where the optimisers' settings are no longer those that were recorded."""
        return self if self.settings == [learner.settings for learner in self.learners] else Recorded(self.learners)

    def __call__(self) -> None:
        with torch.cuda.device(self.device) if self.streams else nullcontext():
            if self.graph is None and self.recordable:
                with fastest_convolutions():
                    if self.plain_steps < self.PLAIN:
                        self.plain_steps += 1
                        self.recordable = not needs_host(self._side_by_side) or self.plain_steps == 1
                        return
                    self._record()
            if self.graph is not None:
                self.graph.replay()
            else:
                self._side_by_side()

    def _side_by_side(self) -> None:
        if not self.streams:
            for learner in self.learners:
                learner()
            return
        main = torch.cuda.current_stream()
        for learner, stream in zip(self.learners, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                learner()
        for stream in self.streams:
            main.wait_stream(stream)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for learner in self.learners:
            graph.register_generator_state(learner.generator)
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(self.device)):
                self._side_by_side()
        except RuntimeError as reason:  # nothing has been run yet
            logger.info("steps cannot be recorded (%s); they are taken one by one", reason)
            self.recordable = False
        else:
            self.graph = graph


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Have cuDNN try its ways of computing a convolution when it first meets it; a recording keeps what it chose.

    Not where the same bits are wanted every time.
    """
    before = torch.backends.cudnn.benchmark
    repeatable = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.benchmark = before or not repeatable
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def of_start_up(message: object) -> bool:
    """What CUDA's libraries say of their own start-up, which is of no use to anybody."""
    return any(known in str(message) for known in ("TensorFloat32", "cuBLAS"))


def needs_host(step: Callable[[], None]) -> bool:
    """Take the step, and see whether it waited for the host, or drew random numbers there."""
    mode, randomness = torch.cuda.get_sync_debug_mode(), _host_randomness()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    waited = [warning for warning in caught if "synchronizing" in str(warning.message)]
    for warning in caught:
        if warning not in waited and not of_start_up(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return bool(waited) or randomness != _host_randomness()


def _host_randomness() -> tuple[object, ...]:
    legacy: Any = np.random.get_state()  # noqa: NPY002 (others may draw from it)
    return torch.get_rng_state().tolist(), random.getstate(), legacy[1].tolist(), legacy[2]
