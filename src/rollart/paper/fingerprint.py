"""The fingerprint of every number that one of the paper's rows depends on.

Invariant: a change of any of them, however small, changes it; a comment, a name or a row of ours
that is none of the paper's does not. A test holds it against the one in `frozen.toml`.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from importlib.resources import files

from rollart.core.config import Section
from rollart.paper.effort import FULL
from rollart.paper.evaluation import all_rows
from rollart.paper.parameters import frozen
from rollart.paper.rows import Kind
from rollart.runtimes.sim.hardware.roofline import DEFAULT_CONSTANTS
from rollart.runtimes.sim.training.trainer import TrainerSettings
from rollart.runtimes.sim.world import sections

CATALOGUES = ("hardware.toml", "models.toml", "workloads.toml")


def fingerprint() -> str:
    """Of the catalogues, the engine's constants, the fit, and what arms say and leave out."""
    folder = files("rollart.runtimes.sim") / "catalogue"
    content = [
        *(tomllib.loads((folder / name).read_text(encoding="utf-8")) for name in CATALOGUES),
        asdict(DEFAULT_CONSTANTS),
        asdict(frozen().fitted),
        _said(),
        _left_out(),
    ]
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _said() -> Mapping[str, object]:
    """What the arms of the full evaluation say, by name."""
    return {
        arm.name: [
            arm.job.model_dump(exclude_unset=True),
            arm.world.model_dump(exclude_unset=True),
            arm.skip,
            arm.task_sigma,
        ]
        for row in all_rows(FULL)
        if row.kind in {Kind.MICRO, Kind.END_TO_END}
        for arm in row.arms
    }


def _left_out() -> Mapping[str, Mapping[str, str]]:
    """What holds where a world says nothing."""
    world = {
        kind.__name__: {
            name: repr(field.default)
            for name, field in kind.model_fields.items()
            if not field.is_required()
        }
        for kind in Section.__subclasses__()
        if kind.__module__ == sections.__name__
    }
    trainer = {
        field.name: repr(field.default)
        for field in fields(TrainerSettings)
        if field.default is not MISSING
    }
    return {**world, TrainerSettings.__name__: trainer}
