"""Two processes train what one trains."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn

from demur import distributed
from demur.checkpoint import checkpointed
from demur.classifier import Classifier
from demur.classifier.readers import open_inputs
from demur.distributed import _message_device, own_part, shared_batch_size, shared_training
from demur.inference import MAP, CyclicalSGHMC, VariationalBayes
from demur.likelihoods import none_class
from demur.networks import HeadedNetwork, mlp
from demur.streams import generator_for
from demur.training_data import Split, TrainingData, WatchedRecipe
from demur.watching import time_limited

LIKELIHOOD = none_class(3)
RECIPE = WatchedRecipe(epochs=3, batch_size=16, lr=0.01, seed=1, patience=2)
PLAIN = ("map", "vb", "csghmc")
ROOT = Path(__file__).parent.parent


def network(num_outputs):
    return mlp(num_outputs, hidden=(16, 16))


def normed(num_outputs):
    return HeadedNetwork(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU()), 8, num_outputs)


def task():
    generator = generator_for("distributed")
    y = torch.arange(90) % 3
    x = torch.randn(90, 2, generator=generator) + y.unsqueeze(1)
    split = Split(x, y)
    return TrainingData(split, split, 4 * torch.randn(50, 2, generator=generator), lambda x, g: x + 0.1)


def trained(folder):
    """What networks say of the training inputs, by name; every process has its own."""
    data = task()
    chain = CyclicalSGHMC(cycles=1, samples_per_cycle=1)
    fits = {
        "map": lambda: MAP().fit(network, LIKELIHOOD, data, RECIPE),
        "vb": lambda: VariationalBayes().fit(network, LIKELIHOOD, data, RECIPE),
        "csghmc": lambda: chain.fit(network, LIKELIHOOD, data, RECIPE),
        "normed": lambda: MAP().fit(normed, LIKELIHOOD, data, RECIPE),
        "timed": lambda: _in_time(data),
        "kept": lambda: _kept(data, folder),
    }
    return {name: fit().logits(data.train.x, 0).tolist() for name, fit in fits.items()}


def _in_time(data):
    with time_limited(0.05 if not dist.is_initialized() or dist.get_rank() == 0 else 100, 1):
        return MAP().fit(network, LIKELIHOOD, data, WatchedRecipe(epochs=10_000, batch_size=16))


def _kept(data, folder):
    (folder / "kept").mkdir(exist_ok=True)
    with checkpointed(folder / "kept"):
        return MAP().fit(network, LIKELIHOOD, data, RECIPE)


def main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    with shared_training():
        (folder / f"{rank}.json").write_text(json.dumps(trained(folder)))
        refused = ""
        try:
            MAP().fit(network, LIKELIHOOD, task(), WatchedRecipe(epochs=1, seed=rank))
        except ValueError as error:
            refused = str(error)
        (folder / f"{rank}.txt").write_text(refused)
    dist.barrier()
    os._exit(0)  # once in many runs torch aborts a process that takes gloo's threads down: "terminate called"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "tests.test_distributed"]
    started = [subprocess.Popen([*command, str(rank), str(folder)], cwd=ROOT) for rank in (0, 1)]
    assert [process.wait(120) for process in started] == [0, 0]
    return folder


@pytest.fixture(scope="module")
def by_rank(folder):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("alone"))


def test_all_processes_have_the_same_network(by_rank):
    assert by_rank[0] == by_rank[1]  # also where their clocks differ


def test_two_processes_train_what_one_trains(by_rank, alone):
    for name in ("map", "vb", "csghmc", "kept"):
        torch.testing.assert_close(torch.tensor(by_rank[0][name]), torch.tensor(alone[name]), rtol=1e-3, atol=1e-4)


def test_batch_norm_sees_parts_of_batches(by_rank, alone):
    """So it is not quite the same network."""
    shared, own = torch.tensor(by_rank[0]["normed"]), torch.tensor(alone["normed"])
    assert 1e-3 < (shared - own).abs().mean() < 0.3 * own.std()


def test_one_process_writes_the_checkpoint(folder):
    assert len(list((folder / "kept").iterdir())) == 1


def test_processes_that_would_train_apart_are_refused(folder):
    for rank in (0, 1):
        assert "do not train alike" in (folder / f"{rank}.txt").read_text()


def test_without_a_group_it_says_what_to_do():
    with pytest.raises(ValueError, match="torchrun"), shared_training():
        pass


def test_alone_a_process_is_the_first_of_one():
    assert distributed.is_first()
    assert distributed.num_processes() == 1
    assert shared_batch_size(1) == 1


def test_parts_make_up_the_batch(monkeypatch):
    x, y = torch.arange(8), torch.arange(4)
    assert torch.equal(own_part(x, y)[0], x)  # alone
    monkeypatch.setattr("demur.distributed.num_processes", lambda: 3)
    assert shared_batch_size(10) == 9
    with pytest.raises(ValueError, match="cannot be shared by 3 processes"):
        shared_batch_size(2)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Exit codes, standard output and errors of two processes as torchrun starts them, of good input and of bad."""
    folder = tmp_path_factory.mktemp("commands")
    rows = "".join(f"{i % 7},{i % 5 + 9 * (i % 2)},{'ab'[i % 2]}\n" for i in range(80))
    (folder / "good.csv").write_text("length,width,label\n" + rows)
    (folder / "bad.csv").write_text("length,width\n1,2\n")
    started = {}
    for name in ("good", "bad"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {"TORCHELASTIC_RUN_ID": name, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-m", "demur", "fit", f"{name}.csv", "--out", f"{name}_model", "--epochs", "3"]
        started[name] = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in "01"
        ]
    said = {name: [process.communicate(timeout=120) for process in both] for name, both in started.items()}
    return folder, {name: [process.returncode for process in both] for name, both in started.items()}, said


def test_fit_by_two_processes_writes_one_model_and_speaks_once(commands):
    folder, codes, said = commands
    assert codes["good"] == [0, 0], said["good"]
    first, second = said["good"]
    assert first[0].count("wrote good_model") == 1
    assert second == ("", "")
    both = Classifier.load(folder / "good_model")
    alone = Classifier(epochs=3, device="cpu").fit(*read_rows(folder / "good.csv"))
    rows = read_rows(folder / "good.csv")[0]
    assert np.allclose(both.predict_proba(rows), alone.predict_proba(rows), atol=1e-3)


def test_fit_by_two_processes_reports_bad_input_once(commands):
    folder, codes, said = commands
    assert codes["bad"] == [2, 2], said["bad"]
    assert sum(err.count("demur: ") for _, err in said["bad"]) == 1
    assert not any("Traceback" in err for _, err in said["bad"])
    assert not (folder / "bad_model").exists()


def read_rows(path):
    given = open_inputs(path, labelled=True).gather()
    return given.x, given.y


def test_messages_go_where_the_backend_sends_from(monkeypatch):
    for backend, device in (("nccl", "cuda"), ("gloo", "cpu"), ("undefined", "cpu")):  # undefined: one a device
        monkeypatch.setattr(dist, "get_backend", lambda said=backend: said)
        assert _message_device() == device


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))


@pytest.fixture
def second_of_two(monkeypatch):
    """As if this process were the second of two, the first of which has ones wherever this one has other values."""
    token = distributed._rank_and_count.set((1, 2))
    monkeypatch.setattr(distributed.dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda flat: flat.add_(1))
    monkeypatch.setattr(
        distributed.dist, "broadcast", lambda value, source: value.fill_(1 if source == 0 else math.nan)
    )
    yield
    distributed._rank_and_count.reset(token)


def test_each_has_its_part_of_the_inliers_and_of_the_outliers_behind_them(second_of_two):
    assert not distributed.is_first()
    x, y = torch.arange(16).view(8, 2), torch.arange(4)
    part, labels = own_part(x, y)
    assert part.tolist() == [[2, 3], [6, 7], [10, 11], [14, 15]]
    assert labels.tolist() == [1, 3]
    assert own_part(x[:4], y)[0].tolist() == [[2, 3], [6, 7]]


def test_gradients_and_statistics_are_averaged_and_what_has_no_gradient_is_left(second_of_two):
    model = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(3)])
    model[0].weight.grad, model[0].bias.grad = torch.tensor([[3.0, 5.0]]), torch.tensor([9.0])
    assert distributed.average_gradients(model, torch.tensor(7.0)) == 4
    assert model[0].weight.grad.tolist() == [[2, 3]]
    assert model[0].bias.grad.tolist() == [5]
    assert model[1].weight.grad is None
    distributed.average_statistics(model)
    assert model[2].running_mean.tolist() == [0.5] * 3
    assert model[2].running_var.tolist() == [1] * 3
    assert distributed.as_the_first_says(0.5, 3) == (1, 1)


@pytest.mark.parametrize("of_the_first", [5, 6])
def test_networks_start_as_the_firsts_if_all_come_with_the_same(second_of_two, monkeypatch, of_the_first):
    def gather(every, own):
        every[0].fill_(of_the_first)
        every[1].copy_(own)

    monkeypatch.setattr(distributed.dist, "all_gather", gather)
    model = torch.nn.Linear(2, 1)
    if of_the_first == 6:
        with pytest.raises(ValueError, match=r"do not train alike .*: \[6\], \[5\]"):
            distributed.start_alike(model, 5)
        return
    distributed.start_alike(model, 5)
    assert model.weight.tolist() == [[1, 1]]
