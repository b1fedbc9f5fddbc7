"""World files: what they say, what is refused and with which words, and the world of a job."""

from pathlib import Path
from typing import Any

import pytest

from rollart.core.errors import ConfigError
from rollart.core.jobfile import load_job
from rollart.core.ports import Affinity
from rollart.runtimes.sim.hardware.model_shape import model_shape
from rollart.runtimes.sim.world.defaults import default_world
from rollart.runtimes.sim.world.file import load_world, parse_world, presets
from rollart.runtimes.sim.world.fitting import (
    parts_of,
    refuse_impossible,
    roofline_of,
    trainer_settings,
    unused,
)
from rollart.runtimes.sim.world.places import places
from rollart.testing.worlds import TAG, small_job, small_table, small_world

ROOT = Path(__file__).parents[4]


def refusal(**overrides: Any) -> str:
    """What a world is refused with, read or fitted to the job."""
    with pytest.raises(ConfigError) as caught:
        refuse_impossible(small_job(), parse_world(small_table(**overrides)))
    return str(caught.value)


def test_the_small_world_fits_the_small_job() -> None:
    refuse_impossible(small_job(), small_world())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"schema": None}, ["schema: missing", "schema = 1"]),
        ({"schema": 2}, ["schema = 2", "use schema = 1"]),
        ({"model": {"name": "GPT-9"}}, ['model.name = "GPT-9"', "Qwen3-8B"]),
        ({"model": {}}, ["model = {}", 'name = "Qwen3-8B"']),
        ({"model__config": "x.json"}, ["either name", "config"]),
        ({"pools__H800": 0}, ["pools.H800 = 0", "greater than 0"]),
        ({"pools__B200": 4}, ['pools.B200 = "B200"', "unknown GPU", "H800"]),
        ({"trainer__hardware": "TPU"}, ['trainer.hardware = "TPU"', "unknown GPU", "H20"]),
        ({"trainer__mfu": 1.5}, ["trainer.mfu = 1.5", "less than or equal to 1", "0.35"]),
        ({"trainer__gpu": 8}, ["trainer.gpu = 8", "unknown key", "did you mean 'gpus'"]),
        ({"trainer__gpus": 1}, ["trainer.gpus = 1", "Qwen3-8B", "80 GB", "use at least"]),
        ({"trainer__gpus": 9}, ["pools.H800 = 10", "11 GPUs are wanted", "use pools.H800 = 11"]),
        ({"engines__H20__gpus": 2}, ["pools.H20 = 6", "12 GPUs", "fewer engines"]),
        ({"engines__H20__gpus": 3}, ["engines.H20.gpus = 3", "32 attention heads", "use 2"]),
        ({"engines__H20": None}, ["engines.H20: missing", "rollout.engines", "[engines.H20]"]),
        ({"engines__H20__hardware": "x"}, ['engines.H20.hardware = "x"', "unknown GPU"]),
        ({"engines__H20__prefill": {"hardware": "H800"}}, ["engines.H20", "both sides"]),
        ({"network__slow": {"latency_s": -1, "gb_s": 1}}, ["network.slow.latency_s = -1", "0"]),
        ({"network__slow": {"latency_s": 0}}, ["network.slow.gb_s: missing", "gb_s = 12.5"]),
        ({"weights__push": "string"}, ['weights.push = "string"', "no such link", "[network."]),
        ({"weights__mode": "lazy"}, ["weights.mode", '"lazy"', 'mode = "blocking"']),
        ({f"domains__{TAG}": None}, [f"domains.{TAG}: missing", "preset"]),
        ({f"domains__{TAG}__preset": "Chess"}, ["preset", '"Chess"', "SWE-bench"]),
        ({f"domains__{TAG}__step_s": -0.5}, [f"domains.{TAG}.step_s", "-0.5", "seconds"]),
        ({f"domains__{TAG}__prefix_hit": 2}, [f"domains.{TAG}.prefix_hit = 2", "0.5"]),
        ({f"domains__{TAG}__turn": 2}, [f"domains.{TAG}.turn = 2", "did you mean 'turns'"]),
        (
            {f"domains__{TAG}__turns": {"unifrom": [1, 2]}},
            [f"domains.{TAG}.turns", "unknown key", "did you mean 'uniform'"],
        ),
        (
            {f"rewards__{TAG}": {"dedicated": {"hardware": "H800", "gpus": 1}}},
            ["pools.H800 = 10", f"rewards of {TAG}: 1", "11"],
        ),
        (
            {f"rewards__{TAG}": {"serverless": {"platform": "moon"}}},
            [f'rewards.{TAG}.serverless.platform = "moon"', "function"],
        ),
        (
            {f"rewards__{TAG}": {"serverless": {"hardware": "moon"}}},
            [f'rewards.{TAG}.serverless.hardware = "moon"', "unknown GPU"],
        ),
        ({"trainer__fixed_s": 4000}, ["trainer.fixed_s = 4000", "timeouts.train_s"]),
        (
            {"network__slow": {"latency_s": 0, "gb_s": 0.01}, "weights__push": "slow"},
            ['weights.push = "slow"', "timeouts.weights_s", "--set"],
        ),
    ],
)
def test_what_cannot_be_is_refused_with_key_value_rule_and_remedy(
    overrides: dict[str, Any], words: list[str]
) -> None:
    said = refusal(**overrides)
    assert "\n" not in said
    for word in words:
        assert word in said


LAKE, SCORE = f"domains__{TAG}__", f"rewards__{TAG}__"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({f"{LAKE}first_tokens": 100000}, ["first_tokens: 100000 or more", "8192", "4096"]),
        ({f"{LAKE}first_tokens": {"uniform": [8192, 9000]}}, ["first_tokens: 8192 or more"]),
        ({f"{LAKE}reset_s": 100000}, ["reset_s: each reset takes 100000 s", "env_reset_s = 600"]),
        ({f"{LAKE}reset_s": {"lognormal": {"median": 1e5, "sigma": 0.1}}}, ["each reset takes"]),
        (
            {f"{LAKE}reset_s": 500, f"{LAKE}image": {"hit": 0, "pull_s": {"uniform": [100, 200]}}},
            ["each reset takes 600 s"],
        ),
        (
            {f"{LAKE}reset_hang": {"chance": 1, "seconds": 900}},
            ["each reset takes 900", "timeouts.env_reset_s=18"],
        ),
        ({f"{LAKE}step_s": 60}, ["step_s: each step takes 60 s", "timeouts.env_step_s=120"]),
        ({f"{LAKE}step_s": 50, f"{LAKE}turns": 80}, ["each episode takes 40", "episode_s = 3600"]),
        ({f"{LAKE}turns": 0}, ["turns: always 0", "use turns = 1"]),
        ({f"{LAKE}reset_failure": {"chance": 1, "seconds": 1}}, ["reset_failure.chance = 1"]),
        ({f"{LAKE}step_failure": {"chance": 1, "seconds": 1}}, ["step_failure.chance = 1"]),
        ({f"{LAKE}answer_tokens": {"values": [600, 900]}}, ["600 or more", "max_tokens", "512"]),
        (
            {f"{LAKE}first_tokens": 8000, f"{LAKE}answer_tokens": 300},
            ["answer_tokens: 300 or more", "model.context", "at 192"],
        ),
        ({f"{SCORE}seconds": 1e4}, [f"rewards.{TAG}.seconds: each verdict", "timeouts.reward_s"]),
        ({f"{SCORE}failure": 1}, [f"rewards.{TAG}.failure = 1", "never a verdict"]),
        ({"weights__bucket_gb": 1e-7}, ["weights.bucket_gb = 1e-07", "bucket_gb = 1.0"]),
    ],
)
def test_a_world_in_which_nothing_can_end_well_is_refused(
    overrides: dict[str, Any], words: list[str]
) -> None:
    said = refusal(**overrides)
    assert "\n" not in said
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rewards": {"lakes": {"seconds": 1}}}, ["rewards.lakes", "did you mean [rewards.lake]"]),
        ({"rewards": {"MM": {"seconds": 1}}}, ["rewards.MM", "[rewards.lake]"]),
        (
            {"domains": {"laek": small_table()["domains"][TAG]}},
            ["domains.lake: missing", "or call [domains.laek] so"],
        ),
        (
            {"engines": {"H800": {"gpus": 1}, "H02": {"hardware": "H20"}}},
            ["engines.H20: missing", "or call [engines.H02] so"],
        ),
        (
            {"domains": {"laek": small_table()["domains"][TAG]}, "recorded": {"run": "none"}},
            ["domains.laek", "did you mean [domains.lake]"],
        ),
    ],
)
def test_a_section_for_nobody_is_refused_with_the_one_that_may_be_meant(
    overrides: dict[str, Any], words: list[str]
) -> None:
    said = refusal(**overrides)
    for word in words:
        assert word in said


B200 = {
    "tflops": 2250,
    "hbm_tb_s": 8,
    "memory_gb": 180,
    "price": 6.5,
    "prefill_efficiency": 0.45,
    "training_mfu": 0.35,
}


def test_a_gpu_that_the_catalogue_does_not_know_is_defined_in_the_world() -> None:
    own = {"gpu": {"B200": B200}, "pools": {"B200": 10, "H20": 6}}
    own |= {"trainer__hardware": "B200", "engines__H800__hardware": "B200"}
    world = small_world(**own)
    refuse_impossible(small_job(), world)
    (_, part), *_ = parts_of("H800", world.engines["H800"])
    roofline = roofline_of(world, model_shape("Qwen3-8B"), part)
    assert (roofline.gpu.name, roofline.gpu.tflops, roofline.gpu.price) == ("B200", 2250, 6.5)
    assert trainer_settings(world).gpu == roofline.gpu


def test_what_the_world_says_of_a_gpu_stands_before_the_catalogue() -> None:
    world = small_world(gpu={"H20": {**B200, "memory_gb": 20}})
    with pytest.raises(ConfigError, match=r"engines\.H20\.gpus = 1: .* on 1 H20"):
        refuse_impossible(small_job(), world)


@pytest.mark.parametrize("key", [key for key in B200 if key != "price"])
def test_a_gpu_is_defined_whole_and_by_numbers_above_0(key: str) -> None:
    less = {name: value for name, value in B200.items() if name != key}
    assert f"gpu.B200.{key}: missing; use" in refusal(gpu={"B200": less})
    assert f"gpu.B200.{key} = -1" in refusal(gpu={"B200": {**B200, key: -1}})
    assert "did you mean 'tflops'" in refusal(gpu={"B200": {**B200, "tflop": 1}})


def test_a_world_may_hold_more_than_this_job_uses() -> None:
    other = {"domains__sea": small_table()["domains"][TAG], "rewards__sea": {"seconds": 1}}
    world = small_world(**other, engines__A100={"gpus": 1})
    refuse_impossible(small_job(), world)
    assert unused(small_job(), world) == ("engines.A100", "domains.sea", "rewards.sea")
    recorded = small_world(recorded={"run": "none"}, rewards={TAG: {"seconds": 1}}, **other)
    refuse_impossible(small_job(), recorded)


def test_what_is_only_unlikely_is_a_world_like_others() -> None:
    hard = {
        "turns": {"uniform": [0, 400]},
        "first_tokens": {"uniform": [8191, 90000]},
        "answer_tokens": {"exponential": 9000},
        "reset_s": {"uniform": [599, 9000]},
        "step_s": {"exponential": 600},
        "reset_failure": {"chance": 0.999, "seconds": 1000},
        "reset_hang": {"chance": 0.999, "seconds": 1000},
    }
    world = {f"{LAKE}{key}": value for key, value in hard.items()}
    refuse_impossible(small_job(), small_world(**world))


def test_a_model_that_does_not_fit_is_refused_with_the_gpus_it_needs() -> None:
    said = refusal(
        model={"name": "Qwen3-235B-A22B"},
        pools={"H800": 100, "H20": 100},
        trainer={"hardware": "H800", "gpus": 64},
    )
    assert "engines.H800.gpus = 1: Qwen3-235B-A22B does not fit" in said
    assert "use 8 GPUs" in said


def test_a_context_that_no_engine_can_hold_is_refused() -> None:
    job = small_job(model__context=400_000, train__microbatch_tokens=400_000)
    with pytest.raises(ConfigError, match=r"model\.context = 400000; use 2 GPUs"):
        refuse_impossible(job, small_world())


def test_an_engines_batch_must_leave_room_for_prefill() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.slots = 5000: must be below .* = 10000"):
        refuse_impossible(small_job(rollout__slots=5000), small_world())


def test_every_preset_is_a_domain_and_can_be_changed_in_part() -> None:
    domains = {name: {"preset": name, "prefix_hit": 0.25} for name in presets()}
    world = parse_world(small_table(domains=domains))
    assert list(world.domains) == ["SWE-bench", "WebShop", "FrozenLake", "GEM-math", "GEM-game"]
    assert {domain.prefix_hit for domain in world.domains.values()} == {0.25}
    assert world.domains["SWE-bench"].first_tokens.constant == 2500
    assert world.domains["GEM-math"].turns.uniform == (1, 4)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_world(tmp_path / "world.toml")
    (tmp_path / "world.toml").write_text("schema = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_world(tmp_path / "world.toml")


def test_paths_in_a_world_file_are_meant_from_its_folder(tmp_path: Path) -> None:
    import tomli_w

    table = small_table(model={"config": "config.json"}, recorded={"run": "elsewhere"})
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "world.toml").write_text(tomli_w.dumps(table))
    world = load_world(tmp_path / "world.toml")
    assert world.model.config == str(tmp_path / "config.json")
    assert world.recorded is not None
    assert world.recorded.run == "elsewhere"  # nothing of that name is there


@pytest.mark.parametrize("name", ["three_domains", "cluster"])
def test_the_worlds_of_the_examples_fit_their_jobs(name: str) -> None:
    folder = ROOT / "examples" / name
    refuse_impossible(load_job(folder / "job.toml"), load_world(folder / "world.toml"))


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*/*.toml")), ids=str)
def test_a_job_without_a_world_gets_one_that_fits(file: Path) -> None:
    if file.name == "world.toml":
        return
    job = load_job(file)
    assumed = default_world(job)
    refuse_impossible(job, assumed.world)
    assert "no world was given" in assumed.words
    assert set(assumed.world.domains) == {domain.tag for domain in job.domains}


def test_an_assumed_world_keeps_known_classes_and_names_what_it_put_for_others() -> None:
    job = small_job(rollout__engines={"H20": 2, "fast": 1}, rollout__affinity={"default": "fast"})
    assumed = default_world(job)
    assert assumed.world.pools == {"H800": 9, "H20": 2}
    assert assumed.world.engines["fast"].hardware == "H800"
    assert "1 x 1 H800 for 'fast'" in assumed.words


def test_a_large_context_gets_more_gpus_an_engine() -> None:
    job = small_job(model__context=400_000, train__microbatch_tokens=400_000)
    world = default_world(job).world
    assert world.engines["H800"].gpus > 1
    refuse_impossible(job, world)


def test_a_context_that_no_assumed_engine_would_hold_is_refused() -> None:
    job = small_job(model__context=10**8, train__microbatch_tokens=10**8)
    with pytest.raises(ConfigError, match=r"context = 100000000: Qwen3-8B on 64 H800 holds \d+"):
        default_world(job)


def test_a_gpu_that_is_not_known_is_refused_with_its_key_wherever_it_is_looked_up() -> None:
    world = small_world(trainer__hardware="A9", engines__H20={"hardware": "A8"})
    with pytest.raises(
        ConfigError, match=r'^trainer\.hardware = "A9": unknown GPU; use one of H20'
    ):
        trainer_settings(world)
    ((_, part),) = parts_of("H20", world.engines["H20"])
    with pytest.raises(ConfigError, match=r'^hardware = "A8": unknown GPU; use one of H20'):
        roofline_of(world, model_shape("Qwen3-8B"), part)


def test_every_worker_has_gpus_of_its_own() -> None:
    world = small_world(
        pools={"H800": 14, "H20": 8},
        engines={
            "H800": {"gpus": 2},
            "H20": {
                "prefill": {"hardware": "H800"},
                "decode": {"hardware": "H20", "count": 3},
            },
        },
        rewards={TAG: {"dedicated": {"hardware": "H20", "gpus": 2}}},
    )
    job = small_job(rollout__engines={"H800": 2, "H20": 2})
    refuse_impossible(job, world)
    found = places(job, world, Affinity(by_domain={}))
    slots = [slot for bound in found.bindings for slot in bound.slots]
    assert sorted(slots) == list(range(22))
    by_worker: dict[str, list[tuple[str, int]]] = {}
    for bound in found.bindings:
        by_worker.setdefault(bound.worker, []).append((bound.hardware, len(bound.slots)))
    assert by_worker == {
        "trainer": [("H800", 8)],
        "engine-0": [("H800", 2)],
        "engine-1": [("H800", 2)],
        "engine-2": [("H800", 1), ("H20", 3)],
        "engine-3": [("H800", 1), ("H20", 3)],
        f"{TAG}-rewards": [("H20", 2)],
    }
    assert [engine.hardware for engine in found.placement.engines] == ["H800"] * 2 + ["H20"] * 2
    assert found.placement.engines[2].parts == (("H800", "prefill"), ("H20", "decode"))
