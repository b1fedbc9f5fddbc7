"""The reward of a job that names none: what the environment itself gave, added up."""

from rollart.core.scoring.document import TrajectoryDocument


def episode_return(trajectory: TrajectoryDocument) -> float:
    """Sum of the turns' rewards, undiscounted; a turn without a reward counts 0."""
    return float(sum(turn.reward for turn in trajectory.turns if turn.reward is not None))
