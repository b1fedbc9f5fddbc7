"""The page on world files: its worlds run, its fragments fit, its tables say what the code does."""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import rollart as ra
from rollart.cli.main import make_parser
from rollart.core.config import Section
from rollart.core.jobfile import Table
from rollart.runtimes.sim.hardware.catalogue import gpu, known, link
from rollart.runtimes.sim.hardware.model_shape import catalogue_models
from rollart.runtimes.sim.run import simulate
from rollart.runtimes.sim.world import sections
from rollart.runtimes.sim.world.distributions import Distribution
from rollart.runtimes.sim.world.file import parse_world, presets
from rollart.runtimes.sim.world.fitting import refuse_impossible
from rollart.runtimes.sim.world.sections import World
from rollart.testing.parts import EventRecorder
from rollart.testing.worlds import small_job

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command line of the page."""
    return [line for block in blocks("console") for line in block.splitlines()]


WORLDS = {
    block.splitlines()[0].removeprefix("# "): block for block in blocks("toml") if "schema" in block
}
"""The whole world files, by the name that their first line says."""

FRAGMENTS = [block for block in blocks("toml") if "schema" not in block]

# -- what can be run runs --------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.timeout(600)
def test_the_worlds_of_the_page_run_as_its_commands_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in WORLDS.items():
        Path(name).write_text(text, encoding="utf-8")
    ran: dict[str, ra.RunOutcome] = {}
    for line in commands():
        if not line.startswith("rollart train examples/"):
            continue
        said = make_parser().parse_args(shlex.split(line)[1:])
        ran[said.world.name] = ra.run(
            ROOT / said.file,
            overrides=said.set,
            runtime=said.runtime,
            world=said.world,
            seed=said.seed,
        )
    assert ran.keys() == WORLDS.keys()
    assert all(outcome.ok for outcome in ran.values()), ran
    for line in commands():
        words = shlex.split(line)
        if words[1] in ("report", "timeline", "compare", "pools"):
            assert all(Path(word).is_dir() for word in words[2:]), line
    summary = ran["world.toml"].summary
    assert summary is not None
    shares = {one.role: dict(one.shares) for one in summary.idle.classes}
    assert shares["engine"]["admission"] > 0.9  # what the page says of the shortest world
    assert shares["trainer"]["busy"] + shares["trainer"]["weight_sync"] > 0.9


def test_every_command_of_the_page_is_one() -> None:
    assert len(commands()) > 5
    for line in commands():
        words = shlex.split(line)
        assert words[0] == "rollart"
        make_parser().parse_args(words[1:])


def laid_over(under: Table, over: Mapping[str, Any]) -> Table:
    """Both tables; of what both say, the second."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and key not in _WHOLE:
            merged[key] = laid_over(old, value)
        else:
            merged[key] = value
    return merged


_WHOLE = ("turns", "first_tokens", "observation_tokens", "answer_tokens", "step_s", "reset_s")
"""Keys whose tables are one value."""


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda text: text.splitlines()[0])
def test_a_fragment_of_the_page_fits_into_the_shortest_world_and_runs(fragment: str) -> None:
    met = parse_world(laid_over(tomllib.loads(WORLDS["world.toml"]), tomllib.loads(fragment)))
    job = small_job(
        run__steps=2,
        model__context=32768,
        rollout__engines=dict.fromkeys(met.engines, 1),
        rollout__affinity={},
        rollout__batch_groups=1,
        rollout__group_size=2,
        train__microbatch_tokens=32768,
        domains=[
            {"tag": tag, "environment": "none:None", "max_turns": 100, "max_tokens": 1024}
            for tag in met.domains
        ],
    )
    refuse_impossible(job, met)
    assert simulate(job, met, events=EventRecorder()).ok


# -- what is said is so ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table of keys."""

    keys: tuple[str, ...]
    unit: str
    default: str


def tables() -> dict[str, list[Row]]:
    """The rows of each part of the page that has a table of keys, by the part's heading."""
    found: dict[str, list[Row]] = {}
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        _, head, body = part.partition("| key | unit | default | meaning |\n|---|---|---|---|\n")
        if head:
            rows = body.split("\n\n")[0].splitlines()
            found[part.splitlines()[0]] = [_row(line) for line in rows]
    return found


def _row(line: str) -> Row:
    keys, unit, default, meaning = (cell.strip() for cell in line.strip("|").split(" | "))
    assert meaning
    return Row(keys=tuple(re.findall("`(.+?)`", keys)), unit=unit, default=default)


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The keys of a section and of the tables in it, dotted; a distribution is one value."""
    for name, field in section.model_fields.items():
        key = prefix + (field.alias or name)
        yield key, field
        inner = section_in(field.annotation)
        if inner is not None and inner is not Distribution and section is not World:
            yield from fields(inner, f"{key}.")


def section_in(annotation: object) -> type[BaseModel] | None:
    """The section that a key holds, or a table of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)


def described() -> Iterator[tuple[str, type[BaseModel]]]:
    """Each part of the page that must have a table of keys, and of which section."""
    yield "The file", World
    yield "Distributions", Distribution
    for name, field in World.model_fields.items():
        section = section_in(field.annotation)
        if section is not None:
            yield f"`[{name}", section


def test_no_section_of_a_world_file_is_without_a_table() -> None:
    reached = set(described_sections())
    own = {
        one for one in vars(sections).values() if isinstance(one, type) and issubclass(one, Section)
    }
    assert own - {Section} <= reached


def described_sections() -> Iterator[type[BaseModel]]:
    """The sections whose keys the tables have."""
    for _, section in described():
        yield section
        for _, field in fields(section):
            inner = section_in(field.annotation)
            if inner is not None:
                yield inner


@pytest.mark.parametrize(
    ("heading", "section"),
    [pytest.param(heading, section, id=section.__name__) for heading, section in described()],
)
def test_every_key_has_a_row_with_its_unit_and_default_and_no_other_has_one(
    heading: str, section: type[BaseModel]
) -> None:
    found = [rows for head, rows in tables().items() if head.startswith(heading)]
    assert len(found) == 1, f"one part of the page begins with {heading!r} and has a table of keys"
    rows = {key: row for row in found[0] for key in row.keys}
    real = dict(fields(section))
    assert sorted(chain.from_iterable(row.keys for row in found[0])) == sorted(real)
    for key, field in real.items():
        said = rows[key].default
        assert rows[key].unit, key
        assert (said == "required") == field.is_required(), f"{key}: {said}"
        if section is not World and not field.is_required():
            assert said_default(said) == default_of(field), f"{key}: {said}"


def said_default(cell: str) -> object:
    """The value that a cell says in backticks; None where it only describes."""
    return tomllib.loads(f"x = {cell[1:-1]}")["x"] if cell.startswith("`") else None


def default_of(field: FieldInfo) -> object:
    """A default as a file would write it."""
    value = field.default
    return value.constant if isinstance(value, Distribution) else value


def test_every_name_of_the_catalogue_is_on_the_page() -> None:
    kinds = map(known, ("gpu", "link", "serverless"))
    for name in chain(*kinds, catalogue_models(), presets()):
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("name", known("gpu"))
def test_the_figures_of_a_gpu_are_those_of_the_catalogue(name: str) -> None:
    own = gpu(name)
    figures = (
        own.tflops,
        own.hbm_tb_s,
        own.memory_gb,
        own.prefill_efficiency,
        own.training_mfu,
    )
    cells = [*(f"{figure:g}" for figure in figures), "-" if own.price is None else f"{own.price:g}"]
    assert f"| `{name}` | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("name", known("link"))
def test_the_figures_of_a_link_are_those_of_the_catalogue(name: str) -> None:
    found = re.search(rf"`{name}`\s\(([\d.]+), ([\d.]+)\)", PAGE)
    assert found is not None
    assert (float(found[1]), float(found[2])) == (link(name).latency_s, link(name).gb_s)
