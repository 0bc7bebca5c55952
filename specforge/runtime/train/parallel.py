"""In: gradients, notes and sums of this rank. Out: `Ranks`: the same over all ranks of a training.

Every rank holds the whole draft and its share of an optimizer step's packs. One collective per optimizer step carries
the float32 gradients, laid end to end, and a few notes behind them; sums for a log line or an evaluation are another.
A step normalises by what all ranks hold together, so sums over ranks are what a single rank would have had. Nothing
here knows who started the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import attrs
import torch
import torch.distributed as dist

# A rank may wait for another that saves, evaluates or captures; the launcher ends the run at once where one dies.
TIMEOUT = timedelta(minutes=30)


class PeerLost(RuntimeError):
    """A collective failed: another rank is gone, and its own end tells why."""


class Ranks(Protocol):
    """`rank` of `size`; every rank calls the same methods in the same order, and gets the same bits from them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def reduce(self, gradients: Sequence[torch.Tensor], notes: torch.Tensor) -> torch.Tensor:
        """Sum float32 `gradients` over all ranks in place, in one collective. Returns the summed `notes`, float32 [n].

        Raises PeerLost.
        """
        ...

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """The sum of `sums` over all ranks, in one collective. Raises PeerLost."""
        ...


@attrs.frozen
class Alone:
    """One rank: everything is summed already."""

    rank: int = 0
    size: int = 1

    def reduce(self, gradients: Sequence[torch.Tensor], notes: torch.Tensor) -> torch.Tensor:
        return notes

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


ALONE = Alone()


@attrs.frozen
class Group:
    """The ranks of torch's default process group."""

    rank: int
    size: int

    @torch.no_grad()
    def reduce(self, gradients: Sequence[torch.Tensor], notes: torch.Tensor) -> torch.Tensor:
        assert all(g.dtype == torch.float32 for g in (*gradients, notes)), "gradients are summed in float32"
        flat = torch.cat([*(g.reshape(-1) for g in gradients), notes])
        _sum(flat)
        *summed, notes = flat.split([*(g.numel() for g in gradients), len(notes)])
        torch._foreach_copy_(list(gradients), [s.view_as(g) for s, g in zip(summed, gradients, strict=True)])
        return notes.clone()  # a view would keep the whole bucket

    @torch.no_grad()
    def total(self, sums: torch.Tensor) -> torch.Tensor:
        summed = sums.clone()
        _sum(summed)
        return summed


@contextmanager
def joined(device_type: str) -> Iterator[Group]:
    """The group of the ranks that torch's launcher started: NCCL where `device_type` is "cuda", gloo on a CPU.

    After an error the group is left as it is: taking it apart could wait for a rank that is gone.
    """
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo", timeout=TIMEOUT)
    yield Group(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


def _sum(tensor: torch.Tensor) -> None:
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        raise PeerLost(f"the ranks lost one another: {error}") from error
