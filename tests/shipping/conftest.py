from pathlib import Path

import pytest

JUDGE = '''
from rollart import TrajectoryDocument, Verdict, serverless

from helpers import penalty
from words.count import letters


@serverless(timeout=20, memory="768MB", concurrency=7)
def score(trajectory: TrajectoryDocument) -> Verdict:
    """Answers count, and so does what was said."""
    if not trajectory.turns:
        return Verdict(score=None, reason="nothing was said")
    parts = {"said": letters(trajectory), "cost": -penalty(trajectory)}
    turns = tuple(turn.reward or 0.0 for turn in trajectory.turns)
    return Verdict(score=sum(parts.values()), components=tuple(parts.items()), turns=turns)
'''

FILES = {
    "judge.py": JUDGE,
    "helpers.py": "def penalty(trajectory):\n    return trajectory.sampled_tokens / 3\n",
    "words/count.py": "def letters(trajectory):\n"
    "    return float(sum(len(turn.action) for turn in trajectory.turns))\n",
}
SECRETS = (".env", "key.pem", "credentials.json", "unused.py", "words/.env", "data.parquet")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a reward function, what it imports, and what must stay at home."""
    folder = tmp_path_factory.mktemp("project")
    for place, text in FILES.items():
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(text)
    for place in SECRETS:
        (folder / place).write_text("SECRET")
    return folder
