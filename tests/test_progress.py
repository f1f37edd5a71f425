"""Signs of life: what is said of training, when, and to whom."""

import io
import threading
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from demur import training
from demur.cli import progress
from demur.cli.progress import Training, duration
from demur.inference import MAP
from demur.likelihoods import plain
from demur.training import EpochReport
from demur.training_data import Recipe


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_time_left_is_what_the_rest_takes_at_the_same_pace(clock):
    told = Training(networks=1)
    told.update(EpochReport(1, 10, 2.0))
    assert told.status == "epoch 1/10, loss 2.000"
    clock[0] += 30
    told.update(EpochReport(4, 10, 0.5))
    assert told.status == "epoch 4/10, loss 0.500, about 60 s left"
    clock[0] += 5
    told.update(EpochReport(5, 10, 0.25), share=0.5)
    assert told.status == "epoch 5/10, loss 0.250, about 55 s left"


def test_several_networks_are_counted_and_the_time_left_is_for_all(clock):
    told = Training(networks=3)
    for _ in range(2):
        for epoch in (1, 2):
            told.update(EpochReport(epoch, 2, 1.0))
            clock[0] += 600
    told.update(EpochReport(1, 2, 1.0))
    assert told.status == "network 3/3, epoch 1/2, loss 1.000, about 10 min left"
    assert told.part == pytest.approx(5 / 6)


@pytest.mark.parametrize(("seconds", "said"), [(5.4, "5 s"), (119, "119 s"), (150, "2 min"), (7300, "2 h")])
def test_durations_are_in_round_units(seconds, said):
    assert duration(seconds) == said


class Clock:
    """An event that nobody waits for: it counts how long would have been waited, and is set after two waits."""

    def __init__(self):
        self.waited = []

    def wait(self, seconds):
        self.waited.append(seconds)
        return len(self.waited) > 2

    def set(self):
        pass


def test_where_there_is_no_terminal_a_line_is_printed_now_and_then(monkeypatch, capsys):
    event = Clock()
    monkeypatch.setattr(progress, "threading", SimpleNamespace(Event=lambda: event, Thread=threading.Thread))
    with progress.repeat_line(lambda: "reading x.csv", quiet=False):
        pass
    assert event.waited == [progress.FIRST_LINE, progress.NEXT_LINES, progress.NEXT_LINES]
    assert capsys.readouterr() == ("", "demur: reading x.csv\n" * 2)
    with progress.repeat_line(lambda: "reading x.csv", quiet=True):
        pass
    assert capsys.readouterr() == ("", "")


def test_what_is_said_is_what_is_trained(monkeypatch, task, network):
    monkeypatch.setattr(training, "SECONDS_BETWEEN", float("inf"))  # nothing from within an epoch, however slow
    lines = []
    console = Console(file=io.StringIO())
    with progress.progress(console, "reading", networks=1) as describe:
        describe("clouds map")
        update = Training.update
        monkeypatch.setattr(Training, "update", lambda self, *args: (update(self, *args), lines.append(self.status)))
        MAP().fit(network, plain(3), task.training, Recipe(epochs=2, batch_size=32))
    assert [line.split(", loss")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]


def test_long_epochs_are_told_of_from_within(monkeypatch, task, network):
    monkeypatch.setattr(training, "SECONDS_BETWEEN", -1.0)
    within, after = [], []
    with training.observed(after.append, lambda report, share: within.append((report.epoch, share, report.loss))):
        MAP().fit(network, plain(3), task.training, Recipe(epochs=2, batch_size=32))
    assert [(epoch, share) for epoch, share, _ in within] == [(e, n / 3) for e in (1, 2) for n in (1, 2, 3)]
    assert [report.loss for report in after] == [loss for _, share, loss in within if share == 1]
    told = torch.tensor([loss for _, _, loss in within])
    assert told.isfinite().all()
