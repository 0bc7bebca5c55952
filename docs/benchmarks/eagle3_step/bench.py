"""In: a GPU (or --toy: a CPU). Out: time and memory of the EAGLE3 step beside its matmuls alone, and its correctness.

    python docs/benchmarks/eagle3_step/bench.py [--only NAME] [--json FILE] [--check] [--profile NAME]
        [--implementation auto|triton|torch] [--deviation X] [--toy]

Llama-3-8B's draft with random weights and features, forward and backward without the optimizer. "Floor": the step's
matmuls (without attention) through torch.mm on the same row counts, timed in the same call.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import statistics
import sys
import time
from pathlib import Path

import attrs
import numpy as np
import torch
from specforge_kernels.soft_target_loss import Teacher

from specforge.runtime.data.batch import Features, batch
from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.draft.eagle3 import Eagle3Draft
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.runtime.step.kernels import Kernels
from specforge.runtime.step.rows import row_plan
from specforge.settings import DraftSettings, Eagle3Settings

STEPS, WARMUP, TIMES, LONGEST = 7, 3, 8, 30
LOSS_BAR, GRADIENT_BAR, NEAR = 1e-3, 1e-2, 1.1
LLAMA = DraftSettings(
    architecture="LlamaForCausalLMEagle3",
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    draft_vocab_size=32000,
    target_hidden_size=4096,
    aux_layers=(2, 16, 29),
    rms_norm_eps=1e-5,
    hidden_act="silu",
    rope={"rope_type": "default", "rope_theta": 500000.0},
    max_position_embeddings=131072,
    fc_norm=False,
    norm_output=False,
    dtype="bfloat16",
    initializer_range=0.02,
    parameters=(),
)
SMALL = attrs.evolve(
    LLAMA,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=500,
    draft_vocab_size=128,
    target_hidden_size=64,
)


@attrs.frozen
class Shape:
    """Documents of these lengths; `turn`: rows of an alternating turn, of which `share` are supervised (0: all)."""

    lengths: tuple[int, ...]
    turn: int = 0
    share: float = 0.4

    def pack(self, vocab: int) -> Pack:
        rng = np.random.default_rng(1)
        made = []
        for index, length in enumerate(self.lengths):
            at = np.arange(length)
            mask = np.ones(length, bool) if self.turn == 0 else at % self.turn >= self.turn * (1 - self.share)
            made.append(Document(index, rng.integers(0, vocab, length).astype(np.int32), mask))
        return Pack(tuple(made))


MANY = tuple(int(n) for n in np.random.default_rng(0).integers(64, 513, 64))
SHAPES = {
    "T 2048": Shape((2048,)),
    "T 8192": Shape((8192,)),
    "4 x 2048": Shape((2048,) * 4),
    "T 16384": Shape((16384,)),
    "T 8192, 40 % in turns": Shape((8192,), turn=500),
    "64 documents of 64..512": Shape(MANY),
}
TOY = {"T 48": Shape((48,)), "3 x 20, turns": Shape((20,) * 3, turn=7)}


class Bench:
    """A draft, a target head and shapes on one device."""

    def __init__(self, settings: DraftSettings, device: str, dtype: torch.dtype, implementation: str) -> None:
        self.settings, self.device, self.dtype = settings, torch.device(device), dtype
        torch.manual_seed(0)
        with torch.device(device):
            self.draft = Eagle3Draft(settings).to(device).to(dtype)
            self.head_VH = (torch.randn(settings.vocab_size, settings.target_hidden_size) * 0.03).to(dtype)
            for parameter in self.draft.parameters():
                if parameter.dim() == 2:
                    parameter.data.normal_(0, settings.initializer_range)
            kept_d = torch.randperm(settings.vocab_size)[: settings.draft_vocab_size].sort().values
            self.draft.d2t.copy_(kept_d - torch.arange(settings.draft_vocab_size))
            self.draft.t2d.fill_(False)[kept_d] = True
        self.step = Eagle3Step(
            self.draft, self.head_VH, Eagle3Settings(STEPS, 0.8, "tokens"), kernels=Kernels.all(implementation)
        )

    def batch(self, shape: Shape):  # type: ignore[no-untyped-def]
        pack, width = shape.pack(self.settings.vocab_size), self.settings.target_hidden_size
        generator = torch.Generator(self.device).manual_seed(2)

        def made(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=self.device, generator=generator, dtype=torch.float32).to(
                self.dtype
            )

        features = [Features(made(n, 3 * width), made(n, width)) for n in pack.lengths]
        return batch(pack, features, self.device)

    def run(self, given) -> torch.Tensor:  # type: ignore[no-untyped-def]
        for parameter in self.draft.parameters():
            parameter.grad = None
        result = self.step(given, given.pack.supervised)
        result.loss.backward()
        return result.loss

    def times(self, run, times: int = TIMES) -> list[float]:  # type: ignore[no-untyped-def]
        found = []
        for _ in range(WARMUP + times):
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            found.append((time.perf_counter() - start) * 1e3)
        return found[WARMUP:]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def floor(self, shape: Shape):  # type: ignore[no-untyped-def]
        """The step's matmuls on its own row counts."""
        s, plan = self.settings, row_plan(shape.pack(self.settings.vocab_size), STEPS, self.device.type == "cuda")
        q, kv = s.num_heads * s.head_dim, s.num_kv_heads * s.head_dim
        first, kept, context = plan.steps[0].kept, [x.kept for x in plan.steps], len(plan.context_C)
        parts = [(context, 3 * s.target_hidden_size, s.hidden_size, 2), (first, s.hidden_size, q + 2 * kv, 3)]
        for rows in kept:
            parts += [
                (rows, s.hidden_size, q + 2 * kv, 3),
                (rows, q, s.hidden_size, 3),
                *[(rows, s.hidden_size, s.intermediate_size, 3)] * 2,
                (rows, s.intermediate_size, s.hidden_size, 3),
            ]
        if context > first:
            parts += [(context - first, s.hidden_size, 2 * kv, 3)] * 2
        parts += [(len(plan.step_W), s.hidden_size, s.draft_vocab_size, 3)]
        parts += [(len(plan.last_U), s.target_hidden_size, s.vocab_size, 1)]
        pool = self._normal(max(min(rows, 16384) * inner for rows, inner, _, _ in parts))
        weights = {(i, o): self._normal(o, i) for _, i, o, _ in parts}

        def run() -> None:
            for rows, inner, outer, matmuls in parts:
                weight = weights[inner, outer]
                for start in range(0, rows, 16384):
                    count = min(16384, rows - start)
                    x = pool[: count * inner].view(count, inner)
                    y = torch.mm(x, weight.t())
                    if matmuls > 1:
                        torch.mm(y.t(), x)
                    if matmuls > 2:
                        torch.mm(y, weight)

        return run

    def _normal(self, *shape: int) -> torch.Tensor:
        x = torch.empty(*shape, device=self.device, dtype=self.dtype)
        return x.normal_(0, 0.02)

    def row(self, name: str, shape: Shape) -> dict:
        given = self.batch(shape)
        cuda = self.device.type == "cuda"
        self.run(given)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        two = [self.times(lambda: self.run(given)) for _ in range(2)]
        features = (given.aux_RC.nbytes + given.last_RH.nbytes) / 2**30
        peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
        medians = [statistics.median(t) for t in two]
        for parameter in self.draft.parameters():
            parameter.grad = None
        floor = statistics.median(self.times(self.floor(shape)))
        return {
            "name": name,
            "ms": min(medians),
            "other_run_ms": max(medians),
            "slowest_ms": max(map(max, two)),
            "peak_gib": peak,
            "features_gib": features,
            "floor_ms": floor,
            "ratio": min(medians) / floor,
            "supervised": given.pack.supervised,
            "us_per_supervised": min(medians) * 1e3 / given.pack.supervised,
        }


def check(device: str, settings: DraftSettings, length: int, wish: str, dtype: torch.dtype) -> bool:
    """The step as it runs, and the PyTorch path in the same dtype, against the PyTorch path in float32.

    All have the same (rounded) weights, features and teacher: which of two almost equal logits of the target is the
    greater decides whether a row counts. True: the loss is within its bar, and every gradient within its own or, within
    a tenth, as near as the PyTorch path's: what a dtype loses in seven steps in a row, no kernel can bring back.
    """
    shape = Shape((length, length // 3, 70), turn=61, share=0.7)
    first = Bench(settings, device, dtype, wish)
    given = first.batch(shape)
    rows = row_plan(given.pack, STEPS, first.device.type == "cuda").to(device)
    taught = first.step.teacher(given.last_RH.index_select(0, rows.last_U))
    (loss, ours), (_, plain), (exact_loss, exact) = (
        of_one(Bench(settings, device, kind, how), first, given, dataclasses.replace(taught, implementation=how))
        for kind, how in ((dtype, wish), (dtype, "torch"), (torch.float32, "torch"))
    )
    error = abs(loss - exact_loss) / abs(exact_loss)
    print(f"loss {loss:.6f}, float32 {exact_loss:.6f}, relative error {error:.1e} (bar {LOSS_BAR:.0e})")
    good = error <= LOSS_BAR
    for name, wanted in exact.items():
        error, other = (((x[name].float() - wanted).norm() / wanted.norm()).item() for x in (ours, plain))
        good = good and error <= max(GRADIENT_BAR, NEAR * other)
        note = "" if error <= GRADIENT_BAR else f"   above {GRADIENT_BAR:.0e}"
        print(f"  {name:46s} {error:.2e}, PyTorch in {str(dtype).removeprefix('torch.')} {other:.2e}{note}")
    again = of_one(Bench(settings, device, dtype, wish), first, given, taught)[1]
    same = all(torch.equal(again[name], ours[name]) for name in ours)
    print(f"a second run gives the same bits: {same}", flush=True)
    return good and same


def of_one(bench: Bench, first: Bench, given, taught: Teacher) -> tuple[float, dict[str, torch.Tensor]]:  # type: ignore[no-untyped-def]
    """Loss and gradients of the weights, features and teacher of `first`."""
    bench.draft.load_state_dict(first.draft.state_dict())
    bench.step.teacher = lambda _: taught
    loss = bench.run(attrs.evolve(given, aux_RC=given.aux_RC.to(bench.dtype))).item()
    return loss, {name: p.grad for name, p in bench.draft.named_parameters() if p.grad is not None}


def profile(bench: Bench, shape: Shape) -> None:
    given = bench.batch(shape)
    bench.run(given)
    bench.run(given)
    with torch.profiler.profile() as found:
        bench.run(given)
        bench.wait()
    gpu = bench.device.type == "cuda"
    rows = [(e.self_device_time_total if gpu else e.self_cpu_time_total, e.count, e.key) for e in found.key_averages()]
    names = {e.name for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA}
    rows = sorted((r for r in rows if not gpu or r[2] in names), reverse=True)
    print(f"{sum(r[0] for r in rows) / 1e3:.2f} ms in all")
    for total, count, name in rows[:LONGEST]:
        print(f"{total / 1e3:9.3f} ms {count:5d} x  {name[:90]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--toy", action="store_true", help="a toy draft on the CPU")
    parser.add_argument("--only", help="a part of the shape's name")
    parser.add_argument("--implementation", default="auto", choices=("auto", "triton", "torch"))
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--check", action="store_true", help="compare with float32 first; wrong: nothing is timed")
    parser.add_argument("--deviation", type=float, help="of the random weights, instead of 0.02")
    parser.add_argument("--profile", metavar="NAME", help="the longest kernels of one step of this shape")
    given = parser.parse_args()
    if not given.toy and not torch.cuda.is_available():
        print("no CUDA GPU here; --toy runs on the CPU", file=sys.stderr)
        return 1
    settings, device, dtype = (SMALL, "cpu", torch.float32) if given.toy else (LLAMA, "cuda", torch.bfloat16)
    if given.deviation is not None:
        settings = attrs.evolve(settings, initializer_range=given.deviation)
    shapes = {n: s for n, s in (TOY if given.toy else SHAPES).items() if given.only is None or given.only in n}
    head = {"device": "cpu" if given.toy else torch.cuda.get_device_name(), "torch": torch.__version__}
    if not given.toy:
        head |= {"triton": importlib.metadata.version("triton"), "date": datetime.date.today().isoformat()}
    print(head, flush=True)
    if given.check and not check(device, settings, 60 if given.toy else 2048, given.implementation, dtype):
        print("wrong: above the bars; nothing is timed", file=sys.stderr)
        return 1
    bench = Bench(settings, device, dtype, given.implementation)
    if given.profile:
        profile(bench, shapes.get(given.profile) or next(iter(shapes.values())))
        return 0
    rows = []
    for name, shape in shapes.items():
        row = bench.row(name, shape)
        rows.append(row)
        print(
            f"{name:26s} {row['ms']:8.1f} ms (other run {row['other_run_ms']:.1f}, slowest {row['slowest_ms']:.1f})  "
            f"peak {row['peak_gib']:.2f} GiB with {row['features_gib']:.2f} GiB features  "
            f"floor {row['floor_ms']:.1f} ms  ratio {row['ratio']:.3f}  "
            f"{row['us_per_supervised']:.1f} us per supervised row",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
