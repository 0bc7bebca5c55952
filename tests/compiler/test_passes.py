"""In: graphs before each pass. Out: a pass leaves its input alone, may run twice, and what it gives is legal."""

from pathlib import Path

import attrs
import pytest

from specforge.compiler import Edge, Graph, Node, compile_graph, load, verify
from specforge.compiler.build import build
from specforge.compiler.facts import Facts
from specforge.compiler.kernels import PARTS
from specforge.compiler.passes import PIPELINE
from specforge.compiler.passes.infer_features import infer_features
from specforge.compiler.passes.insert_transfers import insert_transfers
from specforge.compiler.passes.place import place
from specforge.compiler.passes.select_kernels import select_kernels
from specforge.compiler.passes.size_buffers import size_buffers
from specforge.compiler.verify import STAGES
from specforge.dsl.feature import Feature
from specforge.settings import StoreSettings

pytestmark = pytest.mark.null
APART = Path(__file__).parents[2] / "recipes" / "tiny_eagle3_disaggregated.py"


@pytest.fixture(scope="module")
def stages(tiny, graph_and_facts) -> dict[str, Graph]:
    """The tiny recipe's graph after each stage."""
    return _stages(tiny.recipe, graph_and_facts[1])


@pytest.fixture(scope="module")
def apart() -> tuple[dict[str, Graph], Facts]:
    """The same of the recipe whose target has a process of its own, and its facts."""
    loaded = load(APART)
    facts = compile_graph(loaded)[1]
    return _stages(loaded.recipe, facts), facts


def _stages(recipe, facts) -> dict[str, Graph]:
    found = {"build": build(recipe)}
    for step in PIPELINE:
        found[step.__name__] = step(list(found.values())[-1], facts)
    return found


def test_every_pass_has_its_stage_and_its_file():
    assert ("build", *(step.__name__ for step in PIPELINE)) == STAGES
    assert all(step.__module__ == f"specforge.compiler.passes.{step.__name__}" for step in PIPELINE)


@pytest.mark.parametrize("step", PIPELINE)
@pytest.mark.parametrize("together", [True, False])
def test_a_pass_leaves_its_input_alone_and_may_run_twice(step, together, stages, apart, graph_and_facts):
    found, facts = (stages, graph_and_facts[1]) if together else apart
    before = found[STAGES[STAGES.index(step.__name__) - 1]]
    nodes, edges = before.nodes, before.edges
    once = step(before, facts)
    assert (before.nodes, before.edges) == (nodes, edges)
    assert (once == before) == (together and step in (insert_transfers, size_buffers))
    assert step(once, facts) == once


def test_infer_features_gives_each_open_edge_the_features_of_the_strategy(stages):
    assert [e.feature for e in stages["build"].edges if e.source == "capture"] == [None]
    found = [e.feature.name for e in stages["infer_features"].edges if e.source == "capture"]
    assert found == ["aux", "last_hidden"]
    assert not [e for e in stages["infer_features"].edges if e.feature is None]


@pytest.mark.parametrize(
    ("policy", "layers", "dtype"),
    [
        ("", (1, 3, 4), "float32"),
        (", Policy()", (1, 3, 4), "float32"),
        (", Policy(layers=[0, 2, 7])", (0, 2, 7), "float32"),
        (", Policy(dtype='bfloat16')", (1, 3, 4), "bfloat16"),
        (", Eagle3.policy(target)", (1, 3, 4), "float32"),
    ],
)
def test_a_policy_decides_what_is_captured(write, policy, layers, dtype):
    graph, _ = compile_graph(load(write(f"Capture(rows, target{policy}), Eagle3()")))
    assert graph.features("capture") == (
        Feature("aux", 192, dtype, layers=layers, norm="pre"),
        Feature("last_hidden", 64, dtype, norm="post"),
    )


def test_place_gives_every_node_a_role(stages):
    assert not any(n.role for n in stages["infer_features"].nodes)
    assert all(n.role == "trainer" for n in stages["place"].nodes)


def test_select_kernels_names_an_implementation_and_a_reason_for_each_hot_operation(stages):
    for node in stages["select_kernels"].nodes:
        expected = PARTS if node.kind in ("train", "evaluate") else ()
        assert tuple(k.op for k in node.kernels) == expected
        assert all(k.implementation == "torch" and "on a CPU" in k.reason for k in node.kernels)


@pytest.mark.parametrize(
    ("train", "implementation", "reason"),
    [
        ("", "triton", "bfloat16 on H200"),
        (', precision="float32"', "torch", "computes in float32"),
        (', kernels="torch"', "torch", "Train.kernels is 'torch'"),
        (', precision="float32", kernels="triton"', "triton", "Train.kernels is 'triton'"),
    ],
)
def test_select_kernels_on_a_gpu(write, train, implementation, reason):
    recipe = write("Capture(rows, target), Eagle3()" + train, 'topology=Colocated(device="H200")')
    node = compile_graph(load(recipe))[0].node("train")
    assert {k.implementation for k in node.kernels} == {implementation}
    assert all(reason in k.reason for k in node.kernels)


def test_each_part_takes_what_can_run(write):
    """Heads too wide for the attention kernel: the other kernels run. Without SwiGLU in the draft, none is chosen."""
    wide = 'Capture(rows, target), Eagle3(), draft=Draft(head_dim=288), precision="bfloat16"'
    node = compile_graph(load(write(wide, 'topology=Colocated(device="H200")')))[0].node("train")
    assert {k.op: k.implementation for k in node.kernels} == dict.fromkeys(PARTS, "triton") | {"ttt_attention": "torch"}
    assert "heads of 288 are wider than the 256" in node.kernels[0].reason


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_legal(stages, apart, stage):
    verify(stages[stage], stage)
    verify(apart[0][stage], stage)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_graph_of_the_stage_before_is_not_yet_legal(apart, stage):
    with pytest.raises(AssertionError):
        verify(apart[0][STAGES[STAGES.index(stage) - 1]], stage)


def test_apart_only_features_travel_and_they_go_through_a_store(apart):
    graph = apart[0][STAGES[-1]]
    assert graph.roles() == ("data", "capture", "trainer")
    assert graph.paths("capture", "train") == (("capture", "put", "get", "train"),)
    assert graph.paths("capture_2", "evaluate") == (("capture_2", "put_2", "get_2", "evaluate"),)
    assert {graph.node(n).role for n in ("put", "put_2")} == {"capture"}
    assert {graph.node(n).role for n in ("get", "get_2")} == {"trainer"}
    crossing = [e for e in graph.edges if graph.node(e.source).role != graph.node(e.target).role]
    assert {e.feature.name for e in crossing if graph.node(e.source).role == "capture"} == {"aux", "last_hidden"}


def test_a_store_lets_two_steps_and_a_capture_batch_wait(apart):
    graph, facts = apart[0][STAGES[-1]], apart[1]
    store = graph.node("put").store
    assert store == graph.node("get").store
    assert (facts.step_documents, facts.capture_documents) == (4, 4)
    assert (store.high_documents, store.low_documents) == (2 * 4 + 4, 4)
    assert store.pool_bytes == 12 * 64 * (192 + 64) * 4, "documents, tokens, widths, bytes of a float32"


def _with_edge(edge: Edge):
    return lambda graph: graph.with_edges((*graph.edges, edge))


TOKENS = Feature("tokens", 1, "int32")
STORE = StoreSettings("shared_dir", None, None, "file", 8, 4, 1024, "prompts")
BROKEN = {
    "share a name": lambda g: Graph((*g.nodes, g.nodes[0]), g.edges),
    "has a cycle": _with_edge(Edge("export", "train", TOKENS)),
    "leaves the graph": _with_edge(Edge("train", "nothing", TOKENS)),
    "of unknown kind": lambda g: Graph((*g.nodes, Node("x", "mystery", None)), g.edges),
    "takes a feature twice": _with_edge(Edge("prompts", "train", TOKENS)),
    "takes what it cannot use": _with_edge(Edge("prompts", "export", TOKENS)),
    "it needs": lambda g: g.with_edges(e for e in g.edges if (e.source, e.target) != ("capture", "train")),
    "leaves its role without a store": lambda g: g.with_nodes([attrs.evolve(g.node("capture"), role="capture")]),
    "has store": lambda g: g.with_nodes([attrs.evolve(g.node("train"), store=STORE)]),
    "has no role": lambda g: g.with_nodes([attrs.evolve(g.node("prompts"), role="")]),
    "has kernels": lambda g: g.with_nodes([attrs.evolve(g.node("train"), kernels=())]),
}


@pytest.mark.parametrize("law", BROKEN)
def test_verify_names_the_broken_law(graph, law):
    with pytest.raises(AssertionError, match=law):
        verify(BROKEN[law](graph), STAGES[-1])


def test_every_pass_is_a_function_of_graph_and_facts(stages, graph_and_facts):
    facts = graph_and_facts[1]
    placed = place(infer_features(stages["build"], facts), facts)
    by_hand = select_kernels(size_buffers(insert_transfers(placed, facts), facts), facts)
    assert by_hand == graph_and_facts[0]
