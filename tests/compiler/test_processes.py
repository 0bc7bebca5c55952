"""In: recipes whose processes are apart. Out: plans that say who offers what, what waits, and what is slowest."""

import json
import re
from pathlib import Path

import attrs
import pytest

from specforge.cli import main
from specforge.compiler import compile, load
from specforge.compiler.explain import flops_of, memory_of
from specforge.compiler.explain import text as explained
from specforge.compiler.picture import picture
from specforge.compiler.show import text
from specforge.plan import dump
from specforge.plan import load as load_plan

pytestmark = pytest.mark.null
RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = ("tiny_eagle3_disaggregated", "llama31_8b_eagle3_disaggregated", "qwen3_8b_eagle3_disaggregated")
SERVERS = "topology=Disaggregated(servers=[Transformers()], store=SharedDir()"


@pytest.fixture(scope="module", params=NAMES)
def apart(request):
    return compile(load(RECIPES / f"{request.param}.py"))


@pytest.fixture(scope="module")
def qwen():
    return compile(load(RECIPES / "qwen3_8b_eagle3_disaggregated.py"))


def test_a_plan_of_processes_apart_is_dumped_and_loaded(apart):
    assert load_plan(dump(apart)) == apart


def test_the_tiny_recipe_differs_by_its_topology_alone():
    near, far = (load(RECIPES / f"{name}.py").recipe for name in ("tiny_eagle3", "tiny_eagle3_disaggregated"))
    assert near.topology != far.topology
    assert attrs.evolve(far, name=near.name, topology=near.topology) == near


def test_colocated_puts_nothing_anywhere(plan):
    assert not plan.ops("put") + plan.ops("get")
    assert plan.control is None
    assert len(plan.processes) == 1


def test_every_capture_crosses_through_one_put_and_one_get(apart):
    captures, puts, gets = (apart.ops(kind) for kind in ("capture", "put", "get"))
    assert len(captures) == len(puts) == len(gets)
    assert {op.settings for op in puts} == {op.settings for op in gets}
    assert all(op in apart.role("capture").ops for op in (*captures, *puts))
    assert all(op in apart.role("trainer").ops for op in gets)


def test_every_role_has_a_process_and_every_service_its_readiness(apart):
    assert {name for p in apart.processes for name in p.roles} == {role.name for role in apart.roles}
    services = [service for p in apart.processes for service in p.services]
    assert {"control", "capture"} <= {service.name for service in services}
    assert all(service.port == 0 and service.readiness and service.timeout_s > 0 for service in services)
    kinds = [p.kind for p in apart.processes]
    assert kinds.count("capture_server") == kinds.count("capture_worker") == apart.role("capture").ranks
    assert "store" in kinds or apart.op("put").settings.kind == "shared_dir"


def test_no_gpu_is_given_twice(qwen):
    held = [gpu for p in qwen.processes for gpu in p.gpus]
    assert sorted(held) == [0, 1, 2, 3]


def test_the_pool_holds_the_high_watermark_at_full_length(qwen):
    store, source = qwen.op("put").settings, qwen.op("conversations").settings
    per_document = sum(port.feature.bytes_per_token for port in qwen.op("put").inputs) * source.max_length
    assert store.high_documents >= 2 * qwen.batch.step_documents
    assert 0 < store.low_documents < store.high_documents
    assert store.pool_bytes == store.high_documents * per_document


def test_retained_features_ask_for_a_checkpoint_interval_more(write):
    rest = f'{SERVERS}, retain="features"), outputs=[Checkpoint(every=10), Export("hf")]'
    kept, dropped = (compile(load(write(rest=r))) for r in (rest, rest.replace("features", "prompts")))
    more = kept.op("put").settings.pool_bytes - dropped.op("put").settings.pool_bytes
    per_document = dropped.op("put").settings.pool_bytes // dropped.op("put").settings.high_documents
    assert more == 10 * kept.batch.step_documents * per_document


def test_a_given_watermark_is_the_plans(write):
    store = compile(load(write(rest=f"{SERVERS}, high_watermark=90, low_watermark=7)"))).op("get").settings
    assert (store.high_documents, store.low_documents) == (90, 7)


def test_the_text_names_services_memory_of_both_sides_and_the_bottleneck(qwen):
    shown = text(qwen)
    for process in qwen.processes:
        assert all(re.search(rf"{s.name}\s+of {process.name}", shown) for s in process.services)
    assert shown.count("fits: ") == 2
    assert re.search(r"at 50% of the peak: .*; (capture|training) is the bottleneck", shown)
    assert re.search(r"on the wire then: [0-9.]+ GB/s", shown)


def test_the_side_with_more_to_do_is_the_bottleneck():
    """One server against three trainers of one TTT step, then against one trainer of fourteen."""
    few = compile(load(RECIPES / "qwen3_8b_eagle3_disaggregated.py", ("train.strategy.ttt_length=1",)))
    alone = ("topology.trainers.gpus=[1]", "train.strategy.ttt_length=14")
    many = compile(load(RECIPES / "qwen3_8b_eagle3_disaggregated.py", alone))
    assert "; capture is the bottleneck" in text(few)
    assert "; training is the bottleneck" in text(many)


def test_mooncake_is_warned_of(qwen, write):
    assert [w for w in qwen.warnings if "listen on all interfaces" in w]
    assert not [w for w in compile(load(write(rest=f"{SERVERS})"))).warnings if "interfaces" in w]


def test_costs_are_shared_out_between_capture_and_training(apart):
    ops = (apart.op("capture"), apart.op("train"))
    assert sorted(p.name for op in ops for p in memory_of(apart, op)) == sorted(p.name for p in apart.memory)
    assert sorted(p.name for op in ops for p in flops_of(apart, op)) == sorted(p.name for p in apart.flops)


def test_a_transfer_says_where_its_settings_came_from(apart):
    rows = [line.split() for line in explained(apart, "put").splitlines()]
    settings = {row[0]: row[2:] for row in rows[rows.index(["settings"]) + 1 :] if len(row) > 1}
    assert settings["high_documents"][0] == settings["low_documents"][0] == "derived:"
    assert settings["retain"] == ["default"]


def test_a_picture_has_a_box_for_every_role(apart):
    titles = {role.name: role.title for role in picture(apart).roles}
    assert list(titles) == [role.name for role in apart.roles]
    assert titles["capture"].endswith(f"in {apart.role('capture').engine}")
    assert "target" not in titles["trainer"]


def test_moving_a_recipe_apart_is_a_difference(tmp_path, capsys):
    saved = tmp_path / "plan.json"
    saved.write_text(dump(compile(load(RECIPES / "tiny_eagle3.py"))))
    assert main(["compile", str(RECIPES / "tiny_eagle3_disaggregated.py"), "--diff", str(saved)]) == 3
    assert "put" in capsys.readouterr().out


@pytest.mark.parametrize("rest", ["outputs=[Checkpoint()]", f"{SERVERS})"])
def test_a_plan_does_not_grow_with_the_data(write, tmp_path, rest):
    path = write(rest=rest)
    small = json.loads(dump(compile(load(path))))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(rows.read_text() * 5000)
    large = json.loads(dump(compile(load(path))))
    assert len(json.dumps(large)) - len(json.dumps(small)) <= len(str(rows.stat().st_size))
    changed = {key for key in small if small[key] != large[key]}
    assert changed == {"digest", "files"}
