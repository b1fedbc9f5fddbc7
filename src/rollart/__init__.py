"""RollArt: reinforcement-learning training of LLM agents on disaggregated hardware.

Importing this package loads neither torch nor transformers; backends are imported when used.
"""

from rollart.core.authoring import as_observation
from rollart.core.types import (
    Message,
    Observation,
    StepResult,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    Verdict,
)

__all__ = [
    "Message",
    "Observation",
    "StepResult",
    "Task",
    "ToolCall",
    "Trajectory",
    "Turn",
    "Verdict",
    "as_observation",
]
