"""Reading a world file, or one clear error.

Invariant: nothing is started; every refusal is a `ConfigError` of one line that names key, value,
rule and remedy, as for a job file.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rollart.core.errors import ConfigError
from rollart.core.jobfile import Table
from rollart.runtimes.sim.world.sections import World

PRESET = "preset"
LONGEST_SHOWN = 80


def load_world(path: Path) -> World:
    """The world in `path`. Paths within it are meant from its folder, or else from here.

    Raises:
        ConfigError: the file is missing, is no TOML, or says something that cannot be.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); give the path of a world file"
        ) from error
    try:
        table: Table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    return parse_world(_from_folder(table, path.parent))


def parse_world(table: Mapping[str, Any]) -> World:
    """A world from a table as TOML gives it. Raises `ConfigError` for the first thing wrong."""
    if "schema" not in table:
        raise ConfigError("schema: missing; the world file must say schema = 1")
    full = _with_presets(table)
    try:
        return World.model_validate(full)
    except ValidationError as error:
        raise ConfigError(explain(error.errors(include_url=False)[0])) from None


@cache
def presets() -> Mapping[str, Mapping[str, Any]]:
    """The workloads of the catalogue, by name."""
    file = resources.files("rollart.runtimes.sim") / "catalogue" / "workloads.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _with_presets(table: Mapping[str, Any]) -> Table:
    """`preset = "NAME"` in a domain stands for the keys of that workload which it lacks itself."""
    domains = table.get("domains")
    if not isinstance(domains, Mapping):
        return dict(table)
    full: Table = {}
    for tag, given in cast("Mapping[str, object]", domains).items():
        own = cast("Table", given) if isinstance(given, dict) else None
        if own is None or PRESET not in own:
            full[tag] = given
            continue
        name = own[PRESET]
        if not isinstance(name, str) or name not in presets():
            raise ConfigError(
                f"domains.{tag}.preset = {shown(name)}: no such workload; use "
                f"{', '.join(presets())}"
            )
        rest = {key: value for key, value in own.items() if key != PRESET}
        full[tag] = {**presets()[name], **rest}
    return {**table, "domains": full}


def _from_folder(table: Table, folder: Path) -> Table:
    """A relative path in it is meant from the file's folder where something is there."""
    found = dict(table)
    for section, key in (("model", "config"), ("recorded", "run")):
        inner = found.get(section)
        path = cast("Table", inner).get(key) if isinstance(inner, dict) else None
        if isinstance(path, str) and (folder / path).exists():
            found[section] = {**cast("Table", inner), key: str((folder / path).resolve())}
    return found


# -- what is wrong ---------------------------------------------------------------------------------


def explain(problem: ErrorDetails) -> str:
    """One line for one problem that validation found: key, value, rule and remedy."""
    location = problem["loc"]
    where, kind = ".".join(map(str, location)), problem["type"]
    if kind == "extra_forbidden":
        return _unknown_key(where, problem["input"], location)
    if kind == "missing":
        return f"{where}: missing; {_hint(location)}"
    message = problem["msg"].removeprefix("Value error, ")
    head = f"{where} = {shown(problem['input'])}: " if where else ""
    if kind == "value_error":
        return f"{head}{message}"
    rule = _RULES.get(kind) or message.replace("Input should be", "must be")
    return f"{head}{rule}; {_hint(location)}"


_RULES = {
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "mapping_type": "must be a table",
    "too_short": "must not be empty",
}
"""Rules that validation words for programmers, by its name for the error."""


def shown(value: object) -> str:
    """A value as a file writes it, on one line and not too long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = " ".join((f'"{value}"' if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _unknown_key(where: str, value: object, location: Sequence[str | int]) -> str:
    known = sorted(_keys_at(location[:-1]))
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return f"{where} = {shown(value)}: unknown key; {advice}"


def _keys_at(location: Sequence[str | int]) -> Iterator[str]:
    """The keys that may stand in the section at `location`."""
    at: object = World
    for part in location:
        if isinstance(at, type) and issubclass(at, BaseModel):
            field = at.model_fields.get(str(part))
            at = _bare(field.annotation) if field is not None else None
        elif get_origin(at) is Mapping:
            at = _bare(get_args(at)[1])
    if isinstance(at, type) and issubclass(at, BaseModel):
        for name, field in at.model_fields.items():
            yield field.alias or name


def _bare(annotation: object) -> object:
    """A type without what is said around it; of several, the section."""
    if get_origin(annotation) is Mapping:
        return annotation
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    for option in get_args(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return annotation


def _hint(location: Sequence[str | int]) -> str:
    """What to write there."""
    for part in reversed(location):
        if part in _EXAMPLES:
            return _EXAMPLES[str(part)]
    return "give another value"


_EXAMPLES = {
    "schema": "use schema = 1",
    "model": 'say which: [model] and below it name = "Qwen3-8B"',
    "pools": "say how many GPUs there are: [pools] and below it H800 = 96",
    "trainer": 'say what trains: [trainer] and below it hardware = "H800" and gpus = 32',
    "engines": "say what an engine of each class is: [engines.H800] and below it gpus = 1",
    "hardware": 'use a GPU class, such as hardware = "H800"',
    "gpus": "use a number of GPUs, such as gpus = 8",
    "count": "use a number of workers, such as count = 1",
    "mfu": "use a share such as mfu = 0.35, or leave it out",
    "fixed_s": "use seconds, such as fixed_s = 55",
    "logprob_passes": "use logprob_passes = 1",
    "recompute": "use true or false",
    "tflops": "use the dense bf16 peak in 1e12 operations a second, such as tflops = 989.5",
    "hbm_tb_s": "use the memory's bandwidth in 1e12 bytes a second, such as hbm_tb_s = 3.35",
    "memory_gb": "use 1e9 bytes, such as memory_gb = 80.0",
    "price": "use the price of an hour where an H20's is 1, such as price = 2.85",
    "prefill_efficiency": "use a share of the peak, such as prefill_efficiency = 0.45",
    "training_mfu": "use a share of the peak, such as training_mfu = 0.35",
    "latency_s": "use seconds, such as latency_s = 0.001",
    "gb_s": "use 1e9 bytes a second, such as gb_s = 12.5",
    "mode": 'use mode = "async" or mode = "blocking"',
    "bucket_gb": "use bucket_gb = 1.0",
    "push": 'use a link, such as push = "ethernet-200-push"',
    "pull": 'use a link, such as pull = "ethernet-200-pull"',
    "install": 'use a link, such as install = "weights-install"',
    "link": 'use a link, such as link = "infiniband-400"',
    "pulls_at_once": "use pulls_at_once = 64",
    "chance": "use a share from 0 to 1, such as chance = 0.001",
    "up_to": "use a factor above 1, such as up_to = 40",
    "hit": "use a share from 0 to 1, such as hit = 0.95",
    "failure": "use a share from 0 to 1, such as failure = 0.001",
    "equal": "use a share from 0 to 1, such as equal = 0.1",
    "success": "use a share from 0 to 1, such as success = 0.5",
    "prefix_hit": "use a share from 0 to 1, such as prefix_hit = 0.5",
    "limit": "use a number of instances, such as limit = 100",
    "at_once": "use a number of calls, such as at_once = 1",
    "cold_start_s": "use seconds, such as cold_start_s = 1.0",
    "keep_s": "use seconds, such as keep_s = 60",
    "platform": 'use a platform of the catalogue: platform = "function"',
    "tasks": "use a number of tasks, or leave it out for an endless supply",
    "run": 'use the directory of a run, such as run = "runs/three-domains"',
    "dedicated": 'use a table, such as { hardware = "H800", gpus = 2 }',
    "serverless": "use a table, such as { cold_start_s = 1.0, limit = 100 }",
    "image": "use a table, such as { hit = 0.95, pull_s = 20 }",
    "step_failure": "use a table, such as { chance = 0.001, seconds = 5 }",
    "reset_failure": "use a table, such as { chance = 0.001, seconds = 335 }",
    "reset_hang": "use a table, such as { chance = 0.0003, seconds = 180 }",
    "turns": "use a number or a distribution, such as turns = { uniform = [5, 30] }",
    "first_tokens": "use a number or a distribution, such as first_tokens = 600",
    "observation_tokens": "use a number or a distribution, such as observation_tokens = 150",
    "answer_tokens": "use a number or a distribution, such as answer_tokens = { exponential = 60 }",
    "step_s": "use seconds or a distribution, such as step_s = { exponential = 0.5 }",
    "reset_s": "use seconds or a distribution, such as reset_s = { uniform = [1, 4] }",
    "pull_s": "use seconds or a distribution, such as pull_s = { exponential = 20 }",
    "seconds": "use seconds or a distribution, such as seconds = { exponential = 0.5 }",
    "domains": 'use a preset: [domains.MyTag] and below it preset = "FrozenLake"',
    "rewards": "use a table: [rewards.MyTag] and below it seconds = 0.01",
    "gpu": "use a table: [gpu.MyGPU] and below it tflops, hbm_tb_s, memory_gb, "
    "prefill_efficiency and training_mfu",
    "network": "use a table: [network.slow] and below it latency_s = 0.01 and gb_s = 0.5",
}
"""What may be written, by key; the innermost key that is known here speaks."""
