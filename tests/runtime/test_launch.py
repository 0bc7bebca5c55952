"""In: processes that end in all ways. Out: which end is the cause, and that nobody is left; real ones, by exec."""

import os
import signal

import attrs
import pytest

from specforge.runtime import launch
from specforge.runtime.assignment import Assignment, read_assignment, write_assignment
from specforge.runtime.child import PEER_GONE
from specforge.runtime.control.limits import Limits
from specforge.runtime.executor.layout import Layout
from specforge.runtime.launch import ProcessError, Processes, listen

pytestmark = pytest.mark.null
LAYOUT = Layout(1, 1, "prompts", Limits(0, 0, 1.0, 3), 1.0)
ASSIGNMENT = Assignment(
    "controller", 0, "run", 3, ("a",), "http://c", ("http://s",), "store", "secret", os.getpid(), LAYOUT
)


class Ended:
    """A process of which only the end is known; `status` None: it runs until it is told to end."""

    pid = 4711

    def __init__(self, status):
        self.status, self.told = status, []

    def poll(self):
        return self.status

    def send_signal(self, number):
        self.told.append(number)
        self.status = -number

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout=None):
        return self.status


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Starts processes with these ends, by name, and their last words."""

    def make(ends, words=""):
        def start(command):
            command.out.touch()
            command.err.write_text(words if command.assignment.stem == "server-0" else "")
            return ends[command.assignment.stem]

        monkeypatch.setattr(launch, "start", start)
        found = Processes(tmp_path)
        with found:
            for name in ends:
                kind, _, number = name.partition("-")
                found.start(attrs.evolve(ASSIGNMENT, kind=kind, number=int(number or 0)))
            return found.watch(lambda: None, lambda: False)

    return make


def test_files_in_the_users_folder_are_not_taken_for_the_standard_librarys(tmp_path, monkeypatch):
    (tmp_path / "dis.py").write_text("raise SystemExit('the wrong dis')")
    monkeypatch.chdir(tmp_path)
    command = launch.Command(tmp_path / "no.json", tmp_path / "out", tmp_path / "err", None)
    launch.start(command).wait(60)
    assert "the wrong dis" not in command.err.read_text()
    assert "no.json" in command.err.read_text()


@pytest.mark.parametrize("status", [0, 130])
def test_the_end_of_the_trainer_is_the_end(processes, status):
    ends = {"controller": Ended(None), "trainer": Ended(status)}
    assert processes(ends) == status
    assert ends["controller"].told == [signal.SIGTERM]


def test_who_lost_a_peer_is_not_the_cause(processes):
    ends = {"worker-0": Ended(PEER_GONE), "trainer": Ended(PEER_GONE), "server-0": Ended(1), "controller": Ended(None)}
    with pytest.raises(
        ProcessError, match=r"(?s)^server-0 ended with exit status 1. Its last lines \(.*\):\n  no memory$"
    ):
        processes(ends, words="no memory\n")
    assert ends["controller"].told == [signal.SIGTERM]


def test_a_kill_comes_before_whoever_noticed_it(processes):
    ends = {"trainer": Ended(1), "server-0": Ended(-9)}
    with pytest.raises(ProcessError, match=r"^server-0 was killed by SIGKILL \(process 4711\) and said nothing"):
        processes(ends)


def test_an_end_without_error_is_a_fault_too(processes):
    with pytest.raises(ProcessError, match=r"^controller ended with exit status 0"):
        processes({"controller": Ended(0), "trainer": Ended(None)})


def test_an_assignment_is_for_its_owner_only(tmp_path):
    path = tmp_path / "trainer.json"
    path.write_text("old, and readable")
    write_assignment(path, ASSIGNMENT)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_assignment(path) == ASSIGNMENT


def test_two_services_get_two_ports():
    with listen() as one, listen() as two:
        assert one.getsockname() != two.getsockname()
        assert one.getsockname()[0] == "127.0.0.1"


def test_a_trainer_stopped_before_it_could_save_is_an_interrupt(tmp_path, monkeypatch):
    trainer = Ended(None)

    def start(command):
        command.out.touch()
        command.err.touch()
        return trainer

    monkeypatch.setattr(launch, "start", start)
    with Processes(tmp_path) as processes:
        processes.start(attrs.evolve(ASSIGNMENT, kind="trainer"))
        assert processes.watch(lambda: None, lambda: True) == 130
    assert trainer.told == [signal.SIGINT]
