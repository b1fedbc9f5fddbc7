"""What a function without network cannot do, as root's and as an ordinary user's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RIGHTS = {
    "root": "",
    "a user": """
unshared = ctypes.CDLL(None).unshare(0x10000000)
assert unshared == 0
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"1000 {user} 1")
open("/proc/self/gid_map", "w").write(f"1000 {group} 1")
""",
}

FUNCTIONS = """
import multiprocessing, os, socket

def square(number):
    return number * number

def pools(trajectory):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return float(sum(pool.map(square, [1, 2, 3])))

def kills(trajectory):
    try:
        os.kill(trajectory.task.payload["pid"], 9)
    except OSError:
        return 0.0
    return 1.0

def shares(trajectory):
    if os.path.exists("/dev/shm/of-the-test") or os.path.exists("/dev/of-the-test"):
        return 1.0
    try:
        open("/dev/made-by-a-function", "w").close()
    except OSError:
        open("/dev/null", "w").write("nothing")
        return 0.0
    return 1.0

def connects(trajectory):
    try:
        socket.create_connection(("127.0.0.1", trajectory.task.payload["port"]), 5).close()
    except OSError:
        return 0.0
    return 1.0

def leaves(trajectory):
    import subprocess
    subprocess.Popen(["sleep", "54321.9"], start_new_session=True)
    return 1.0
"""

SCRIPT = """
import asyncio, ctypes, os, socket, subprocess, sys
from pathlib import Path
user, group = os.geteuid(), os.getegid()
{rights}
from rollart.core.scoring.wire import Request, decode_answer, encode_request
from rollart.runtimes.local.local_platform import LocalPlatform
from rollart.testing.platform import told_document

async def scores(name, payload):
    platform = LocalPlatform(
        f"judge:{{name}}",
        version="v1",
        env=dict(os.environ),
        python_path=(os.getcwd(),),
        log_file=Path("log"),
        most=1,
        idle_s=30.0,
        on_instance=lambda *_: None,
    )
    document = told_document("one", **payload)
    body = encode_request(Request(key="k", seconds=30.0, trajectory=document))
    try:
        for _ in range(2):
            answer = decode_answer(await platform.call(body, key="k", seconds=30.0))
            print(name, answer.error or answer.verdict.score)
    finally:
        await platform.close()

async def main():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with subprocess.Popen(["sleep", "60"]) as other:
            try:
                payload = {{"pid": other.pid, "port": server.getsockname()[1]}}
                for name in sys.argv[1:]:
                    await scores(name, payload)
                print("alive", other.poll() is None)
            finally:
                other.kill()

asyncio.run(main())
print(Path("log").read_text(), end="")
"""


@pytest.mark.parametrize("rights", RIGHTS)
def test_a_function_reaches_nothing_beside_itself(rights: str, tmp_path: Path) -> None:
    if rights == "root" and os.geteuid() != 0:
        pytest.skip("this is not root")
    (tmp_path / "judge.py").write_text(FUNCTIONS)
    names = ("pools", "kills", "shares", "connects", "leaves")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(rights=RIGHTS[rights]), *names],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    expected = ["14.0", "0.0", "0.0", "0.0", "1.0"]
    assert done.stdout.splitlines() == [
        *(f"{name} {score}" for name, score in zip(names, expected, strict=True) for _ in "12"),
        "alive True",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["judge.py", "log"]
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if naps(path)]


def naps(path: Path) -> bool:
    try:
        return b"54321.9" in path.read_bytes()
    except OSError:
        return False
