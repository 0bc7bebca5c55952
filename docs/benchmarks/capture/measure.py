"""In: recipes/smollm2_eagle3.py and how many documents make a forward. Out: CPU seconds of each layout of a capture.

Usage: python docs/benchmarks/capture/measure.py 8. CPU time of one thread: other work on the machine changes it little.
"""

import sys
import tempfile
import time
from pathlib import Path

import attrs
import numpy as np
import torch

from specforge.compiler import compile, load
from specforge.runtime.capture.transformers_engine import TransformersEngine
from specforge.runtime.data.sources import prepare_sources
from specforge.runtime.executor.work import work
from specforge.runtime.target import Placement, load_target

RECIPE = Path(__file__).parents[3] / "recipes" / "smollm2_eagle3.py"
DOCUMENTS, REPEATS = 16, 2

torch.set_num_threads(1)
plan = compile(load(RECIPE))
found, base = work(plan), Path(plan.base)
target = load_target(plan.target, base, Placement("cpu", "float32"))
with tempfile.TemporaryDirectory() as folder:
    ((_, prepared),) = prepare_sources(plan.target, base, found.sources, Path(folder))
chosen = np.random.default_rng(0).permutation(len(prepared.documents))[:DOCUMENTS]
documents = [prepared.documents[i] for i in chosen]
lengths = [len(d.tokens) for d in documents]
engines = {packed: TransformersEngine(target, attrs.evolve(found.capture, packed=packed)) for packed in (False, True)}
assert engines[True].packed, engines[True].note
by_length = sorted(documents, key=lambda d: len(d.tokens))
layouts = {
    "padded, in order": (engines[False], documents),
    "padded, by length": (engines[False], by_length),
    "end to end": (engines[True], documents),
}
print(f"{DOCUMENTS} documents, {sum(lengths)} tokens, the longest {max(lengths)}")
for name, (engine, laid) in layouts.items():
    seconds = []
    for _ in range(REPEATS):
        began, size = time.process_time(), int(sys.argv[1])
        for first in range(0, DOCUMENTS, size):
            engine.capture(laid[first : first + size])
        seconds.append(time.process_time() - began)
    print(f"{name:18} {min(seconds):6.1f} s  {sum(lengths) / min(seconds):6.0f} tokens/s", flush=True)
