import os

from rollart import Judge, TrajectoryDocument, Verdict, serverless

ADDRESS = os.environ.get("ROLLART_JUDGE_URL", "http://127.0.0.1:8000/v1")
judge = Judge(ADDRESS, model="judge", concurrency=4, timeout=25, max_tokens=64)
RULES = "Rate the assistant's last answer from 0 to 10. End with a line such as: Score: 4"


@serverless(network=True, timeout=30)
def score(trajectory: TrajectoryDocument) -> Verdict:
    """A judge's mark in 0..1; where it gives none, the trajectory is not trained on."""
    said = "\n\n".join(
        f"User: {turn.observation}\nAssistant: {turn.action}" for turn in trajectory.turns
    )
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": said[-4000:]}]
    mark = judge.score(messages, between=(0, 10))
    if mark.score is None:
        return mark
    return Verdict(score=mark.score / 10, components=(("judge", mark.score),))
