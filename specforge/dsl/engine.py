"""In: how the target is run. Out: `Transformers`, beside the trainer or as a capture server; `SGLang`, a server."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.node import NodeRule, field, node
from specforge.dsl.rule import Fault, choice, flag, flags, gpu_ids, number, text, url, whole

GRAPH = "a CUDA graph of the prefill would replay without the capture"
# What SGLang must not be told: flag -> the values under which capture is whole, and why.
CAPTURE_FLAGS = {
    "disable-radix-cache": ((True,), "rows of cached prompt tokens would be missing"),
    "chunked-prefill-size": ((-1,), "a prompt would be captured in parts"),
    "cuda-graph-backend-prefill": (("disabled",), GRAPH),
    "disable-prefill-cuda-graph": ((True,), GRAPH),
    "cuda-graph-config": ((), GRAPH),
    "cuda-graph-bs-prefill": ((), GRAPH),
    "enforce-piecewise-cuda-graph": ((), GRAPH),
    "enable-breakable-cuda-graph": ((), GRAPH),
    "pp-size": ((1,), "the layers would lie in several processes"),
    "pipeline-parallel-size": ((1,), "the layers would lie in several processes"),
    "skip-tokenizer-init": ((True,), "the run sends token ids"),
    "speculative-algorithm": ((), "capture needs the target's own forward"),
    "speculative-algo": ((), "capture needs the target's own forward"),
    "enable-dp-attention": ((), "rows of a prompt would lie on several ranks"),
    "enable-dp-lm-head": ((), "rows of a prompt would lie on several ranks"),
    "nnodes": ((), "a capture server is on one host"),
    "base-gpu-id": ((), "it is SGLang(gpus=...)"),
    "tensor-parallel-size": ((), "it is SGLang(tp=...)"),
    "enable-mixed-chunk": ((), "a prompt would be captured in parts"),
    "enable-hierarchical-cache": ((), "rows of cached prompt tokens would be missing"),
    "disaggregation-mode": ((), "prefill and decoding would be servers of their own"),
    "enable-lora": ((), "the draft would learn another model than its target"),
    "host": ((), "the run binds it"),
    "port": ((), "the run takes a free one"),
    "model-path": ((), "it is the recipe's Target"),
    "model": ((), "it is the recipe's Target"),
    "tp-size": ((), "it is SGLang(tp=...)"),
    "tp": ((), "it is SGLang(tp=...)"),
    "mem-fraction-static": ((), "it is SGLang(mem_fraction=...)"),
    "dtype": ((), "it is SGLang(dtype=...)"),
    "context-length": ((), "it follows from max_length"),
}

EXPERT_FLAGS = ("ep-size", "ep", "expert-parallel-size")


def _one_gpu(server: Any) -> tuple[str, Fault] | None:
    if server.gpus is not None and len(server.gpus) > 1:
        what = f"is {list(server.gpus)}, and transformers runs the target on one GPU"
        servers = ", ".join(f"Transformers(gpus=[{gpu}])" for gpu in server.gpus)
        return "gpus", Fault(what, f"write a server for each: {servers}")
    return None


@node
class Transformers:
    """Capture with transformers. `dtype` of the target's compute, None: float32 on a CPU, bfloat16 on a GPU.

    `batch_size`: documents of one forward; None: the documents of a micro-step, on a GPU as many as fill it. Where it
    holds several optimizer steps, their documents are captured together. `packed`: documents lie end to end in a
    forward, where the target's attention keeps them apart (the run tries that), else they are padded, those of similar
    length together. None: packed on a CPU, where padding costs most.
    `gpus`: of a capture server, the GPU it runs on; None: the next that no other server names. A Colocated engine runs
    on its trainer's.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("server-one-gpu", "a capture server of transformers has one GPU", _one_gpu),
    )

    dtype: str | None = field(choice("float32", "bfloat16", "float16"), default=None, optional=True)
    batch_size: int | None = field(whole(), default=None, optional=True)
    packed: bool | None = field(flag(), default=None, optional=True)
    gpus: tuple[int, ...] | None = field(gpu_ids(), default=None, optional=True)


def _managed_or_external(server: Any) -> tuple[str, Fault] | None:
    if server.url is None:
        return None
    for name in ("gpus", "tp", "python", "args", "mem_fraction"):
        if getattr(server, name) not in (None, ()):
            what = f"is {server.url!r}, and {name} is of a server that the run starts itself"
            return "url", Fault(what, f"leave {name} out, or leave url out")
    return None


def _tp_is_gpus(server: Any) -> tuple[str, Fault] | None:
    if server.tp is not None and server.gpus is not None and server.tp != len(server.gpus):
        what = f"is {server.tp}, and gpus={list(server.gpus)} has {len(server.gpus)}"
        return "tp", Fault(what, "leave tp out: every GPU holds a part of the target")
    return None


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _keeps_capture(server: Any) -> tuple[str, Fault] | None:
    parts = len(server.gpus) if server.gpus else server.tp or 1
    for name, value in server.args:
        if name.lstrip("-").replace("_", "-") in EXPERT_FLAGS and (not _counts(value) or parts % value):
            what = f"holds {name}={value!r}, and experts are split over a divisor of the server's {parts} GPUs"
            return "args", Fault(what, f"write a whole number that divides {parts}, or leave {name} out")
        flag_name = name.lstrip("-").replace("_", "-")
        if flag_name in CAPTURE_FLAGS:
            allowed, why = CAPTURE_FLAGS[flag_name]
            if value not in allowed:
                what = f"holds {name}={value!r}, which breaks the capture: {why}"
                return "args", Fault(what, f"leave {name} out")
    return None


@node
class SGLang:
    """A capture server of SGLang: started by the run, or there already at `url`.

    `gpus`: those it takes (None: the next that no other server names), the target split over them. `tp`: over how many
    (None: all of `gpus`). `dtype` of the target's compute, None: that of the device. `python`: the interpreter it runs
    with, None: the run's. `mem_fraction` of the GPU's memory for weights and cache. `args`: other flags of its command
    line, as {"attention-backend": "fa3"}. `startup_timeout_s`: how long it may take to answer.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("server-external", "a server that runs already is not started with options", _managed_or_external),
        NodeRule("server-tp", "a server is split over all of its GPUs", _tp_is_gpus),
        NodeRule("server-flags", "flags of a capture server leave the capture whole", _keeps_capture),
    )

    gpus: tuple[int, ...] | None = field(gpu_ids(), default=None, optional=True)
    tp: int | None = field(whole(), default=None, optional=True)
    dtype: str | None = field(choice("bfloat16", "float16", "float32"), default=None, optional=True)
    python: str | None = field(text("the path of a Python interpreter"), default=None, optional=True)
    url: str | None = field(url(), default=None, optional=True)
    mem_fraction: float | None = field(number(0.0, 1.0, above=True), default=None, optional=True)
    args: tuple[tuple[str, Any], ...] = field(flags(), default=())
    startup_timeout_s: float = field(number(1.0, 86_400.0), default=1800.0)


Engine = Transformers | SGLang
ENGINES = (Transformers, SGLang)
