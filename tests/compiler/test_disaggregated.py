"""In: recipes whose target has processes of its own. Out: their plans: processes, services, memory and flow."""

import re

import attrs
import pytest

from specforge.compiler import compile, load
from specforge.compiler.columns import flops
from specforge.compiler.show import text
from specforge.plan import dump
from specforge.plan import load as load_plan

pytestmark = pytest.mark.null
SGLANG = 'Disaggregated(servers=[SGLang(gpus=[0, 1]), SGLang()], store=Mooncake(), device="H200"'
SHARED = "Disaggregated(servers=[Transformers()], store=SharedDir()"


def plan(write, topology, train="Capture(rows, target), Eagle3(), batch_size=4, accumulation=3", rest=""):
    return compile(load(write(train=train, rest=f"topology={topology}), {rest}")))


def test_only_the_topology_makes_the_difference(write):
    together, apart = plan(write, "Colocated("), plan(write, SHARED)
    for kind in ("prompts", "capture", "train"):
        assert together.op(kind).settings == apart.op(kind).settings
    assert [r.name for r in together.roles] == ["trainer"]
    assert [r.name for r in apart.roles] == ["data", "capture", "trainer"]
    assert not together.ops("put")
    assert together.control is None
    assert not together.flow.wire
    assert together.batch == apart.batch
    assert together.flops == apart.flops
    assert load_plan(dump(apart)) == apart


def test_features_take_the_way_through_the_store(write):
    made = plan(write, SHARED)
    assert [p.source for p in made.op("put").inputs] == ["capture.aux", "capture.last_hidden"]
    assert [p.source for p in made.op("get").inputs] == ["put.aux", "put.last_hidden"]
    assert {p.source.partition(".")[0] for p in made.op("train").inputs} == {"prompts", "get"}


def test_every_process_has_its_gpus_and_services_are_ready_in_time(write):
    made = plan(write, f"{SGLANG}, trainers=Trainers(gpus=[3, 4])")
    found = {p.name: (p.kind, p.gpus) for p in made.processes}
    assert found == {
        "run": ("run", ()),
        "controller": ("controller", ()),
        "store": ("store", ()),
        "server-0": ("capture_server", (0, 1)),
        "worker-0": ("capture_worker", ()),
        "server-1": ("capture_server", (2,)),
        "worker-1": ("capture_worker", ()),
        "trainer": ("trainer", (3, 4)),
    }
    services = [s for p in made.processes for s in p.services]
    assert {s.name for s in services} == {"control", "mooncake", "capture"}
    assert all(s.port == 0 and s.readiness.startswith("GET /") and s.timeout_s > 0 for s in services)
    command = " ".join(next(p.command for p in made.processes if p.name == "server-0"))
    for words in (
        "--model-path",
        "--disable-radix-cache",
        "--chunked-prefill-size -1",
        "--cuda-graph-backend-prefill disabled",
        "--dtype bfloat16",
        "--tp-size 2",
        "--context-length 39",
    ):
        assert words in command


def test_unnamed_gpus_are_the_first_that_nobody_names(write):
    made = plan(write, 'Disaggregated(servers=[SGLang(), SGLang(gpus=[0])], store=Mooncake(), device="H200"')
    assert {p.name: p.gpus for p in made.processes if p.gpus} == {"server-0": (1,), "server-1": (0,), "trainer": (2,)}


def test_an_external_server_takes_no_gpu_and_is_not_started(write):
    made = plan(write, 'Disaggregated(servers=[SGLang(url="http://10.0.0.7:30000")], store=Mooncake(), device="H200"')
    server = next(p for p in made.processes if p.kind == "capture_server")
    assert (server.url, server.gpus, server.command) == ("http://10.0.0.7:30000", (), ())
    assert "runs already at http://10.0.0.7:30000" in text(made)
    assert {part.role for part in made.memory} == {"trainer"}, "its memory is its owner's"


def test_each_role_holds_its_own_memory(write):
    together, apart = plan(write, 'Colocated(device="H200"'), plan(write, SGLANG)
    names = {p.name for p in apart.memory if p.role == "capture"}
    assert names == {"target weights", "features", "prefill"}
    one, other = ({p.name: p.bytes for p in made.memory} for made in (together, apart))
    geometry = apart.target.geometry
    head = other.pop("target head")
    assert head == geometry.vocab_size * geometry.hidden_size * 2, "the teacher's, in bfloat16"
    assert other == one | {"target weights": one["target weights"] // 2}, "over the two GPUs of the first server"
    assert re.findall(r"role (\w+)\n", text(apart).partition("memory per rank")[2])[:2] == ["capture", "trainer"]


def test_flops_of_capture_and_training_are_not_added_up(write):
    made = plan(write, SGLANG)
    shown = text(made).partition("FLOPs per micro-step")[2].partition("between capture")[0]
    training = [part for part in made.flops if part.name != "target prefill"]
    needed, computed = (flops(sum(getattr(part, kind) for part in training)) for kind in ("needed", "computed"))
    assert re.search(rf"training +{re.escape(needed)} +{re.escape(computed)}\n", shown)
    assert re.search(r"capture \d\S* ms, training \d\S* ms at H200's", shown)
    assert "total" not in shown
    assert "  total  " in text(plan(write, 'Colocated(device="H200"')).partition("FLOPs per micro-step")[2]


def test_a_capture_through_sglang_is_requests_and_no_forward_of_the_run(write):
    assert re.search(r"requests of \d+ documents to SGLang, which returns layers", text(plan(write, SGLANG)))
    assert "forward of" in text(plan(write, SHARED))


def test_supply_and_demand_name_the_bottleneck(write):
    made = plan(write, SGLANG)
    flow = made.flow
    parts = {p.name: p.computed for p in made.flops}
    assert flow.capture_flops == parts.pop("target prefill") * 3
    assert flow.train_flops == sum(parts.values()) * 3
    assert (flow.capture_devices, flow.train_devices) == (4, 1)
    assert flow.bytes_per_token == (3 + 1) * 64 * 2
    assert "training is the bottleneck" in text(made)
    slow = attrs.evolve(made, flow=attrs.evolve(flow, capture_flops=flow.train_flops * 5))
    assert "capture is the bottleneck" in text(slow)
    wire = flow.bytes_per_token * flow.step_tokens
    seconds = flow.train_flops / (made.device.tflops * 1e12 * 0.5)
    assert f"on the wire then: {wire / seconds / 1e9:.3g} GB/s" in text(made)


def test_watermarks_are_two_steps_and_a_capture_batch_or_what_is_given(write):
    store = plan(write, SHARED).op("put").settings
    per_document = 32 * 4 * 64 * 4
    assert (store.high_documents, store.low_documents, store.pool_bytes) == (28, 12, 28 * per_document)
    store = plan(write, f"{SHARED}, high_watermark=100, low_watermark=50").op("put").settings
    assert (store.high_documents, store.low_documents, store.pool_bytes) == (100, 50, 100 * per_document)
    kept = plan(write, f'{SHARED}, retain="features"', rest="outputs=[Checkpoint(every=5)]").op("put").settings
    assert kept.pool_bytes == (28 + 5 * 12) * per_document
    packs = plan(write, SHARED, train="Capture(rows, target), Eagle3(), pack_tokens=64").op("put").settings
    assert (packs.high_documents, packs.low_documents, packs.pool_bytes) == (None, None, None)
    assert "known after preparation" in text(plan(write, SHARED, "Capture(rows, target), Eagle3(), pack_tokens=64"))


def test_a_store_that_listens_everywhere_is_warned_of(write):
    assert any("listen on all interfaces" in w for w in plan(write, SGLANG).warnings)
    assert not any("listen" in w for w in plan(write, SHARED).warnings)


@pytest.mark.parametrize("topology", ["Colocated(", SHARED])
def test_the_plan_does_not_grow_with_the_data(write, topology):
    small = plan(write, topology)
    path = load(write(rest=f"topology={topology}),")).base / "rows.jsonl"
    path.write_text('{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}\n' * 20_000)
    recipe = write(train="Capture(rows, target), Eagle3(), batch_size=4, accumulation=3", rest=f"topology={topology}),")
    path.write_text('{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}\n' * 20_000)
    large = compile(load(recipe))
    assert large.files != small.files
    assert len(dump(large)) - len(dump(small)) < 16, "a longer number of bytes, and no more"
