"""The page on rewards: its function ships, its URLs fit, its tables say what the code does."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rollart.backends.rewards import alibaba_fc, aws_lambda, http
from rollart.backends.rewards.urls import KEYS, parse_url
from rollart.cli.main import make_parser
from rollart.core.config import DomainConfig
from rollart.core.scoring.document import (
    TaskDocument,
    ToolCallDocument,
    TrajectoryDocument,
    TurnDocument,
)
from rollart.core.scoring.places import reward_place
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, Reference, Request, encode_answer, encode_request
from rollart.shipping.aws_lambda import LAMBDA
from rollart.shipping.package import TARGETS, package

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def first_cells(after: str) -> set[str]:
    """Every `word` in the first column of the table that begins with this heading."""
    table = PAGE[PAGE.index(after) :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {word for cell in cells for word in re.findall(r"`([\w.]+)`", cell)}


def fields(record: type) -> set[str]:
    return set(record.__dataclass_fields__)


def test_every_command_of_the_page_is_one() -> None:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(re.sub(r"\s#\s.*", "", line))
        assert words[:2] == ["rollart", "rewards"]
        make_parser().parse_args(words[1:])


def test_the_function_of_the_page_is_shipped_as_it_declares(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(blocks("python")[0])
    for name, target in TARGETS.items():
        one = package("judge:score", target, tmp_path / "out" / name, root=tmp_path)
        assert (one.shipment.memory_mib, one.shipment.timeout_s) == (512, 10)
        assert one.shipment.settings.concurrency == 16


def test_the_job_of_the_page_names_places() -> None:
    (domain,) = tomllib.loads(blocks("toml")[0])["domains"]
    first, second = map(reward_place, DomainConfig(**domain).reward_places)
    assert (first.concurrency, first.store) == (200, "s3://bucket/rewards")
    assert first.function == second.function == "judge:score"


@pytest.mark.parametrize("url", re.findall(r'reward = "(\w+://[^"…]+)"', PAGE))
def test_every_url_of_the_page_is_one(url: str) -> None:
    place = reward_place(url)
    assert parse_url(place.platform).scheme == url.partition("://")[0]


def test_the_page_names_the_projects_own_keys_of_an_http_url() -> None:
    own = PAGE[PAGE.index("own keys are") : PAGE.index("every other is")]
    names = set(re.findall(r"`(\w+)`", own))
    assert set(KEYS["https"]) < names
    url = "https://h/x?" + "&".join(f"{name}=1" for name in sorted(names - {"auth"}))
    assert "?" not in parse_url(reward_place(url).platform).target
    assert parse_url(reward_place(f"{url}&theirs=1").platform).target.endswith("?theirs=1")


def test_the_table_of_the_document_has_its_fields() -> None:
    turn = first_cells("| of a turn")
    assert turn == fields(TurnDocument)
    assert first_cells("| field | |") == fields(TrajectoryDocument) | {"version"}
    for name in fields(ToolCallDocument) | fields(TaskDocument):
        assert f"`{name}`" in PAGE


def test_the_tables_of_the_wire_have_its_names() -> None:
    where = Reference(url="u", size=1, sha256="s")
    requests = [
        Request(key="k"),
        Request(key="k", trajectory={}),
        Request(key="k", reference=where),
    ]
    sent = {name for one in requests for name in json.loads(encode_request(one))}
    assert first_cells("| request | |") == sent
    answers = [{"error": "x"}, {"verdict": Verdict(score=1.0)}]
    said: set[str] = set()
    for more in answers:
        one = Answer(key="k", function="f", version="v", instance="i", **more)  # type: ignore[arg-type]
        said |= set(json.loads(encode_answer(one)))
    assert first_cells("| answer | |") == said


def test_the_limits_of_the_page_are_those_in_the_code() -> None:
    assert aws_lambda.BODY_BYTES == 6 << 20
    assert "| AWS Lambda | 6 MB | 15 min | 250 MB unpacked |" in PAGE
    assert (LAMBDA.unzipped_mib, LAMBDA.timeout_s[1]) == (250, 15 * 60)
    assert http.BODY_BYTES == alibaba_fc.BODY_BYTES == 32 << 20
    assert "| HTTP, Cloud Run | 32 MB over HTTP/1 ¹ | 60 min ¹ |" in PAGE
    assert "| Function Compute | 32 MB | 24 h |" in PAGE
    assert TARGETS["fc"].timeout_s[1] == 24 * 3600
    assert TARGETS["cloudrun"].timeout_s[1] == 60 * 60
