"""A cluster of two nodes with a core each, on this machine. Prints its address; kills a node at a line on stdin."""

import os
import sys

from eval.engine.pool import LOCAL, OBJECT_STORE


def main() -> None:
    os.environ.update(LOCAL)
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    node = cluster.add_node(**size)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    cluster.remove_node(node, allow_graceful=False)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
