"""The same app on Ray Serve: replicas of the server behind Ray's proxy, which starts another for one that dies.

Every replica is a server of its own: it has its own models, queue, counters and monitor, and looks at the files itself.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from demur.serving.app import Settings, create_app
from demur.serving.guard import log_json_lines
from demur.study.cluster import cluster_device, connect, quiet

NAME = "demur"  # of the application, of which a cluster has one
LONGEST = 60.0  # seconds that a request may take
STARTS = 3  # of a replica, before it is given up
LOOK = 2.0  # seconds between two looks at whether a replica is well


@contextmanager
def served_on_ray(
    models: Mapping[str, Path],
    settings: Settings,
    at: tuple[str, int],
    replicas: int,
    address: str | None = None,
    threads: int = 1,
) -> Iterator[None]:
    """Replicas behind Ray's proxy at a host and a port, on the cluster at the address, else on one made for it."""
    with connect(address) as ray:
        try:
            from ray import serve
        except ImportError as error:
            raise ValueError(f"Ray Serve cannot be imported ({error}); pip install 'demur[ray,serve]'") from None
        with quiet("ray.serve"):
            device = with_room(settings.hosting.device, replicas, ray.cluster_resources())
            shared = divide(replace(settings, hosting=replace(settings.hosting, device=device)), replicas)
            absolute = {name: path.absolute() for name, path in models.items()}
            options = {"host": at[0], "port": at[1], "request_timeout_s": LONGEST}
            serve.start(http_options=options, proxy_location="HeadOnly")
            if NAME in serve.status().applications:
                raise ValueError(f"the Ray cluster serves an application called {NAME!r} already; stop that first")
            server: Any = serve.deployment(serve.ingress(builder(absolute, shared, threads))())
            deployment = server.options(
                name=NAME,
                num_replicas=replicas,
                max_ongoing_requests=settings.limits.requests,
                max_queued_requests=settings.limits.requests,
                ray_actor_options={"num_cpus": 1, "num_gpus": int(device != "cpu")},
                max_constructor_retry_count=STARTS,
                health_check_period_s=LOOK,
            )
            try:
                serve.run(deployment.bind(), name=NAME, route_prefix="/")
                yield
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:300]
                raise ValueError(f"the replicas did not start ({reason}); Ray's logs say more") from error
            finally:
                serve.delete(NAME)


def builder(models: Mapping[str, Path], settings: Settings, threads: int) -> Callable[[], ASGIApp]:
    """What a replica calls when it starts."""

    def build() -> ASGIApp:
        import torch

        torch.set_num_threads(threads)
        log_json_lines()
        return create_app(models, settings)[0]

    return build


def divide(settings: Settings, replicas: int) -> Settings:
    """Each monitor has its part of the level: that any of them raises a false alarm has that probability at most."""
    return replace(settings, hosting=replace(settings.hosting, level=settings.hosting.level / replicas))


def with_room(device: str, replicas: int, resources: Mapping[str, Any]) -> str:
    """The device of every replica, where the cluster has enough of it."""
    cpus = resources.get("CPU", 0)
    if replicas > cpus:
        raise ValueError(f"replicas {replicas} need a CPU each, and the Ray cluster has {cpus:g}; give at most that")
    return cluster_device(device, resources, workers=replicas)
