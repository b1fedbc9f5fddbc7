"""Rows, their arms and their verdicts: what is run fits, what is shown follows from the runs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rollart.cli.main import main
from rollart.core.errors import ConfigError
from rollart.paper import asynchrony, fit
from rollart.paper.arms import Arm, Cluster, arm
from rollart.paper.command import evaluate
from rollart.paper.doc import Circumstances, write_page
from rollart.paper.effort import FULL, QUICK, Effort
from rollart.paper.evaluation import all_rows, chosen_rows
from rollart.paper.fingerprint import fingerprint
from rollart.paper.measure import Measured
from rollart.paper.parameters import Change, frozen
from rollart.paper.rows import Kind, Part, Row, judged, within
from rollart.paper.run import run_rows
from rollart.paper.table import json_objects, text_table, verdict
from rollart.runtimes.sim.world.fitting import refuse_impossible

RUN = Measured(
    step_s=10.0,
    rollout_s=5.0,
    tokens=1000.0,
    busy=(("H800", 0.5),),
    update_s=1.0,
    push_s=2.0,
    lag=0.5,
    started=8,
    stale=0,
    surplus=0,
    failed=0,
)


def small_arm(name: str = "one") -> Arm:
    return arm(
        name,
        Cluster(model="Qwen3-8B", engines={"H800": 1}, trainer=2),
        domains=("WebShop",),
        groups=2,
        steps=1,
        protocol="sync_plus",
    )


def row(*parts: Part, kind: Kind = Kind.END_TO_END, name: str = "e-test") -> Row:
    return Row(
        id=name,
        kind=kind,
        what="seconds of a step",
        paper="1",
        band="2",
        parts=parts,
        arms=(small_arm(),),
        value=lambda seen: [seen["one"].step_s for _ in parts],
    )


def runs(*seconds: float) -> dict[str, Sequence[Measured]]:
    return {"one": [replace(RUN, step_s=each) for each in seconds]}


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_every_arm_fits_its_world_and_no_two_arms_have_one_name(effort: Effort) -> None:
    arms: dict[str, Arm] = {}
    for found in all_rows(effort):
        for each in found.arms:
            assert arms.setdefault(each.name, each) == each
            assert each.skip < each.job.run.steps
    for each in arms.values():
        refuse_impossible(each.job, each.world)


def test_rows_have_names_of_their_own_and_controls_belong_to_rows_of_the_paper() -> None:
    rows = all_rows(FULL)
    names = [each.id for each in rows]
    assert len(set(names)) == len(names)
    own = {each.id for each in rows if each.kind in {Kind.MICRO, Kind.END_TO_END}}
    for each in rows:
        assert (each.of in own) == (each.kind in {Kind.CONTROL, Kind.CAUSE, Kind.SWEEP})


def test_every_number_is_that_of_the_fit_or_the_change_is_logged() -> None:
    assert frozen().fingerprint == fingerprint()


def test_what_is_frozen_lies_where_the_fits_own_model_is_right_within_its_bands() -> None:
    found = frozen().fitted
    assert fit.lockstep_error((found.r2_batch, found.r2_turns, found.r2_answer_tokens)) < 0.10
    assert fit.lockstep_error((64, 10, 240)) > 0.10
    assert fit.spare_error((found.task_sigma, found.member_sigma)) < 0.06
    assert fit.spare_error((0.0, 0.2)) > 0.06


def test_the_fit_takes_the_point_with_the_least_error() -> None:
    assert fit.best([1, 5, 3], lambda point: abs(point - 4)) == 5
    assert fit.worst([1.0, 2.0], [1.0, 1.0]) == pytest.approx(0.693, abs=1e-3)


def test_a_row_is_hit_where_the_mean_over_seeds_lies_in_the_band() -> None:
    band = Part(label="s", low=9.0, high=11.0)
    assert judged(row(band), runs(8.0, 12.0)).ok
    missed = judged(row(band, Part(label="free")), runs(11.0, 12.0))
    assert [part.ok for part in missed.parts] == [False, True]
    assert not missed.ok
    assert (missed.parts[0].least, missed.parts[0].most) == (11.0, 12.0)
    with pytest.raises(ValueError, match="shorter"):
        judged(replace(row(band), arms=(small_arm(), small_arm("two"))), {**runs(1, 2), "two": []})


def test_a_band_around_the_papers_number_has_its_ends() -> None:
    part = within("x", 2.0, 0.10)
    assert part.holds(1.8)
    assert part.holds(2.2)
    assert not part.holds(2.21)


def test_a_json_object_says_what_the_row_did_and_holds_its_controls() -> None:
    result = judged(row(Part(label="s", low=9, high=11)), runs(10.0))
    control = judged(
        replace(row(Part(label="c", high=1.0), name="c", kind=Kind.CONTROL), of="e-test"),
        runs(10.0),
    )
    (found,) = json.loads(json.dumps(json_objects([result, control])))
    assert (found["id"], found["kind"], found["paper"], found["band"]) == ("e-test", "e", "1", "2")
    assert (found["ours"], found["ok"]) == ({"s": 10.0}, True)
    assert [(each["id"], each["ok"]) for each in found["related"]] == [("c", False)]
    assert found["utilisation"] == {"one": {"H800": 0.5}}


def test_the_table_and_the_page_tell_misses_and_what_was_not_run(tmp_path: Path) -> None:
    missed = judged(
        replace(row(Part(label="s", low=1, high=2)), why="Steps take ten seconds."), runs(10.0)
    )
    left = row(Part(label="t"), name="e-left")
    text = text_table([missed], [left])
    assert "MISS  e-test" in text
    assert "e-left: not run" in text
    page = tmp_path / "docs" / "paper.md"
    change = Change(date="2026-01-01", what="c", why="w", before="row 1", after="row 2")
    write_page(
        page,
        [missed],
        not_run=[left],
        frozen=replace(frozen(), changes=(change,)),
        circumstances=Circumstances(command="c", effort="quick", seconds=60, cpu_s=60, processes=2),
    )
    written = page.read_text(encoding="utf-8")
    assert "0 of 1 rows" in written
    assert "## e-test: miss" in written
    assert "Steps take ten seconds." in written
    assert "| e-left | e | seconds of a step | 1 | 2 | - | not run |" in written
    assert "row 1" in written
    assert (page.parent / "paper" / "end_to_end.png").stat().st_size > 1000


def test_an_unknown_row_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match="m-r2"):
        chosen_rows(QUICK, ["m-r3"])
    assert main(["paper", "--quick", "--rows", "m-r3"]) == 2
    assert "no such row" in capsys.readouterr().err


def test_a_row_comes_with_its_controls() -> None:
    assert [each.id for each in chosen_rows(QUICK, ["m-r2"])] == ["m-r2", "control-sigma-0"]


def test_two_arms_of_one_name_are_refused() -> None:
    other = replace(small_arm(), skip=1)
    rows = [row(Part(label="s")), replace(row(Part(label="s")), arms=(other,))]
    with pytest.raises(ValueError, match="another arm is called 'one'"):
        run_rows(rows, processes=1, tell=lambda line: None)


def test_weights_in_the_background_are_a_hit_at_small_scale() -> None:
    told: list[str] = []
    text = evaluate(
        ["m-weights"], quick=True, as_json=True, out=None, processes=1, tell=told.append
    )
    (found,) = [json.loads(line) for line in text.splitlines()]
    assert found["ok"]
    assert found["ours"]["Qwen3-32B naive s"] > 10 * found["ours"]["Qwen3-32B exposed s"]
    assert len(told) == 6


def test_free_turns_gain_by_the_spread_of_steps_and_by_nothing_else() -> None:
    small = replace(frozen().fitted, r2_batch=16, r2_turns=5, r2_answer_tokens=20)
    rows = asynchrony.micro_rows(replace(QUICK, cheap_seeds=1), small)
    results, _ = run_rows(rows, processes=2, tell=lambda line: None)
    speeds = [part.mean for part in results[0].parts]
    assert speeds == sorted(speeds)
    assert speeds[-1] > 1.2
    assert results[1].ok


def test_a_cause_says_whether_it_explains_its_row_and_stands_within_it() -> None:
    missed = judged(row(Part(label="s", low=9, high=9.5)), runs(10.0))
    explains, does_not = (
        judged(
            replace(row(Part(label="c", high=high), name=name, kind=Kind.CAUSE), of="e-test"),
            runs(10.0),
        )
        for name, high in (("cause-a", 11.0), ("cause-b", 9.0))
    )
    assert (verdict(missed), verdict(explains), verdict(does_not)) == (
        "miss",
        "explains",
        "not alone",
    )
    (found,) = json.loads(json.dumps(json_objects([missed, explains, does_not])))
    assert [each["id"] for each in found["related"]] == ["cause-a", "cause-b"]


def test_causes_are_taken_away_in_a_full_evaluation_and_left_out_of_a_quick_one() -> None:
    full, quick = ({each.kind for each in all_rows(effort)} for effort in (FULL, QUICK))
    assert full - quick == {Kind.CAUSE}


def test_no_process_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "--rows", "m-weights", "--processes", "0"]) == 2
    assert "--processes 0: rows need at least one; use 1 or more" in capsys.readouterr().err
