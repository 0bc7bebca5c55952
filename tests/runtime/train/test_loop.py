"""In: toy batches, the real step. Out: accumulation, non-finite samples, signals, what is logged and saved when."""

import io
import json
import os
import signal

import attrs
import numpy as np
import pytest
import torch
from rich.console import Console

from specforge.runtime.checkpoint.state import State
from specforge.runtime.data.batch import Features, batch
from specforge.runtime.data.fed import Fed
from specforge.runtime.data.pack import Document, Pack
from specforge.runtime.draft.eagle3 import init_draft
from specforge.runtime.step.eagle3 import Eagle3Step
from specforge.runtime.train.evaluate import evaluate
from specforge.runtime.train.interrupt import Interrupt
from specforge.runtime.train.loop import (
    Evaluation,
    NonFiniteError,
    Quantum,
    Records,
    Training,
    Window,
    of_one_rank,
    train,
)
from specforge.runtime.train.metrics import MetricsFile
from specforge.runtime.train.optimizer import Optimizer
from specforge.runtime.train.progress import open_progress

pytestmark = pytest.mark.cpu
STEPS = 3
DOCUMENTS = 24  # eight for each of three steps


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@attrs.frozen
class ToyFeed:
    """Eight documents per optimizer step, `size` to a micro-step; document `poisoned` has a NaN in its features."""

    size: int
    poisoned: int | None = None
    before_step: tuple = ()

    def step(self, step):
        for at, action in self.before_step:
            if at == step:
                action()
        indices = range(8 * step, 8 * step + 8)
        return [self._batch(indices[i : i + self.size]) for i in range(0, 8, self.size)]

    def lost(self):
        return ()

    def done(self, step):
        pass

    def _batch(self, indices):
        documents, features = [], []
        for index in indices:
            chance = np.random.default_rng(index)
            length = int(chance.integers(6, 14))
            documents.append(
                Document(index, chance.integers(0, 96, length, dtype=np.int32), chance.random(length) < 0.6)
            )
            aux, last = (torch.from_numpy(chance.normal(size=(length, w)).astype(np.float32)) for w in (96, 32))
            if index == self.poisoned:
                aux[length // 2, 3] = float("nan")
            features.append(Features(aux, last))
        return batch(Pack(tuple(documents)), features, torch.device("cpu"))

    def place(self, step):
        return divmod(step, STEPS)

    def describe(self, document):
        return f"row {document + 1} of toy.jsonl"


class Run:
    """One training over a ToyFeed, with everything it wrote."""

    def __init__(self, folder, settings, feed, beside=None, unkept=False, **records):
        folder.mkdir(exist_ok=True)
        self.saved, self.out = [], io.StringIO()
        draft = init_draft(settings.draft, 5)
        head_VH = torch.randn(96, 32, generator=torch.Generator().manual_seed(9))
        if unkept:  # the teacher's argmax is always another id than the draft's
            head_VH[draft.t2d] = 0.0
        self.optimizer = Optimizer(draft, settings)
        step = Eagle3Step(draft, head_VH, settings.eagle3)

        def micro_step(batch, window):
            return step(batch, window.supervised, window.micro_steps)

        self.micro_step, self.feed = micro_step, feed
        training = Training(settings, micro_step, self.optimizer, feed, **(beside.training() if beside else {}))
        file = MetricsFile(folder / "metrics.jsonl", 0)
        progress = open_progress("toy", STEPS, Console(file=self.out))
        records = {"evaluations": (), "save_every": 0, **records}
        state = State(0, 0, 0, STEPS, STEPS, 0, 0, 0, None, None, "", {})
        try:
            with Interrupt() as interrupt:
                recorded = Records(metrics=file, progress=progress, save=self.saved.append, **records)
                self.outcome = train(training, recorded, state, interrupt)
        finally:
            file.close()
        self.lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def settings(train_settings):
    return attrs.evolve(
        train_settings, max_steps=STEPS, schedule_steps=STEPS, learning_rate=1e-3, max_grad_norm=1e-3, log_every=1
    )


@pytest.mark.parametrize("reduction", ["tokens", "rows"])
def test_accumulation_does_not_change_the_gradient_of_tokens(tmp_path, settings, reduction):
    """2×4, 4×2 and 1×8 are one step where tokens are counted; mean over rows per micro-step is another number."""
    settings = attrs.evolve(settings, eagle3=attrs.evolve(settings.eagle3, reduction=reduction))
    runs = [Run(tmp_path / str(size), settings, ToyFeed(size)) for size in (8, 4, 2)]
    masters = [torch.cat([m.detach().flatten() for m in run.optimizer.masters.values()]) for run in runs]
    norms = [[line["grad_norm"] for line in run.lines] for run in runs]
    if reduction == "tokens":
        assert norms[1] == pytest.approx(norms[0], rel=1e-4)
        assert norms[2] == pytest.approx(norms[0], rel=1e-4)
        torch.testing.assert_close(masters[1], masters[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(masters[2], masters[0], rtol=0, atol=1e-5)
        assert runs[1].lines[0]["loss"] == pytest.approx(runs[0].lines[0]["loss"], rel=1e-5)
        assert runs[1].lines[0]["acc_0"] == runs[0].lines[0]["acc_0"]
    else:
        assert norms[1][0] != pytest.approx(norms[0][0], rel=1e-4)


def test_a_non_finite_sample_stops_the_run_and_is_named(tmp_path, settings):
    with pytest.raises(NonFiniteError, match="step 2: the loss is not finite") as error:
        Run(tmp_path / "a", settings, ToyFeed(4, poisoned=9))
    for index in range(8, 12):
        assert f"row {index + 1} of toy.jsonl" in str(error.value)
    assert "row 13 " not in str(error.value), "only the documents of the micro-step are suspects"
    assert "nonfinite_budget=0" in str(error.value)


def test_within_the_budget_a_non_finite_sample_is_skipped_and_counted(tmp_path, settings):
    run = Run(tmp_path / "a", attrs.evolve(settings, nonfinite_budget=1), ToyFeed(4, poisoned=9))
    clean = Run(tmp_path / "b", settings, ToyFeed(4))
    assert run.outcome.state.nonfinite == 1
    assert [line["nonfinite"] for line in run.lines] == [0, 1, 1]
    assert (run.lines[1]["loss"], run.lines[1]["grad_norm"]) == (None, None)
    assert all(torch.isfinite(m).all() for m in run.optimizer.masters.values())
    assert {float(v) for k, v in run.optimizer.state().items() if k.startswith("step/")} == {2.0}
    assert run.lines[0]["loss"] == clean.lines[0]["loss"]
    assert run.lines[2]["loss"] != clean.lines[2]["loss"], "the skipped update is missing"
    assert "row 10 of toy.jsonl" in run.out.getvalue()


def test_a_signal_finishes_the_step_saves_and_stops(tmp_path, settings):
    for which in (signal.SIGINT, signal.SIGTERM):
        feed = ToyFeed(4, before_step=((1, lambda which=which: os.kill(os.getpid(), which)),))
        run = Run(tmp_path / which.name, settings, feed)
        assert run.outcome.interrupted
        assert [state.step for state in run.saved] == [2]
        assert [line["step"] for line in run.lines] == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_aborts_at_once(tmp_path, settings):
    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path / "a", settings, ToyFeed(4, before_step=((1, twice),)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_saves_evaluations_and_the_best(tmp_path, settings):
    """Scores by step: 0.3, 0.2, 0.5. Saved at the best ones, every second step, and at the end; each step once."""
    scores = iter([0.3, 0.2, 0.5])

    def measure(done):
        return {"loss": 1.0, "acc": 0.5, "simulated_acceptance_length": next(scores)}

    run = Run(tmp_path / "a", settings, ToyFeed(4), evaluations=(Evaluation("heldout", 1, measure),), save_every=2)
    assert [(s.step, s.best_step, s.best_score) for s in run.saved] == [(1, 1, 0.3), (2, 1, 0.3), (3, 3, 0.5)]
    assert [line["step"] for line in run.lines if "evaluation" in line] == [1, 2, 3]
    assert run.outcome.state == run.saved[-1]
    assert run.saved[-1].supervised == sum(line["supervised"] for line in run.lines if "evaluation" not in line)


def test_log_every(tmp_path, settings):
    run = Run(tmp_path / "a", attrs.evolve(settings, log_every=2), ToyFeed(4))
    assert [line["step"] for line in run.lines] == [2, 3], "and the last step"


def test_evaluation_is_the_same_however_documents_are_packed(tmp_path, settings):
    run = Run(tmp_path / "a", settings, ToyFeed(8))
    found = []
    for size in (8, 4, 1):
        batches = ToyFeed(size).step(0)
        window = Window(sum(b.pack.supervised for b in batches), len(batches))
        found.append(evaluate(run.micro_step, [Fed((batch,), ()) for batch in batches], window, 0.8))
    assert found[0]["supervised"] > 0
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("unkept", [True, False])
def test_a_draft_vocabulary_without_the_teachers_tokens_is_warned_of_once(settings, tmp_path, unkept):
    run = Run(tmp_path, settings, ToyFeed(4), unkept=unkept)
    said = [line for line in run.out.getvalue().splitlines() if line.startswith("warning")]
    assert len(said) == unkept
    assert all("step 1:" in line and "Raise Draft(vocab_size=40)" in line for line in said)
    assert [line["kept_share"] == 0.0 for line in run.lines] == [unkept] * STEPS
    assert [line["loss"] == 0.0 for line in run.lines] == [unkept] * STEPS


@attrs.define
class Beside:
    """Rank 0 of two. The other has as many packs, with documents from 100 on, and zero gradients.

    `bad`: at this reduction the loss of its second pack is not finite; `asked`: there it was asked to stop.
    """

    bad: int | None = None
    asked: int | None = None
    reductions: int = 0
    rank: int = 0
    size: int = 2

    def reduce(self, gradients, notes):
        others = torch.zeros_like(notes)
        others[len(notes) // 2 + 1] = float(self.reductions == self.bad)
        others[-1] = float(self.reductions == self.asked)
        self.reductions += 1
        return notes + others

    def total(self, sums):
        return 2 * sums

    def training(self):
        return {"ranks": self, "quantum": self.quantum}

    def quantum(self, step, batches):
        mine = of_one_rank(step, batches)
        packs = (*mine.packs, *((100 + i, 200 + i) for i in range(len(batches))))
        return Quantum(packs, 2 * mine.rows, Window(2 * mine.window.supervised, 2 * mine.window.micro_steps))


def test_a_sample_of_another_rank_is_named_and_skipped_on_every_rank(tmp_path, settings):
    with pytest.raises(NonFiniteError, match=r"step 2: the loss is not finite; the samples are row 102 .*, row 202 of"):
        Run(tmp_path / "a", settings, ToyFeed(4), Beside(bad=1))
    run = Run(tmp_path / "b", attrs.evolve(settings, nonfinite_budget=1), ToyFeed(4), Beside(bad=1))
    assert {float(v) for k, v in run.optimizer.state().items() if k.startswith("step/")} == {2.0}


def test_ranks_stop_together_after_the_step_that_told_them(tmp_path, settings):
    """Whether another was asked, or this one: then it is the sum of notes that stops it, as it stops the other."""
    run = Run(tmp_path / "a", settings, ToyFeed(4), Beside(asked=1))
    assert run.outcome.interrupted
    assert [state.step for state in run.saved] == [2]
    assert [line["step"] for line in run.lines] == [1, 2]
    signals = iter([signal.SIGINT])

    def measure(done):
        for which in signals:
            os.kill(os.getpid(), which)
        return {"loss": 1.0, "acc": 0.5, "simulated_acceptance_length": 0.1}

    after_the_sum = {"evaluations": (Evaluation("heldout", 1, measure),), "save_every": 1}
    run = Run(tmp_path / "b", settings, ToyFeed(4), Beside(), **after_the_sum)
    assert [state.step for state in run.saved] == [1, 2], "asked after step 1's sum, it stops after step 2's"


def test_what_is_logged_is_of_all_ranks(tmp_path, settings):
    run, alone = Run(tmp_path / "a", settings, ToyFeed(4), Beside()), Run(tmp_path / "b", settings, ToyFeed(4))
    line, other = run.lines[0], alone.lines[0]
    assert (line["tokens"], line["supervised"]) == (2 * other["tokens"], 2 * other["supervised"])
    assert line["acc"] == other["acc"], "twice the sums over twice the rows"
    assert line["loss"] == pytest.approx(other["loss"], rel=1e-12)
    assert line["grad_norm"] == pytest.approx(other["grad_norm"] / 2, rel=1e-5), "normalised by the rows of both"
