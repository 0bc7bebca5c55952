"""In: the metrics of a run as it goes. Out: a live bar on a terminal, else plain lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichBar


class Progress(Protocol):
    """Shows where a run is."""

    def step(self, step: int, seconds_left: float | None) -> None:
        """`step` optimizer steps are done; `seconds_left` None: not known yet."""
        ...

    def metrics(self, metrics: Mapping[str, float]) -> None:
        """Metrics of a logged step: step, loss, acc, tokens_per_s, waiting_share."""
        ...

    def note(self, text: str) -> None:
        """Say something that stays: a checkpoint, an evaluation."""
        ...

    def close(self) -> None: ...


def open_progress(name: str, steps: int, console: Console | None = None) -> Progress:
    """A bar where `console` (default: standard error) is a terminal, else lines."""
    console = console or Console(stderr=True)
    return TerminalProgress(name, steps, console) if console.is_terminal else PlainProgress(steps, console)


class TerminalProgress:
    """A rich bar with the last metrics."""

    def __init__(self, name: str, steps: int, console: Console) -> None:
        self._bar = RichBar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TextColumn("ETA {task.fields[left]}"),
            console=console,
        )
        self._task = self._bar.add_task(name, total=steps, shown="", left="-")
        self._bar.start()

    def step(self, step: int, seconds_left: float | None) -> None:
        self._bar.update(self._task, completed=step, left=duration(seconds_left))

    def metrics(self, metrics: Mapping[str, float]) -> None:
        self._bar.update(self._task, shown=summary(metrics))

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


class PlainProgress:
    """One line per logged step and note, for files and pipes."""

    def __init__(self, steps: int, console: Console) -> None:
        self._steps, self._console, self._left = steps, console, "-"

    def step(self, step: int, seconds_left: float | None) -> None:
        self._left = duration(seconds_left)

    def metrics(self, metrics: Mapping[str, float]) -> None:
        self.note(f"step {metrics['step']:.0f}/{self._steps}  {summary(metrics)}  ETA {self._left}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        return None


def summary(metrics: Mapping[str, float]) -> str:
    """Loss, accuracy, speed and waiting share in one line."""
    return (
        f"loss {metrics['loss']:.4f}  acc {metrics['acc']:.3f}  {metrics['tokens_per_s']:,.0f} tokens/s  "
        f"waiting {metrics['waiting_share']:.0%}"
    )


def duration(seconds: float | None) -> str:
    """As 1:02:03 or 2:03; "-" where unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
