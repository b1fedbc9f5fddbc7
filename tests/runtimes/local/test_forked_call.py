"""One call in a fork: what it gives back, how its end is told, and what is left of it (nothing)."""

import subprocess
import sys
import textwrap

import pytest

RIGHTS = {
    "as it is": "pass",
    # As for an ordinary user: rights over what it makes, none over what was there.
    "in a user namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
}

PROLOGUE = """
import os, subprocess
{rights}
from rollart.runtimes.local.forked_call import CallCrashed, in_a_fork

def answered(work):
    with in_a_fork(work) as answer:
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
