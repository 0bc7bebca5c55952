"""In: what a test asks of every rank. Out: entries of `launch`, in a module that the ranks' processes can import."""

import errno
import os
import time
from collections import Counter

import torch
import torch.distributed as dist

from specforge.runtime.executor import colocated
from specforge.runtime.run_folder import RunFolder
from specforge.runtime.train.launch import launch
from specforge.runtime.train.parallel import joined

# every way of torch.distributed to let ranks wait for one another
COLLECTIVES = [name for name in dist.distributed_c10d.__all__ if callable(getattr(dist, name, None)) and name.islower()]
COLLECTIVES = [n for n in COLLECTIVES if n.startswith(("all_", "reduce", "broadcast", "barrier", "gather", "scatter"))]


def counted() -> Counter:
    """From now on, every collective that this process takes part in is counted by its name."""
    calls: Counter = Counter()
    for name in COLLECTIVES:
        plain = getattr(dist, name)

        def call(*args, name=name, plain=plain, **kwargs):
            calls[name] += 1
            return plain(*args, **kwargs)

        setattr(dist, name, call)
    return calls


def reduced(stop) -> tuple:
    """Gradients and notes of two ranks, reduced; what rank 0 then holds, its sums, and the collectives it took."""
    with joined("cpu") as ranks:
        calls = counted()
        gradients = [torch.full((2, 3), float(ranks.rank + 1)), torch.arange(4.0) * (1 + 9 * ranks.rank)]
        notes = torch.zeros(3)
        notes[ranks.rank] = 1.0
        notes = ranks.reduce(gradients, notes)
        after_reduce = dict(calls)
        sums = ranks.total(torch.tensor([0.1, 2.0], dtype=torch.float64) * (ranks.rank + 1))
        return (ranks.size, [g.tolist() for g in gradients], notes.tolist(), sums.tolist(), after_reduce, dict(calls))


def counted_run(stop, plan, path) -> dict:
    """The collectives that a whole run of `plan` takes."""
    calls = counted()
    colocated._rank(stop, plan, RunFolder(path))
    return dict(calls)


def reduced_on_gpu(stop) -> tuple:
    """What `reduced` does, over NCCL."""
    with joined("cuda") as ranks:
        torch.cuda.set_device(ranks.rank)
        gradients = [torch.full((2, 3), float(ranks.rank + 1), device="cuda"), torch.arange(4.0, device="cuda")]
        notes = ranks.reduce(gradients, torch.ones(2, device="cuda"))
        sums = ranks.total(torch.tensor([0.5], dtype=torch.float64, device="cuda"))
        return (ranks.size, dist.get_backend(), [g.tolist() for g in gradients], notes.tolist(), sums.tolist())


def refuses(stop) -> None:
    """Rank 1 meets a user's mistake while rank 0 waits for it."""
    with joined("cpu") as ranks:
        if ranks.rank == 1:
            raise ValueError("row 7 of chats.jsonl is no chat; mend it")
        ranks.total(torch.zeros(1))


def fills_the_disk(stop) -> None:
    with joined("cpu") as ranks:
        if ranks.rank == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/x")
        ranks.total(torch.zeros(1))


def breaks(stop) -> None:
    with joined("cpu") as ranks:
        if ranks.rank == 1:
            raise KeyError("ours")
        ranks.total(torch.zeros(1))


def dies(stop) -> None:
    with joined("cpu") as ranks:
        if ranks.rank == 1:
            os.kill(os.getpid(), 9)
        ranks.total(torch.zeros(1))


def waits_for_the_request(stop, folder) -> str:
    """Says where it is, then goes on until it is asked to stop."""
    with joined("cpu") as ranks:
        (folder / f"rank-{ranks.rank}").write_text(str(os.getpid()))
        while not stop.requested:
            time.sleep(0.01)
        return f"{ranks.rank} stopped"


def never_ends(stop, folder) -> None:
    (folder / f"rank-{os.environ['RANK']}").write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


def launching(folder) -> None:
    launch(2, never_ends, (folder,))
