"""Calls in forks: what one gives back, how its end is told, and what is left of it (nothing)."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

RIGHTS = {
    "root": "pass",
    # What `leave_system` leaves an ordinary user with: rights over what it makes, and no others.
    "a user": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
}

PROLOGUE = """
import os, subprocess, time
{rights}
from rollart.runtimes.local.forked_calls import CallCrashed, ForkedCalls

def answered(work):
    with ForkedCalls(lambda body, seconds: work()).answer(b"", 1.0) as answer:
        return answer

def crashed(work):
    try:
        answered(work)
    except CallCrashed as error:
        return str(error)
"""


@pytest.fixture(params=RIGHTS)
def run(request):
    """Runs lines in a process of one thread; what they print, line by line."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("only root comes back into its own namespace")

    def lines(code: str) -> list[str]:
        source = PROLOGUE.format(rights=RIGHTS[request.param]) + textwrap.dedent(code)
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return lines


def test_each_call_answers_from_a_process_of_its_own(run):
    told = run(
        """
        for _ in range(3):
            print(answered(lambda: os.readlink("/proc/self").encode() + b" " * 100_000).split()[0])
        print(os.getpid())
        """
    )
    assert len(set(told)) == 4


def test_how_a_call_without_an_answer_ended_is_told(run):
    status, aborted, after = run(
        """
        print(crashed(lambda: os._exit(7)))
        print(crashed(os.abort))
        print(answered(lambda: b"well"))
        """
    )
    assert status == "the call's process ended with exit status 7"
    assert aborted.startswith("the call's process ended with signal SIG")
    assert after == "b'well'"


def test_what_a_call_started_in_a_session_of_its_own_ends_with_it(run):
    assert run(
        """
        def leaves() -> bytes:
            subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
            return os.readlink("/proc/self/ns/pid").encode()

        def sleepers() -> int:
            every = filter(str.isdigit, os.listdir("/proc"))
            ours = 0
            for pid in every:
                try:
                    ours += os.readlink(f"/proc/{pid}/ns/pid").encode() == namespace
                except OSError:
                    pass
            return ours

        namespace = answered(leaves)
        print(namespace.decode() != os.readlink("/proc/self/ns/pid"), sleepers())
        """
    ) == ["True 0"]


def test_a_call_sees_no_process_beside_its_own(run):
    assert run(
        """
        print(answered(lambda: f"{os.getpid()} {os.getppid()}".encode()).decode())
        """
    ) == ["1 0"]


def test_what_the_process_itself_starts_stays_beside_it(run):
    assert run(
        """
        answered(lambda: b"")
        print(subprocess.run(["sh", "-c", "echo $PPID"], capture_output=True, text=True).stdout
              == f"{os.getpid()}\\n")
        """
    ) == ["True"]


def test_a_prepared_fork_waits_for_its_call_and_knows_what_was_so_when_it_was_made(run):
    assert run(
        """
        known = [1]
        calls = ForkedCalls(lambda body, seconds: f"{body} {known} {seconds}".encode())
        calls.prepare()
        known.append(2)
        for _ in range(2):
            with calls.answer(b"x" * 3, 2.5) as answer:
                print(answer.decode())
        """
    ) == ["b'xxx' [1] 2.5", "b'xxx' [1, 2] 2.5"]


def test_a_prepared_fork_that_is_killed_costs_the_next_call_and_no_other(run):
    assert run(
        """
        calls = ForkedCalls(lambda body, seconds: body)
        calls.prepare()
        [child] = map(int, open("/proc/self/task/%d/children" % os.getpid()).read().split())
        os.kill(child, 9)
        try:
            with calls.answer(b"one" * 1_000_000, 1.0):
                pass
        except CallCrashed as error:
            print(error)
        with calls.answer(b"two", 1.0) as answer:
            print(answer.decode())
        """
    ) == ["the call's process ended with signal SIGKILL", "two"]


def test_what_goes_wrong_before_a_call_is_in_the_log(run):
    assert run(
        """
        import sys
        sys.stderr = sys.stdout
        def begin(number):
            raise OSError("no room")
        calls = ForkedCalls(lambda body, seconds: body, begin=begin)
        try:
            with calls.answer(b"", 1.0):
                pass
        except CallCrashed as error:
            print(error)
        """
    )[-2:] == ["OSError: no room", "the call's process ended with exit status 1"]


def test_a_call_that_is_killed_is_told_as_killed(run):
    assert run(
        """
        import resource
        def burns(body, seconds):
            resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
            while True:
                pass
        try:
            with ForkedCalls(burns).answer(b"", 1.0):
                pass
        except CallCrashed as error:
            print(error)
        """
    ) == ["the call's process ended with signal SIGKILL"]


def test_a_prepared_fork_ends_with_its_owner(run):
    [below] = run(
        """
        import glob
        calls = ForkedCalls(lambda body, seconds: body, begin=lambda number: print("", end=""))
        calls.prepare()
        time.sleep(0.2)  # the second fork of an ordinary user's is there
        def below(pid):
            for path in glob.glob(f"/proc/{pid}/task/*/children"):
                for child in open(path).read().split():
                    yield child
                    yield from below(child)
        print(*below(os.getpid()))
        """
    )
    assert below
    deadline = time.monotonic() + 5
    while any(is_alive(int(pid)) for pid in below.split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
