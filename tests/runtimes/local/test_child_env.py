"""Children get what they need of the environment, and no secret."""

from rollart.process.owner import RUN_ID_VARIABLE
from rollart.runtimes.local.child_env import child_environment


def test_an_allow_list_decides_and_compute_stays_on_one_thread():
    present = {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "ROLLART_JUDGE": "local",
        "OMP_NUM_THREADS": "64",
        "HF_TOKEN": "hf_secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "OPENAI_API_KEY": "secret",
    }
    assert child_environment(present, "run-1") == {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "ROLLART_JUDGE": "local",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OPENBLAS_NUM_THREADS": "1",
        RUN_ID_VARIABLE: "run-1",
    }
