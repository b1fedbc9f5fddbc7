"""Conformance suites: is this really an `Engine`, a `WeightStore`, …? One function for each port.

Call them from any test, on any event loop (`asyncio.run`, `run_virtual`); they raise
`ConformanceError`, naming the clause of the contract that is broken. A trial says what the suite
may assume about the thing at hand, and which optional clauses can be checked on it.
"""

from rollart.testing.conformance.contract import ConformanceError
from rollart.testing.conformance.engine import EngineTrial, check_engine
from rollart.testing.conformance.environments import EnvironmentsTrial, check_environments
from rollart.testing.conformance.launcher import (
    LauncherTrial,
    check_event_sink,
    check_inventory,
    check_launcher,
)
from rollart.testing.conformance.platform import PlatformTrial, check_platform
from rollart.testing.conformance.renderer import RendererTrial, check_renderer
from rollart.testing.conformance.reward import RewardTrial, check_reward
from rollart.testing.conformance.tasks import TaskSourceTrial, check_task_source
from rollart.testing.conformance.trainer import TrainerTrial, check_trainer
from rollart.testing.conformance.weights import StoreTrial, check_weight_store

__all__ = [
    "ConformanceError",
    "EngineTrial",
    "EnvironmentsTrial",
    "LauncherTrial",
    "PlatformTrial",
    "RendererTrial",
    "RewardTrial",
    "StoreTrial",
    "TaskSourceTrial",
    "TrainerTrial",
    "check_engine",
    "check_environments",
    "check_event_sink",
    "check_inventory",
    "check_launcher",
    "check_platform",
    "check_renderer",
    "check_reward",
    "check_task_source",
    "check_trainer",
    "check_weight_store",
]
