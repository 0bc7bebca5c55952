"""In: entries for two ranks. Out: one collective per reduction; how ranks end, and what the launching process says."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import rank_entries
import torch

from specforge.runtime.train.launch import RankDied, RankFailed, launch

END_S = 10.0
DEADLINE_S = 60.0


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
    return True


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def both(folder):
    """The processes of both ranks, once both have said that they are there."""
    files = [folder / f"rank-{rank}" for rank in range(2)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


@pytest.mark.cpu
def test_gradients_and_notes_are_summed_in_one_collective_and_sums_in_another():
    size, gradients, notes, sums, after_reduce, calls = launch(2, rank_entries.reduced, ())
    assert size == 2
    assert gradients == [[[3.0] * 3] * 2, [0.0, 11.0, 22.0, 33.0]]
    assert notes == [1.0, 1.0, 0.0]
    assert sums == pytest.approx([0.3, 6.0], rel=1e-15)
    assert after_reduce == {"all_reduce": 1}
    assert calls == {"all_reduce": 2}


@pytest.mark.cpu
def test_a_run_takes_a_collective_per_step_and_one_per_log_line_and_evaluation(toy, tmp_path):
    plan = toy.plan(train={"accumulation": 3, "log_every": 3, "epochs": 4}, evaluate=4, ranks=2)
    steps = 4 * 2  # 22 documents, 12 to a step
    calls = launch(2, rank_entries.counted_run, (plan, tmp_path / "run"))
    assert calls == {"all_reduce": steps + 3 + 2}, "logged: 3, 6 and the last; evaluated: 4 and 8"


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_nccl_reduces_as_gloo_does(ranks):
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    size, backend, gradients, notes, sums = launch(ranks, rank_entries.reduced_on_gpu, ())
    assert (size, backend) == (ranks, "nccl")
    assert gradients == [[[float(sum(range(ranks + 1)))] * 3] * 2, [0.0, ranks * 1.0, ranks * 2.0, ranks * 3.0]]
    assert (notes, sums) == ([ranks, ranks], [ranks / 2])


@pytest.mark.cpu
def test_a_users_mistake_on_one_rank_is_its_message_and_ends_the_others():
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"^row 7 of chats.jsonl is no chat; mend it$"):
        launch(2, rank_entries.refuses, ())
    assert time.monotonic() - began < END_S + DEADLINE_S / 2, "the start of the fork server may be in it"


@pytest.mark.cpu
def test_a_full_disk_on_one_rank_is_a_message():
    with pytest.raises(ValueError, match=r"^/runs/x: No space left on device$"):
        launch(2, rank_entries.fills_the_disk, ())


@pytest.mark.cpu
def test_an_error_of_ours_comes_with_its_trace():
    with pytest.raises(RankFailed, match=r"(?s)rank 1 failed:.*in breaks.*KeyError: 'ours'"):
        launch(2, rank_entries.breaks, ())


@pytest.mark.cpu
def test_a_killed_rank_ends_the_run_with_its_cause():
    with pytest.raises(RankDied, match=r"rank 1 \(process \d+\) was ended by SIGKILL, .* ran out of memory"):
        launch(2, rank_entries.dies, ())
    assert multiprocessing.active_children() == []


@pytest.mark.cpu
def test_the_death_of_a_rank_ends_the_others_within_ten_seconds(tmp_path):
    died = []

    def kill():
        pids = both(tmp_path)
        os.kill(pids[0], signal.SIGTERM)
        died.extend((time.monotonic(), *pids))

    threading.Thread(target=kill).start()
    with pytest.raises(RankDied, match=r"rank 0 \(process \d+\) was ended by SIGTERM"):
        launch(2, rank_entries.waits_for_the_request, (tmp_path,))
    when, *pids = died
    assert time.monotonic() - when < END_S
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.cpu
def test_a_signal_is_a_request_to_every_rank(tmp_path, which):
    threading.Thread(target=lambda: both(tmp_path) and os.kill(os.getpid(), which)).start()
    assert launch(2, rank_entries.waits_for_the_request, (tmp_path,)) == "0 stopped"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.cpu
def test_a_second_signal_ends_every_rank_at_once(tmp_path):
    pids = []

    def twice():
        pids.extend(both(tmp_path))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=twice).start()
    with pytest.raises(KeyboardInterrupt):
        launch(2, rank_entries.never_ends, (tmp_path,))
    assert not any(alive(pid) for pid in pids)


@pytest.mark.cpu
def test_ranks_end_with_the_process_that_launched_them(tmp_path):
    launching = multiprocessing.get_context("forkserver").Process(target=rank_entries.launching, args=(tmp_path,))
    launching.start()
    pids = both(tmp_path)
    launching.kill()
    launching.join()
    assert wait_for(lambda: not any(alive(pid) for pid in pids))
