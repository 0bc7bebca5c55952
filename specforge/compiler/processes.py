"""In: the facts. Out: the processes of a run, what each offers the others, and how the others know that it is there."""

from __future__ import annotations

from specforge.compiler.facts import Facts
from specforge.compiler.passes.place import CAPTURE, DATA, RECORDER, TRAINER
from specforge.dsl.engine import Engine, SGLang
from specforge.dsl.store import Mooncake
from specforge.plan import Process, Service

FREE = 0
CONTROLLER_START_S = 60.0
TRANSFORMERS_START_S = 1800.0
STORE_START_S = 60.0
# SGLang keeps these beside a prompt's own tokens
RESERVED_SLOTS = 7


def processes(facts: Facts) -> tuple[Process, ...]:
    """Colocated: the trainer or the recorder. Disaggregated: the run, which prepares and starts all the others."""
    if facts.recipe.train is None:
        return (Process(RECORDER, (RECORDER,), RECORDER, gpus=facts.gpus[-1]),)
    if not facts.apart:
        return (Process(TRAINER, (TRAINER,), gpus=facts.gpus[-1]),)
    control = Service("control", "HTTP with a token", FREE, "GET /health", CONTROLLER_START_S)
    found = [Process("run", (DATA,), "run"), Process("controller", (), "controller", services=(control,))]
    store = facts.disaggregated.store
    if isinstance(store, Mooncake):
        found.append(_master(store))
    for number, server in enumerate(facts.servers):
        found.append(_server(number, server, facts))
        found.append(Process(f"worker-{number}", (), "capture_worker"))
    return (*found, Process(TRAINER, (TRAINER,), gpus=facts.gpus[-1]))


def _server(number: int, server: Engine, facts: Facts) -> Process:
    name, roles, gpus = f"server-{number}", (CAPTURE,), facts.gpus[number]
    if not isinstance(server, SGLang):
        service = Service("capture", "HTTP with a token", FREE, "GET /health", TRANSFORMERS_START_S)
        return Process(name, roles, "capture_server", gpus, (service,))
    service = Service("capture", "HTTP", FREE, "GET /get_model_info", server.startup_timeout_s)
    return Process(name, roles, "capture_server", gpus, (service,), server.url, _command(server, len(gpus), facts))


def _command(server: SGLang, gpus: int, facts: Facts) -> tuple[str, ...]:
    """What SGLang is started with. Prefills are not cached, cut or replayed: a capture needs every row of a prompt."""
    if server.url is not None:
        return ()
    words = [server.python or "python", "-m", "sglang.launch_server", "--model-path", facts.target.name]
    words += [
        "--disable-radix-cache",
        "--chunked-prefill-size",
        "-1",
        "--skip-tokenizer-init",
        "--tp-size",
        str(server.tp or gpus or 1),
    ]
    words += ["--cuda-graph-backend-prefill", "disabled", "--dtype", facts.target_dtype]
    words += ["--context-length", str(facts.max_length + RESERVED_SLOTS)]
    if server.mem_fraction is not None:
        words += ["--mem-fraction-static", f"{server.mem_fraction:g}"]
    for flag, value in server.args:
        words.append("--" + flag.lstrip("-").replace("_", "-"))
        words += [] if value is True else [str(value)]
    return tuple(words)


def _master(store: Mooncake) -> Process:
    service = Service("mooncake", "Mooncake RPC", FREE, "GET /metrics/summary", STORE_START_S)
    url = None if store.master is None else store.master
    command = () if url else ("mooncake_master", "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1")
    return Process("store", (), "store", (), (service,), url, command)
