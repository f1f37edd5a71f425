"""A Ray cluster on this machine, whose head notices soon that a node has died; by default it takes 15 seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ATTENTIVE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 4,
}


@contextmanager
def ray_nodes(head_cpus: int, others: int) -> Iterator[Any]:
    """A head with so many CPUs, and other nodes with one each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": head_cpus, "include_dashboard": False, "_system_config": ATTENTIVE}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(others):
            nodes.add_node(num_cpus=1)
        yield nodes
    finally:
        nodes.shutdown()
