"""The server answers as the model does, refuses in one sentence what it cannot read, and is never left hanging."""

import asyncio
import base64
import gc
import os
import select
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import demur
from demur.posterior import Mixture, fewer_samples, keep_samples, kept_bytes
from demur.serving import protocol, running
from demur.serving.app import Settings
from demur.serving.batching import Batcher, Batching, Busy
from demur.serving.guard import is_local
from demur.serving.hosted import Hosted, Hosting, named_models
from demur.serving.instruments import Instruments
from demur.serving.limits import Limits
from tests.serving import ask, images, inputs_for, png, raw_socket, save_models, served, table

TENSOR = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 3], "data": [2, 2, 2]}]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def port(models):
    with served(models) as (port, _):
        yield port


@pytest.mark.parametrize("name", ["table", "image", "text"])
def test_answers_are_the_models_own(models, port, name):
    status, said, headers = ask(port, "/v1/predict", {"model": name, "inputs": inputs_for(name)})
    assert status == 200, said
    assert headers["x-request-id"]
    model = demur.Classifier.load(models[name], device="cpu")
    by_kind = {
        "table": lambda: table(2)[0].assign(a=[2.0, -2.0], b=[2.1, -1.9], c=[1.9, -2.2]),
        "image": lambda: images(2)[0],
        "text": lambda: ["wave ship tide gull sand salt", "oven bread soup plate spoon salt"],
    }
    expected = model.predict_all(by_kind[name]())
    for row, answer in enumerate(said["answers"]):
        assert answer["decision"] == expected.decision[row]
        assert answer["label"] == expected.label[row]
        assert answer["probability"] == pytest.approx(expected.probability[row], abs=1e-6)
        assert answer["outlier_score"] == pytest.approx(expected.outlier_score[row], abs=1e-6)
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        abstained = answer["outlier_score"] > answer["threshold"]
        assert (answer["accepted_if"] is not None) == abstained == (answer["decision"] in ("unsure", "unknown"))


def test_a_far_input_is_unknown_and_the_answer_says_what_would_have_accepted_it(port):
    _, said, _ = ask(port, "/v1/models/table/predict", {"inputs": [[1e3, -1e3, 1e3]]})
    assert said["answers"][0]["decision"] == "unknown"
    assert "threshold" in said["answers"][0]["accepted_if"]


def test_images_come_as_files_of_a_form_or_alone(port):
    (first, second), boundary = images(2)[0], "0123456789"
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{n}.png"\r\n\r\n'.encode()
        + png(image[0])
        for n, image in enumerate((first, second))
    ]
    body = b"\r\n".join([*parts, f"--{boundary}--\r\n".encode()])
    kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
    status, in_form, _ = ask(port, "/v1/models/image/predict", body, kind)
    assert status == 200, in_form
    _, alone, _ = ask(port, "/v1/models/image/predict", png(second[0]), {"content-type": "image/png"})
    _, as_json, _ = ask(port, "/v1/models/image/predict", {"inputs": inputs_for("image")})
    assert [answer["label"] for answer in in_form["answers"]] == ["above", "below"]
    for row, answer in enumerate(in_form["answers"]):
        assert answer["outlier_score"] == pytest.approx(as_json["answers"][row]["outlier_score"], rel=1e-4, abs=1e-6)
    assert alone["answers"][0]["label"] == "below"


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/predict", {"inputs": [1]}, 404, "no model is named; there are table, image, text"),
        ("/v1/predict", {"model": "nobody", "inputs": [1]}, 404, "is not served"),
        ("/v1/models/table/predict", {}, 422, 'no "inputs"'),
        ("/v1/models/table/predict", {"inputs": []}, 422, "at least one"),
        ("/v1/models/table/predict", {"inputs": {"a": 1}}, 422, "give a list"),
        ("/v1/models/table/predict", {"inputs": [{"a": 1, "b": 2}]}, 422, "no column 'c'"),
        ("/v1/models/table/predict", {"inputs": [[1, 2]]}, 422, "3"),
        ("/v1/models/table/predict", b'{"inputs": [[1, 2, 1e999]]}', 422, "column 'c'"),
        ("/v1/models/table/predict", {"inputs": [[1, 2, 10**400]]}, 422, "column 'c'"),
        ("/v1/models/table/predict", {"inputs": [[1, 2, True]]}, 422, "column 'c'"),
        ("/v1/models/table/predict", b"\xff\xfe", 422, "no JSON"),
        ("/v1/models/table/predict", b"[" * 100_000, 422, "nested too deeply"),
        ("/v1/models/table/predict", {"inputs": [[1, 2, 3]] * 300}, 422, "at most 256"),
        ("/v1/models/text/predict", {"inputs": [3]}, 422, "no text"),
        ("/v1/models/text/predict", {"inputs": ["a" * 70_000]}, 422, "letters"),
        ("/v1/models/image/predict", {"inputs": ["%%%"]}, 422, "no base64"),
        ("/v1/models/image/predict", {"inputs": ["aGVsbG8="]}, 422, "input 1 cannot be read as an image"),
        ("/v1/models/image/predict", {"inputs": [None]}, 422, "no image"),
        ("/v1/nothing", {"inputs": []}, 404, "see /docs"),
        ("/v2/models/table/infer", {"inputs": []}, 422, "one tensor"),
        ("/v2/models/table/infer", {"inputs": [{"datatype": ["FP64"], "shape": [1], "data": [1]}]}, 422, "not known"),
        ("/v2/models/table/infer", {**TENSOR, "outputs": [{"name": ["label"]}]}, 422, "a list of names"),
        ("/v2/models/table/infer", {**TENSOR, "outputs": [{"name": "label"}] * 2}, 422, "twice"),
        ("/v2/models/table/versions/7/infer", {"inputs": []}, 404, "has version"),
    ],
)
def test_bad_input_gets_one_sentence(port, path, body, status, said):
    found, answer, _ = ask(port, path, body)
    assert (found, list(answer)) == (status, ["error"]), answer
    assert said in answer["error"]
    assert "Traceback" not in answer["error"]
    assert "\n" not in answer["error"]


def test_health_metadata_metrics_and_documentation_are_there(port):
    assert ask(port, "/v2/health/live")[1] == {"live": True}
    assert ask(port, "/v2/health/ready")[0] == 200
    assert ask(port, "/v2/models/image")[1]["inputs"][0]["shape"] == [-1, 1, 16, 16]
    ask(port, "/v1/models/table/predict", {"inputs": [[2.0, 2.0, 2.0]]})
    metrics = ask(port, "/metrics")[1].decode()
    assert 'demur_decisions_total{decision="label",model="table"}' in metrics
    assert 'demur_monitor_evidence{model="table"}' in metrics
    docs = ask(port, "/docs")[1].decode()
    assert "/v1/predict" in docs
    assert "//cdn" not in docs
    assert {model["kind"] for model in ask(port, "/v1/models")[1]} == {"tables", "images", "texts"}
    assert set(ask(port, "/v1/monitor")[1]) == {"table", "image", "text"}


def test_a_token_is_asked_for_where_one_is_set(models):
    with served({"table": models["table"]}, Settings(token="correct-horse")) as (port, _):
        body = {"inputs": [[2, 2, 2]]}
        assert ask(port, "/v1/predict", body)[0] == 401
        assert ask(port, "/v1/predict", body, {"authorization": "Bearer wrong"})[0] == 401
        assert ask(port, "/metrics")[0] == 401
        assert ask(port, "/v1/predict", body, {"authorization": "Bearer correct-horse"})[0] == 200
        assert ask(port, "/v2/health/ready")[0] == ask(port, "/")[0] == 200


def test_large_and_slow_requests_are_refused_and_others_are_answered_meanwhile(models):
    limits = Limits(body=2**16, seconds=0.5, pixels=1000)
    with served({"table": models["table"], "image": models["image"]}, Settings(limits=limits)) as (port, _):
        status, said, _ = ask(port, "/v1/models/table/predict", b" " * 2**17)
        assert (status, list(said)) == (413, ["error"])
        big = png(np.zeros((100, 100), np.uint8))
        status, said, _ = ask(port, "/v1/models/image/predict", big, {"content-type": "image/png"})
        assert (status, said["error"][:28]) == (422, "input 1 has 100x100 pixels, ")
        with raw_socket(port) as slow:
            slow.sendall(b"POST /v1/models/table/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
            assert ask(port, "/v1/models/table/predict", {"inputs": [[2, 2, 2]]})[0] == 200
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")


def test_threads_of_clients_get_their_own_answers(port):
    def one(number: int) -> bool:
        sign = 1 if number % 2 else -1
        inputs = [[2.0 * sign, 2.0 * sign, 2.0 * sign]] * (1 + number % 3)
        own = {"x-request-id": f"r{number}"}
        _, said, headers = ask(port, "/v1/models/table/predict", {"inputs": inputs}, own)
        labels = [answer["label"] for answer in said["answers"]]
        return labels == ["high" if sign > 0 else "low"] * len(inputs) and own.items() <= headers.items()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(100)))


def test_a_bad_file_keeps_the_old_model_and_a_good_one_takes_its_place(models, tmp_path):
    path = tmp_path / "mine.demur"
    shutil.copy(models["table"], path)
    with served({"mine": path}, Settings(watch=False)) as (port, server):
        body = {"inputs": [[2, 2, 2]]}
        before = ask(port, "/v1/predict", body)[1]
        hosted = server.models["mine"]
        (tmp_path / "new").write_bytes(models["table"].read_bytes()[:-100])
        os.replace(tmp_path / "new", path)
        assert hosted.changed()
        asyncio.run(hosted.reload())
        assert not hosted.changed()
        assert "is still served" in ask(port, "/v1/models")[1][0]["error"]
        assert ask(port, "/v1/predict", body)[1] == before
        shutil.copy(models["image"], tmp_path / "new")
        os.replace(tmp_path / "new", path)
        asyncio.run(hosted.reload())
        described = ask(port, "/v1/models")[1][0]
        assert (described["kind"], described["error"]) == ("images", None)
        assert described["version"] != before["version"]


def test_a_request_that_began_with_the_old_model_ends_with_it(models, tmp_path):
    """It was being read while the new one was loaded."""
    path = tmp_path / "mine.demur"
    shutil.copy(models["table"], path)

    async def scenario() -> list[str]:
        hosted = Hosted("mine", path, Hosting(), Instruments())
        before = hosted.now
        x = before.model.inputs(table(2)[0])
        await hosted.reload()
        assert hosted.now is not before
        async with asyncio.timeout(20):
            return [str(answer.label) for answer in await before.batcher.answered(x)]

    assert asyncio.run(scenario()) == ["low", "high"]


def test_fewer_samples_are_served_where_they_are_asked_for(models):
    path = models["table"]
    model = demur.load_model(path, device="cpu")
    model.posterior_ = fewer_samples(model.posterior_, 3)
    expected = model.predict_proba(table(2)[0])[0]
    with served({"table": path}, Settings(Hosting(samples=3))) as (port, server):
        assert server.models["table"].now.model.posterior_.num_samples == 3
        status, answer, _ = ask(port, "/v1/predict", {"inputs": [table(2)[0].iloc[0].to_dict()]})
    assert status == 200
    found = answer["answers"][0]["probabilities"]
    assert [found[str(name)] for name in model.classes_] == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_queue_that_is_closed_refuses_and_does_not_hang():
    async def scenario() -> None:
        batcher: Batcher[float] = Batcher(lambda x: x[:, 0].tolist(), Batching())
        assert await batcher.answered(torch.ones(1, 1)) == [1.0]
        await batcher.close()
        async with asyncio.timeout(20):
            await batcher.answered(torch.ones(1, 1))

    with pytest.raises(Busy):
        asyncio.run(scenario())


def test_a_full_queue_refuses_and_what_was_accepted_is_answered():
    release = threading.Event()

    def answer(x: torch.Tensor) -> list[float]:
        release.wait(10)
        return x[:, 0].tolist()

    async def scenario() -> tuple[list[object], list[object]]:
        batcher: Batcher[float] = Batcher(answer, Batching(wait=0, most=4, room=8))
        asked = [asyncio.create_task(batcher.answered(torch.full((1, 1), float(n)))) for n in range(20)]
        await asyncio.sleep(0.1)
        refused = [task for task in asked if task.done()]
        release.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        await batcher.close()
        return [task.exception() for task in refused], found

    refused, found = asyncio.run(scenario())
    assert all(isinstance(error, Busy) and error.retry_after >= 1 for error in refused)
    answered = [value for value in found if not isinstance(value, BaseException)]
    assert answered == [[float(n)] for n, value in enumerate(found) if not isinstance(value, BaseException)]
    assert len(answered) + len(refused) == 20
    assert 8 <= len(answered) <= 12


def test_a_batch_that_fails_fails_alone():
    def answer(x: torch.Tensor) -> list[float]:
        if (x < 0).any():
            raise RuntimeError("negative")
        return x[:, 0].tolist()

    async def scenario() -> list[object]:
        batcher: Batcher[float] = Batcher(answer, Batching(most=1))
        asked = (batcher.answered(torch.full((1, 1), value)) for value in (1.0, -1.0, 2.0))
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second, third = asyncio.run(scenario())
    assert (first, third) == ([1.0], [2.0])
    assert isinstance(second, RuntimeError)


def test_whoever_shares_a_batch_with_a_bad_input_gets_an_answer():
    """Nor may anything that a batch can do end the loop that answers: whoever came later would wait for ever."""

    def answer(x: torch.Tensor) -> list[float]:
        if (x < 0).any():
            raise RuntimeError("negative")
        return x[:, 0].tolist()

    async def ask_all() -> list[object]:
        batcher: Batcher[float] = Batcher(answer, Batching(wait=0.05))
        inputs = [torch.zeros(1, 1), torch.ones(1, 1), -torch.ones(1, 1), torch.full((1, 2), 3.0)]
        found = await asyncio.gather(*map(batcher.answered, inputs), return_exceptions=True)
        found.append(await asyncio.wait_for(batcher.answered(torch.ones(1, 1)), 10))
        await batcher.close()
        return found

    first, second, third, wider, later = asyncio.run(ask_all())
    assert (first, second, wider, later) == ([0.0], [1.0], [3.0], [1.0])
    assert isinstance(third, RuntimeError)


def test_inputs_nested_to_any_depth_are_refused(port):
    """Near Python's own limit they are read, and cannot be shown any more."""
    for depth in range(940, 1000, 2):
        nested, rows = b"[" * depth + b"]" * depth, b'{"a": ' * depth + b"1" + b"}" * depth
        for path, body in (
            ("/v1/models/table/predict", b'{"inputs": [%b]}' % nested),
            ("/v1/models/table/predict", b'{"inputs": [%b]}' % rows),
            ("/v1/models/text/predict", b'{"inputs": [%b]}' % nested),
            ("/v1/predict", b'{"model": %b, "inputs": [1]}' % nested),
            ("/v2/models/table/infer", b'{"inputs": [{"datatype": %b, "shape": [1], "data": []}]}' % nested),
        ):
            status, said, _ = ask(port, path, body)
            assert (status in (404, 422), list(said)) == (True, ["error"]), (depth, path)


def test_cells_of_any_kind_are_answered_or_refused(tmp_path):
    x, y = table(60)
    x = x.assign(colour=["red", "blue"] * 30, day="2020-01-01")
    path = tmp_path / "mixed.demur"
    demur.Classifier("map+nc", epochs=1, device="cpu").fit(x, y).save(path)
    row = {"a": 1, "b": 1, "c": None, "colour": "red", "day": "2020-01-02"}
    with served({"mixed": path}) as (port, _):
        assert ask(port, "/v1/predict", {"inputs": [row]})[0] == 200
        for name, cell in (("a", 10**400), ("a", "ten"), ("colour", "\ud800"), ("colour", 10**400), ("day", 10**400)):
            status, said, _ = ask(port, "/v1/predict", {"inputs": [{**row, name: cell}]})
            assert (status, list(said)) == (422, ["error"]), said
        cells = {"name": "x", "datatype": "BYTES", "shape": [1, 5]}
        for data in (["1", "1", "", "red", "2020-01-02"], [["1", "1", "", "red", "2020-01-02"]]):
            assert ask(port, "/v2/models/mixed/infer", {"inputs": [{**cells, "data": data}]})[0] == 200


def test_a_mistake_of_the_server_is_one_sentence_and_in_its_log(models, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise KeyError("a part that is not there")

    monkeypatch.setattr("demur.serving.app.as_x", broken)
    with served({"table": models["table"]}) as (port, _):
        status, said, headers = ask(port, "/v1/predict", {"inputs": [[2, 2, 2]]})
        assert (status, "its log says why" in said["error"]) == (500, True)
        monkeypatch.undo()
        assert ask(port, "/v1/predict", {"inputs": [[2, 2, 2]]})[0] == 200
    (record,) = [each for each in caplog.records if each.exc_info and each.name == "demur.serving.guard"]
    assert record.fields == {"request": headers["x-request-id"]}


def test_bodies_that_are_still_arriving_count(models):
    """Else many slow clients together would hold any amount of memory."""
    limits = Limits(body=2**16, bodies=2**17, seconds=5)
    with served({"table": models["table"]}, Settings(limits=limits)) as (port, _):
        slow = [raw_socket(port) for _ in range(3)]
        for each in slow:
            each.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n" + b" " * 50_000)
        ends = {each.recv(12) for each in slow if select.select([each], [], [], 2)[0]}
        assert ends == {b"HTTP/1.1 503"}
        for each in slow:
            each.close()
        deadline = time.monotonic() + 10
        while ask(port, "/v1/predict", {"inputs": [[2, 2, 2]]})[0] != 200:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        *[(host, True) for host in ("", "localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000")],
        *[(host, True) for host in ("mine.localhost:8000",)],
        *[(host, False) for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1:8000")],
        *[
            (host, False)
            for host in ("0.0.0.0", "[fe80::1]", "localhost@evil.example", "::1:x", "127.0.0.1.evil.example")
        ],
    ],
)
def test_a_name_that_is_not_this_machines_may_have_been_bent_to_it(host, is_here):
    assert is_local(host) == is_here


def test_pages_of_other_sites_get_no_answers(models):
    body = {"inputs": [[2, 2, 2]]}
    with served({"table": models["table"]}, Settings(local=True)) as (port, _):
        for path, given in (("/v1/predict", body), ("/", None), ("/v1/models", None)):
            status, said, _ = ask(port, path, given, {"host": f"evil.example:{port}"})
            assert (status, "not this machine" in said["error"]) == (403, True)
        assert ask(port, "/v1/predict", body, {"sec-fetch-site": "cross-site"})[0] == 403
        assert ask(port, "/v1/predict", body, {"sec-fetch-site": "same-origin"})[0] == 200
        assert ask(port, "/", None, {"sec-fetch-site": "cross-site"})[0] == 200  # a link to the page
    with served({"table": models["table"]}, Settings(local=True, token="correct-horse")) as (port, _):
        headers = {"host": "mine.example", "sec-fetch-site": "cross-site", "authorization": "Bearer correct-horse"}
        assert ask(port, "/v1/predict", body, headers)[0] == 200


def test_many_large_images_in_a_short_request_are_refused(models):
    limits = Limits(pixels=1000, together=2500)
    with served({"image": models["image"]}, Settings(limits=limits)) as (port, _):
        image = base64.b64encode(png(np.zeros((30, 30), np.uint8))).decode()
        assert ask(port, "/v1/predict", {"inputs": [image] * 2})[0] == 200
        status, said, _ = ask(port, "/v1/predict", {"inputs": [image] * 3})
        assert (status, said["error"][:27]) == (422, "images 1 to 3 have 2,700 pi")


def test_what_is_no_image_is_refused_without_a_word_of_pythons(port):
    said = ask(port, "/v1/models/image/predict", b"no image at all", {"content-type": "image/png"})[1]["error"]
    assert "begins as no PNG, JPEG" in said
    assert "0x" not in said


def test_a_version_that_was_asked_for_is_the_one_that_answers(models, tmp_path, monkeypatch):
    """Though another takes its place while the request is read."""
    path = tmp_path / "mine.demur"
    shutil.copy(models["table"], path)
    read = protocol.read
    with served({"mine": path}, Settings(watch=False)) as (port, server):
        hosted = server.models["mine"]
        version = hosted.now.version

        def overtaken(*given):
            shutil.copy(models["image"], path)
            asyncio.run(hosted.reload())
            return read(*given)

        monkeypatch.setattr(protocol, "read", overtaken)
        status, said, _ = ask(port, f"/v2/models/mine/versions/{version}/infer", TENSOR)
        assert (status, said["model_version"]) == (200, version)
        assert hosted.now.version != version


def test_a_client_that_does_not_read_its_answer_is_let_go(monkeypatch):
    monkeypatch.setattr(running, "UNREAD", 0.5)

    async def large(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b" " * 2**26})

    web, listening = running.web_server(large), running.bound("127.0.0.1", 0)
    web.config.lifespan = "off"
    thread = threading.Thread(target=lambda: asyncio.run(web.serve(sockets=[listening])))
    thread.start()
    try:
        for close in (b"", b"connection: close\r\n"):
            with raw_socket(listening.getsockname()[1]) as client:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n" + close + b"\r\n")
                deadline = time.monotonic() + 20
                for there in (True, False):
                    while bool(web.server_state.connections) != there:
                        assert time.monotonic() < deadline
                        time.sleep(0.02)
    finally:
        web.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


def test_a_model_that_was_replaced_gives_its_memory_back_at_once(models, tmp_path):
    path = tmp_path / "table.demur"
    shutil.copy(models["table"], path)

    async def replace_it() -> None:
        hosted = Hosted("table", path, Hosting(), Instruments())
        await hosted.now.batcher.answered(torch.zeros(1, 3))
        old, network = weakref.ref(hosted.now), weakref.ref(hosted.now.model)
        gc.disable()  # a collection may come long after: a LeNet's samples are 325 MiB
        try:
            await hosted.reload()
            await asyncio.sleep(0.1)
            assert old() is None
            assert network() is None
        finally:
            gc.enable()
        await hosted.now.batcher.close()

    asyncio.run(replace_it())


def test_what_was_freed_is_given_back_after_every_load(models, tmp_path, monkeypatch):
    path, times = tmp_path / "table.demur", list[int]()
    shutil.copy(models["table"], path)
    monkeypatch.setattr("demur.serving.hosted.release_memory", lambda: times.append(1))

    async def load_three_times() -> None:
        hosted = Hosted("table", path, Hosting(), Instruments())
        for _ in range(2):
            await hosted.reload()
        assert len(times) == 3
        await hosted.now.batcher.close()

    asyncio.run(load_three_times())


def test_whatever_goes_wrong_in_loading_the_old_model_and_the_watch_go_on(models, tmp_path, monkeypatch):
    path = tmp_path / "table.demur"
    shutil.copy(models["table"], path)

    async def reload() -> None:
        hosted = Hosted("table", path, Hosting(), Instruments())
        version = hosted.now.version
        with monkeypatch.context() as patched:
            patched.setattr("demur.serving.hosted.keep_samples", lambda *_: {}["a part that is not there"])
            await hosted.reload()
        assert hosted.error is not None
        assert hosted.now.version == version
        await asyncio.gather(*(hosted.reload() for _ in range(3)))  # as many signals at once
        assert hosted.error is None
        await hosted.now.batcher.close()

    asyncio.run(reload())


def test_names_of_models():
    assert named_models(["a/wine.demur", "cats=b/x.demur"]) == {"wine": Path("a/wine.demur"), "cats": Path("b/x.demur")}
    with pytest.raises(ValueError, match="two models are called 'wine'"):
        named_models(["a/wine.demur", "b/wine.demur"])


@pytest.mark.parametrize("name", ["table", "image", "text"])
@pytest.mark.parametrize("budget", [0, 2000, 2**30])
def test_kept_samples_answer_bit_for_bit_as_before(models, name, budget):
    model = demur.Classifier.load(models[name], device="cpu")
    x = model.inputs({"table": table(8)[0], "image": images(8)[0], "text": ["wave salt", "oven"]}[name])
    plain = model.predict_tensor(x)
    model.posterior_ = keep_samples(model.posterior_, budget)
    assert kept_bytes(model.posterior_) <= budget
    assert budget < 2**30 or kept_bytes(model.posterior_) > 0
    with ThreadPoolExecutor(4) as pool:
        for made in pool.map(lambda _: model.predict_tensor(x), range(8)):
            assert torch.equal(made.probs, plain.probs)
            assert torch.equal(made.none, plain.none)
            assert torch.equal(made.expected_entropy, plain.expected_entropy)


def test_the_budget_is_for_all_parts_of_a_mixture(models):
    part = demur.Classifier.load(models["table"], device="cpu").posterior_
    whole = kept_bytes(keep_samples(part, 2**30))
    mixture = Mixture((part, part, part))
    assert kept_bytes(keep_samples(mixture, 2 * whole)) == 2 * whole
    assert keep_samples(mixture, 2**30).num_samples == mixture.num_samples
    assert replace(keep_samples(part, 2**30), kept=()).kept == ()
