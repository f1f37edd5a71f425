"""The server on Ray Serve: two replicas, one of which is killed while requests come. About 25 seconds."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import demur
from demur.serving.app import Settings
from demur.serving.limits import Limits
from demur.serving.replicas import served_on_ray, with_room
from demur.serving.running import bound
from experiments.fuzz import called
from tests.ray_nodes import ray_nodes
from tests.serving import ask, table

TOKEN = {"authorization": "Bearer correct-horse"}
INPUTS = {"high": [2.0, 2.0, 2.0], "low": [-2.0, -2.0, -2.0]}
LAST = 60.0  # seconds after which a request is given up

pytestmark = [  # of Ray itself
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "table.demur"
    demur.Classifier("map", epochs=30, device="cpu").fit(*table(200)).save(path)
    return path


@pytest.fixture(scope="module")
def port(model: Path) -> Iterator[int]:
    with bound("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    settings = Settings(limits=replace(Limits(), inputs=4), token="correct-horse")
    with (
        ray_nodes(head_cpus=2, others=0) as nodes,
        served_on_ray({"table": model}, settings, ("127.0.0.1", port), 2, nodes.address),
    ):
        yield port


def processes_of_replicas() -> set[int]:
    import ray

    actors = ray._private.state.actors().values()
    return {each["Pid"] for each in actors if "Replica" in each["ActorClassName"] and each["State"] == "ALIVE"}


def test_a_replica_answers_as_one_server_does(port: int, model: Path) -> None:
    status, said, _ = ask(port, "/v1/predict", {"inputs": [*INPUTS.values()]}, TOKEN)
    assert (status, [answer["label"] for answer in said["answers"]]) == (200, [*INPUTS])
    score = demur.Classifier.load(model, device="cpu").outlier_score(
        pd.DataFrame([*INPUTS.values()], columns=["a", "b", "c"])
    )
    assert [answer["outlier_score"] for answer in said["answers"]] == pytest.approx(score, abs=1e-5)
    assert ask(port, "/v1/predict", {"inputs": [INPUTS["low"]]})[0] == 401
    assert ask(port, "/v1/predict", {"inputs": [INPUTS["low"]] * 5}, TOKEN)[0] == 422
    assert ask(port, "/v2/models/table/ready", None, TOKEN)[0] == 200
    assert b"demur_requests_total" in ask(port, "/metrics", None, TOKEN)[1]
    assert ask(port, "/v1/monitor", None, TOKEN)[1]["table"]["level"] == 0.005  # two share one percent


def test_a_replica_killed_under_load_costs_no_request_that_is_sent_again(port: int) -> None:
    answered, killed, before = list[str](), threading.Event(), processes_of_replicas()
    assert len(before) == 2

    def one(number: int) -> Mapping[str, Any]:
        label, own, began = [*INPUTS][number % 2], f"r{number}", time.monotonic()
        if number == 60:
            os.kill(min(before), signal.SIGKILL)
            killed.set()
        while time.monotonic() - began < LAST:
            try:
                status, said, headers = ask(
                    port, "/v1/predict", {"inputs": [INPUTS[label]]}, TOKEN | {"x-request-id": own}
                )
            except OSError:
                continue
            if status == 200:
                assert said["answers"][0]["label"] == label
                answered.append(headers["x-request-id"])
                break
            assert status in (500, 503), said
        return said

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(200)))
    assert killed.is_set()
    assert sorted(answered) == sorted(f"r{number}" for number in range(200))
    deadline = time.monotonic() + 3 * LAST  # a process that imports torch, on a machine that may be busy
    while len(processes_of_replicas() - {min(before)}) < 2:
        assert time.monotonic() < deadline, "no other replica was started"
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("device", "replicas", "says"),
    [
        ("cpu", 3, "replicas 3 need a CPU each, and the Ray cluster has 2"),
        ("cuda", 1, "needs a GPU, and the Ray cluster has none"),
        ("cuda:1", 1, "'cuda:1' is not for a cluster"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(device: str, replicas: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        with_room(device, replicas, {"CPU": 2.0})
    assert with_room("auto", 2, {"CPU": 2.0}) == "cpu"
    assert with_room("auto", 2, {"CPU": 2.0, "GPU": 2.0}) == "cuda"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--engine", "rey"], "unknown engine 'rey'; there are here and ray"),
        (["--replicas", "2"], "replicas 2 is for Ray; add --engine ray"),
        (["--address", "x:1"], "address 'x:1' is for Ray; add --engine ray"),
        (["--engine", "ray", "--port", "0", "--address", "127.0.0.1:1"], "no Ray cluster answers"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options: list[str], says: str, model: Path) -> None:
    code, said = called("serve", model, *options)
    assert (code, len(said.strip().splitlines())) == (2, 1), said
    assert says in said


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'demur\[ray\]'"), served_on_ray({}, Settings(), ("", 0), 1):
        pass
