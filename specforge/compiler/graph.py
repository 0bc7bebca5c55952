"""In: nodes and typed edges. Out: `Graph`, an immutable DAG over networkx that programs and tests inspect."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import attrs
import networkx

from specforge.dsl.feature import Feature
from specforge.plan import KernelChoice
from specforge.settings import StoreSettings


@attrs.frozen
class Node:
    """One operation. `kind`: "prompts", "conversations", "mix", "capture", "recorded" or "ckpt" (a capture
    of it), "record", "train", "evaluate", "checkpoint", "export", or from `insert_transfers` "put" and "get".

    `spec` is the recipe's node; `line` where it was written; `role` the worker that runs it, "" before `place`;
    `kernels` which implementation its hot operations use, empty before `select_kernels`; `store` where a put or a get
    keeps features, None before `size_buffers`.
    """

    name: str
    kind: str
    spec: Any = attrs.field(repr=False)
    line: int = attrs.field(default=0, eq=False)
    role: str = ""
    kernels: tuple[KernelChoice, ...] = ()
    store: StoreSettings | None = None


@attrs.frozen
class Edge:
    """What `source` gives to `target`. `feature` None: not inferred yet."""

    source: str
    target: str
    feature: Feature | None


@attrs.frozen(eq=False, slots=False)
class Graph:
    """Operations and the features that travel between them. A pass gives a new Graph; none changes one.

    `nodes` and `edges` are in recipe order. Two graphs are equal when their nodes and edges are.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and (self.nodes, self.edges) == (other.nodes, other.edges)

    __hash__ = None  # type: ignore[assignment]

    def node(self, name: str) -> Node:
        """The node called `name`; KeyError with the known names."""
        if name not in self._by_name:
            raise KeyError(f"no node {name!r}; there are {', '.join(self._by_name)}")
        return self._by_name[name]

    def of_kind(self, kind: str) -> tuple[Node, ...]:
        """The nodes of one kind, in recipe order."""
        return tuple(n for n in self.nodes if n.kind == kind)

    def inputs(self, name: str) -> tuple[Edge, ...]:
        """The edges that end at a node."""
        return tuple(e for e in self.edges if e.target == self.node(name).name)

    def outputs(self, name: str) -> tuple[Edge, ...]:
        """The edges that begin at a node."""
        return tuple(e for e in self.edges if e.source == self.node(name).name)

    def features(self, name: str) -> tuple[Feature, ...]:
        """The distinct features a node gives, in edge order."""
        return tuple(dict.fromkeys(e.feature for e in self.outputs(name) if e.feature is not None))

    def roles(self) -> tuple[str, ...]:
        """The distinct roles, in the order their first operation appears."""
        return tuple(dict.fromkeys(n.role for n in self.nodes if n.role))

    def ancestors(self, name: str) -> frozenset[str]:
        """Names of everything that a node depends on."""
        return frozenset(networkx.ancestors(self._digraph, self.node(name).name))

    def descendants(self, name: str) -> frozenset[str]:
        """Names of everything that depends on a node."""
        return frozenset(networkx.descendants(self._digraph, self.node(name).name))

    def paths(self, source: str, target: str) -> tuple[tuple[str, ...], ...]:
        """Every path between two nodes, as tuples of names."""
        found = networkx.all_simple_paths(self._digraph, self.node(source).name, self.node(target).name)
        return tuple(sorted({tuple(path) for path in found}))

    def order(self) -> tuple[str, ...]:
        """The names in an order in which each comes after what it depends on; ties in recipe order."""
        place = {n.name: index for index, n in enumerate(self.nodes)}
        return tuple(networkx.lexicographical_topological_sort(self._digraph, key=place.__getitem__))

    def to_networkx(self) -> networkx.MultiDiGraph:
        """A copy as a MultiDiGraph: nodes have kind, role, spec; edges a feature, and its name as the key."""
        out = networkx.MultiDiGraph()
        for n in self.nodes:
            out.add_node(n.name, kind=n.kind, role=n.role, spec=n.spec)
        for e in self.edges:
            out.add_edge(e.source, e.target, key=e.feature.name if e.feature else "", feature=e.feature)
        return out

    def with_nodes(self, changed: Iterable[Node]) -> Graph:
        """A copy in which the nodes of the same name are replaced."""
        new = {n.name: n for n in changed}
        return Graph(tuple(new.get(n.name, n) for n in self.nodes), self.edges)

    def with_edges(self, edges: Iterable[Edge]) -> Graph:
        """A copy with these edges."""
        return Graph(self.nodes, tuple(edges))

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def _digraph(self) -> networkx.DiGraph:
        out = networkx.DiGraph()
        out.add_nodes_from(n.name for n in self.nodes)
        out.add_edges_from((e.source, e.target) for e in self.edges)
        return out
