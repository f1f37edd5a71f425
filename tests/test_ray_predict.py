"""Prediction on a Ray cluster of two nodes, one of which dies halfway. About 20 seconds."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import demur
from demur.scale import fragments
from demur.scale.answering import Job, Outcome, on_this_machine, predict_parts
from demur.scale.fragments import Fragment
from demur.scale.places import locate
from demur.scale.ray_data import hash_model, model_files, on_ray, write_model_files
from tests.ray_nodes import ray_nodes
from tests.serving import images
from tests.test_scale import frame, write_inputs

pytestmark = [  # of Ray itself
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head without a CPU, and two nodes with one each."""
    with ray_nodes(head_cpus=0, others=2) as nodes:
        yield nodes


def test_a_node_killed_halfway_takes_no_answer_with_it(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "image.demur"
    demur.Classifier("map", epochs=1, device="cpu").fit(*images(60)).save(model)
    inputs = locate(str(write_inputs("image", tmp_path / "inputs")))
    monkeypatch.setattr(fragments, "IMAGES_EACH", 4)
    on_cluster, killed = on_ray(model, address=nodes.address), []

    def engine(job: Job, given: Sequence[Fragment]) -> Iterator[Outcome]:
        for number, outcome in enumerate(on_cluster(job, given), 1):
            if number == len(given) // 2:
                import ray

                busy = {
                    actor["Address"]["NodeID"]
                    for actor in ray._private.state.actors().values()
                    if actor["State"] == "ALIVE"
                }
                killed.extend(node for node in nodes.worker_nodes.copy() if node.node_id in busy)
                nodes.remove_node(killed[0], allow_graceful=False)
            yield outcome

    done = predict_parts(inputs, locate(str(tmp_path / "out")), "images", hash_model(model), engine)
    assert killed
    assert (done.parts, done.inputs) == (13, 50)
    classifier = demur.Classifier.load(model, device="cpu")
    predict_parts(inputs, locate(str(tmp_path / "here")), "images", hash_model(model), on_this_machine(classifier))
    there, here = frame(tmp_path / "out"), frame(tmp_path / "here")
    assert there["input"].is_unique
    pd.testing.assert_frame_equal(there, here, rtol=0, atol=1e-5)
    assert not list((tmp_path / "out").glob("_unfinished*"))


def test_a_model_arrives_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.json").write_bytes(b"{}")
    (tmp_path / "file.demur").write_bytes(os.urandom(10))
    for name in ("folder", "file.demur"):
        (tmp_path / f"to-{name}").mkdir()
        there = write_model_files(model_files(tmp_path / name), tmp_path / f"to-{name}")
        assert model_files(there) == model_files(tmp_path / name)
        assert hash_model(there) == hash_model(tmp_path / name)
