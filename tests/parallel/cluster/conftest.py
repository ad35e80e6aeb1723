"""One Ray cluster of two nodes for all tests of this folder: starting it takes as long as ten of them."""

import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[object]:
    """A connected cluster of two nodes on this machine, with two CPUs each."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]))  # of the workers
        warnings.simplefilter("ignore")  # Ray's own, at import and at start
        from ray.cluster_utils import Cluster

        store = 128 << 20
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "object_store_memory": store, "include_dashboard": False},
        )
        cluster.add_node(num_cpus=2, object_store_memory=store)
        ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
