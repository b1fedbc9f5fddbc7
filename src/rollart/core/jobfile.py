"""Reading a job file: TOML and `--set` into a `JobConfig`, or one clear error.

Invariant: nothing is started and nothing is written here; every refusal is a `ConfigError` of one
line that names key, value, rule and a valid value (the nearest known key for a wrong one).
"""

import difflib
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


def _descend(at: Any, part: str, override: str) -> Any:
    if isinstance(at, list):
        return _by_tag(cast("list[Table]", at), part, override)
    return cast("Table", at).setdefault(part, {})


def _by_tag(entries: list[Table], tag: str, override: str) -> Table:
    for entry in entries:
        if entry.get("tag") == tag:
            return entry
    known = ", ".join(str(entry.get("tag")) for entry in entries)
    raise ConfigError(f"--set {override}: no domain has the tag {tag!r}; there are: {known}")


def _toml_value(text: str) -> Any:
    """A TOML value; bare words are taken as strings, so that quotes may be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def explain(problem: ErrorDetails, table: Mapping[str, Any]) -> str:
    """One line for one problem that validation found."""
    where = _name(problem["loc"], table)
    kind = problem["type"]
    if kind == "extra_forbidden":
        return _unknown_key(where, problem["loc"])
    if kind == "missing":
        return f"{where}: missing; {_hint(problem['loc'])}"
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return message
    return f"{where} = {problem['input']!r}: {message[:1].lower()}{message[1:]}"


def _name(location: Iterable[str | int], table: Mapping[str, Any]) -> str:
    parts: list[str] = []
    entries = cast("Sequence[Table]", table.get("domains", ()))
    for part in location:
        if isinstance(part, int):
            parts[-1] += f"[{entries[part].get('tag', part)}]"
        else:
            parts.append(part)
    return ".".join(parts)


def _unknown_key(where: str, location: Sequence[str | int]) -> str:
    known = known_keys(location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return f"{where}: unknown key; {advice}"


def known_keys(location: Sequence[str | int] = ()) -> list[str]:
    """The keys that may stand in the section at `location`."""
    model: type[BaseModel] = JobConfig
    for part in location:
        if isinstance(part, int):
            model = DomainConfig
        else:
            annotation = model.model_fields[part].annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                model = annotation
    return sorted(field.alias or name for name, field in model.model_fields.items())


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
    hints = {
        "model": 'say where the model is: [model] path = "DIRECTORY"',
        "domains": "give at least one [[domains]] with tag and environment",
        "tag": 'give the domain a name: tag = "FrozenLake"',
        "environment": 'give the import path of a class: environment = "module:Class"',
    }
    return hints.get(str(location[-1]), "it must be given")
