"""In: a graph and a stage. Out: nothing, or an AssertionError naming the broken law: our fault, not a user's."""

from __future__ import annotations

import networkx

from specforge.compiler.graph import Graph

STAGES = ("build", "infer_features", "place", "insert_transfers", "size_buffers", "select_kernels")
_TAKES = {
    "conversations": set(),
    "prompts": set(),
    "recorded": set(),
    "ckpt": set(),
    "mix": set(),
    "capture": {"tokens"},
    "record": {"tokens", "loss_mask", "aux", "last_hidden"},
    "put": {"aux", "last_hidden"},
    "get": {"aux", "last_hidden"},
    "train": {"tokens", "loss_mask", "aux", "last_hidden"},
    "evaluate": {"tokens", "loss_mask", "aux", "last_hidden", "draft"},
    "checkpoint": {"draft"},
    "export": {"draft"},
}


def verify(graph: Graph, stage: str) -> None:
    """Laws add up: what holds after `build` holds after every pass."""
    reached = STAGES.index(stage)
    names = [n.name for n in graph.nodes]
    assert len(names) == len(set(names)), f"two nodes share a name: {names}"
    assert networkx.is_directed_acyclic_graph(graph.to_networkx()), "the graph has a cycle"
    for edge in graph.edges:
        assert {edge.source, edge.target} <= set(names), f"an edge leaves the graph: {edge}"
    for node in graph.nodes:
        assert node.kind in _TAKES, f"{node.name} is of unknown kind {node.kind}"
        taken = [e.feature.name for e in graph.inputs(node.name) if e.feature is not None]
        assert len(taken) == len(set(taken)), f"{node.name} takes a feature twice: {taken}"
        assert set(taken) <= _TAKES[node.kind], f"{node.name} takes what it cannot use: {taken}"
        if reached >= STAGES.index("infer_features"):
            needed = _TAKES[node.kind] - ({"last_hidden"} if node.kind == "record" else set())
            assert needed <= set(taken), f"{node.name} takes {taken}, it needs {needed}"
        if reached >= STAGES.index("place"):
            assert node.role, f"{node.name} has no role"
        if reached >= STAGES.index("insert_transfers") and node.kind == "capture":
            readers = {graph.node(e.target).role for e in graph.outputs(node.name)}
            assert readers <= {node.role}, f"what {node.name} captures leaves its role without a store: {readers}"
        if reached >= STAGES.index("size_buffers"):
            assert (node.kind in ("put", "get")) == (node.store is not None), f"{node.name} has store {node.store}"
        if reached >= STAGES.index("select_kernels"):
            assert (node.kind in ("train", "evaluate")) == bool(node.kernels), f"{node.name} has kernels {node.kernels}"
