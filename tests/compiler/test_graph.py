"""In: the tiny recipe's graph. Out: the inspection API: nodes, edges, features, roles, ancestors, paths, networkx."""

import attrs
import networkx
import pytest

from specforge.compiler import Edge, Graph, Node, compile, compile_graph, load
from specforge.dsl.feature import Feature

pytestmark = pytest.mark.null
NAMES = ("prompts", "capture", "train", "prompts_2", "capture_2", "evaluate", "checkpoint", "export", "export_2")


def test_nodes_are_in_recipe_order_and_found_by_name_and_kind(graph):
    assert tuple(n.name for n in graph.nodes) == NAMES
    assert graph.node("export_2").spec.format == "hf"
    assert [n.name for n in graph.of_kind("capture")] == ["capture", "capture_2"]
    with pytest.raises(KeyError, match=r"no node 'tran'; there are prompts, capture, train"):
        graph.node("tran")


def test_a_node_knows_its_recipe_line(graph):
    assert graph.node("prompts").line == 6
    assert graph.node("train").line == 11


def test_edges_carry_features(graph):
    assert [(e.source, e.feature.name) for e in graph.inputs("train")] == [
        ("prompts", "tokens"),
        ("prompts", "loss_mask"),
        ("capture", "aux"),
        ("capture", "last_hidden"),
    ]
    assert {e.target for e in graph.outputs("train")} == {"evaluate", "checkpoint", "export", "export_2"}
    assert graph.features("capture") == (
        Feature("aux", 192, "float32", layers=(1, 3, 4), norm="pre"),
        Feature("last_hidden", 64, "float32", norm="post"),
    )
    with pytest.raises(KeyError, match="no node"):
        graph.inputs("nothing")


def test_roles(graph):
    assert graph.roles() == ("trainer",)


def test_what_depends_on_what(graph):
    assert graph.ancestors("train") == {"prompts", "capture"}
    assert graph.ancestors("export") == {"prompts", "capture", "train"}
    assert graph.descendants("capture_2") == {"evaluate"}
    assert graph.descendants("prompts") == {"capture", "train", "evaluate", "checkpoint", "export", "export_2"}
    assert graph.descendants("export") == frozenset()


def test_paths(graph):
    assert graph.paths("prompts", "export") == (
        ("prompts", "capture", "train", "export"),
        ("prompts", "train", "export"),
    )
    assert graph.paths("export", "prompts") == ()


def test_order_puts_each_after_what_it_depends_on(graph):
    order = graph.order()
    assert sorted(order) == sorted(NAMES)
    assert all(order.index(e.source) < order.index(e.target) for e in graph.edges)


def test_order_does_not_depend_on_the_order_of_edges(graph):
    assert Graph(graph.nodes, graph.edges[::-1]).order() == graph.order()


def test_networkx_gets_a_copy(graph):
    found = graph.to_networkx()
    assert isinstance(found, networkx.MultiDiGraph)
    assert set(found.nodes) == set(NAMES)
    assert found.nodes["train"]["kind"] == "train"
    assert found.nodes["train"]["role"] == "trainer"
    assert found.edges["capture", "train", "aux"]["feature"].width == 192
    assert found.number_of_edges() == len(graph.edges)
    found.remove_node("train")
    assert graph.node("train")
    assert "train" in graph.to_networkx()


def test_a_graph_does_not_change(graph):
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        graph.nodes = ()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        graph.node("train").role = "server"
    before = (graph.nodes, graph.edges)
    other = graph.with_nodes([attrs.evolve(graph.node("train"), role="server")]).with_edges(graph.edges[1:])
    assert other.node("train").role == "server"
    assert (graph.nodes, graph.edges) == before
    assert other != graph
    assert graph == Graph(*before)


def test_equality_does_not_look_at_lines():
    assert Node("a", "prompts", 1, line=3) == Node("a", "prompts", 1, line=4)
    assert Edge("a", "b", None) != Edge("a", "b", Feature("tokens", 1, "int32"))


def test_two_consumers_of_one_capture_share_it(write):
    loaded = load(write(rest="outputs=[Export('hf')]"))
    graph, _ = compile_graph(loaded)
    assert [n.name for n in graph.nodes] == ["prompts", "capture", "train", "export"]
    twice = write(rest='evaluate=[Evaluate(Prompts("heldout.jsonl", max_length=8)), Evaluate(Prompts("heldout.jsonl", '
                       'max_length=8), every=9)]')  # fmt: skip
    graph, _ = compile_graph(load(twice))
    assert [n.name for n in graph.of_kind("capture")] == ["capture", "capture_2"]
    assert [n.name for n in graph.of_kind("evaluate")] == ["evaluate", "evaluate_2"]


def test_the_plan_keeps_the_names_of_the_graph(graph, plan):
    assert {op.name for op in plan.ops()} == {n.name for n in graph.nodes}


def test_topology_alone_changes_no_operation(write):
    names = [op.name for op in compile(load(write())).ops()]
    assert [op.name for op in compile(load(write(rest='topology=Colocated(device="H200")'))).ops()] == names
