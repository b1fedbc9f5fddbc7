from rollart import TrajectoryDocument, Verdict


def score(trajectory: TrajectoryDocument) -> Verdict:
    """The right answer counts; calls and cut-off answers cost a little. May also be `async`."""
    metrics = trajectory.metrics
    if "success" not in metrics:  # no verdict is not 0: the trajectory is not trained on
        return Verdict(score=None, reason="the environment did not say whether it succeeded")
    parts = {
        "answer": metrics["success"],
        "calls": -0.01 * metrics["tool_calls"],
        "bad calls": -0.05 * metrics["tool_parse_error"],
        "cut off": -0.1 * sum(turn.stop == "length" for turn in trajectory.turns),
    }
    return Verdict(score=sum(parts.values()), components=tuple(parts.items()))
