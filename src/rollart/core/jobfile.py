"""Reading a job file: TOML and `--set` into a `JobConfig`, or one clear error.

Invariant: nothing is started and nothing is written here; every refusal is a `ConfigError` of one
line that names key, value, rule and a valid value (the nearest known key for a wrong one).
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rollart.core.config import DomainConfig, JobConfig
from rollart.core.errors import ConfigError

Table = dict[str, Any]


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobConfig:
    """The job in `path`, with `key=value` overrides in TOML notation applied in order.

    Raises:
        ConfigError: the file is missing, is no TOML, or says something that cannot run.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); give the path of a TOML file"
        ) from error
    try:
        table: Table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    for override in overrides:
        apply_override(table, override)
    return parse_job(table)


def parse_job(table: Mapping[str, Any]) -> JobConfig:
    """A job from a table as TOML gives it. Raises `ConfigError` for the first thing wrong."""
    if "schema" not in table:
        raise ConfigError("schema: missing; the job file must say schema = 1")
    try:
        return JobConfig.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(explain(error.errors(include_url=False)[0], table)) from None


def apply_override(table: Table, override: str) -> None:
    """Set `a.b=value` in `table`. Domains are named by tag: `domains.FrozenLake.weight=2`."""
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise ConfigError(f"--set {override}: use key=value, such as --set run.steps=20")
    at: Any = table
    for depth, part in enumerate(path[:-1]):
        at = _descend(at, part, override)
        if not isinstance(at, dict | list):
            where = ".".join(path[: depth + 1])
            raise ConfigError(f"--set {override}: {where} is a value, not a table")
    if isinstance(at, list):
        raise ConfigError(
            f"--set {override}: {'.'.join(path[:-1])} is a list; name an entry by its tag, such as "
            f"--set domains.TAG.{path[-1]}={text}"
        )
    at[path[-1]] = _toml_value(text)
    for other in _INSTEAD.get(".".join(path), ()):
        cast("Table", at).pop(other, None)


_INSTEAD = {"model.path": ("make",), "model.make": ("path",)}
"""Keys of which one given later takes the place of the other."""


def _descend(at: Any, part: str, override: str) -> Any:
    if isinstance(at, list):
        return _by_tag(cast("list[object]", at), part, override)
    return cast("Table", at).setdefault(part, {})


def _by_tag(given: list[object], tag: str, override: str) -> Table:
    entries = [cast("Table", entry) for entry in given if isinstance(entry, dict)]
    for entry in entries:
        if entry.get("tag") == tag:
            return entry
    known = ", ".join(str(entry.get("tag")) for entry in entries)
    raise ConfigError(f"--set {override}: no domain has the tag {tag!r}; there are: {known}")


def _toml_value(text: str) -> Any:
    """A TOML value; bare words are taken as strings, so that quotes may be left out."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def explain(problem: ErrorDetails, table: Mapping[str, Any]) -> str:
    """One line for one problem that validation found: key, value, rule and a valid value."""
    location = problem["loc"]
    where = _name(location, table)
    kind = problem["type"]
    if kind == "extra_forbidden":
        return _unknown_key(f"{where} = {_shown(problem['input'])}", location)
    if kind == "missing":
        return f"{where}: missing; {_hint(location)}"
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{where} = {_shown(problem['input'])}: {message}" if where else message
    rule = _RULES.get(kind) or message.replace("Input should be", "must be")
    if kind == "tuple_type" and location == ("domains",):
        rule = "must be an array of tables"
    return f"{where} = {_shown(problem['input'])}: {rule}; {_hint(location)}"


_RULES = {
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "tuple_type": "must be an array",
    "too_short": "must not be empty",
    "string_pattern_mismatch": "is not of the right form",
}
"""Rules that validation words for programmers, by its name for the error."""

_LONGEST_SHOWN = 80


_PRIVATE = re.compile(r"(?<=://)[^/@\s]*@|\?[\w.]+=[^#\"'\s]*")
"""In a URL, what may be a secret: a user with a password, and the query."""


def _shown(value: object) -> str:
    """A value as a job file writes it, on one line and not too long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = _PRIVATE.sub("", f'"{value}"' if isinstance(value, str) else repr(value))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _name(location: Iterable[str | int], table: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for part in location:
        if isinstance(part, int):
            parts[-1] += f"[{_tag_of(table, part) if parts == ['domains'] else part}]"
        else:
            parts.append(part)
    return ".".join(parts)


def _tag_of(table: Mapping[str, Any], place: int) -> object:
    """The tag of a domain, or its place where it has none."""
    entry = cast("Sequence[object]", table["domains"])[place]
    return cast("Table", entry).get("tag", place) if isinstance(entry, dict) else place


def _unknown_key(where: str, location: Sequence[str | int]) -> str:
    known = known_keys(location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return f"{where}: unknown key; {advice}"


def known_keys(location: Sequence[str | int] = ()) -> list[str]:
    """The keys that may stand in the section at `location`."""
    model = _section(location)
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _section(location: Sequence[str | int]) -> type[BaseModel]:
    """The section at `location`, or the last one on the way to it."""
    model: type[BaseModel] = JobConfig
    for part in location:
        if isinstance(part, int):
            model = DomainConfig
        elif (field := model.model_fields.get(part)) is not None:
            annotation = field.annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                model = annotation
    return model


def all_keys() -> list[str]:
    """Every key of the format, in dotted form."""
    keys: list[str] = ["schema"]
    for section, field in JobConfig.model_fields.items():
        if field.alias == "schema":
            continue
        inner = known_keys((section, 0) if section == "domains" else (section,))
        keys.extend(f"{section}.{key}" for key in inner)
    return keys


def _hint(location: Sequence[str | int]) -> str:
    """What to write there: an example, or the default."""
    key = str(location[-1])
    if key in _EXAMPLES:
        return _EXAMPLES[key]
    if location[0] == "domains" and isinstance(location[-1], int):
        return _EXAMPLES["domains"]
    field = _section(location[:-1]).model_fields.get(key)
    default: object = None if field is None else field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return f"write [{key}] and below it key = value"
    if default is None:
        return "leave it out, or give another value"
    return f"use {_shown(default)} (the default)"


_EXAMPLES = {
    "schema": "use schema = 1",
    "model": 'say where the model is: [model] and below it path = "DIRECTORY"',
    "path": 'use the directory of a Hugging Face model, such as path = "models/SmolLM2-135M"',
    "make": 'use the import path of a function, such as make = "module:function"',
    "domains": "give at least one [[domains]] with tag and environment",
    "tag": 'use letters, digits, "_", "." and "-", such as tag = "FrozenLake"',
    "environment": 'use the import path of a class, such as environment = "module:Class"',
    "reward": 'use the import path of a function, such as reward = "module:function"',
    "options": "use a table, such as options = { size = 4 }",
    "trackers": 'use an array, such as trackers = ["tensorboard"]',
    "clip": "use two numbers, such as clip = [0.2, 0.28]",
    "affinity": 'use a table, such as affinity = { FrozenLake = "H800", default = "H20" }',
    "time_limit_s": "use seconds, such as time_limit_s = 300, or leave it out",
}
"""What may be written for keys without a telling default."""
