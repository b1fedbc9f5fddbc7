import pytest

from rollart import serverless
from rollart.core.errors import ConfigError
from rollart.core.scoring.declared import NO_SETTINGS, declared_settings


def test_the_decorator_tags_and_never_wraps() -> None:
    def score(trajectory: object) -> float:
        return 0.5

    assert serverless(timeout=10, memory="1GB", concurrency=4)(score) is score
    settings = declared_settings(score)
    assert (settings.timeout_s, settings.memory_mib, settings.concurrency) == (10.0, 1024, 4)
    assert (settings.url, settings.network) == (None, False)


def test_a_function_that_declares_nothing_leaves_all_to_the_platform() -> None:
    assert declared_settings(lambda trajectory: 0.0) == NO_SETTINGS


@pytest.mark.parametrize(("memory", "mebibytes"), [(512, 512), ("512MB", 512), (" 2 GB ", 2048)])
def test_memory_is_mebibytes_or_says_its_unit(memory: int | str, mebibytes: int) -> None:
    tagged = serverless(memory=memory)(lambda trajectory: 0.0)
    assert declared_settings(tagged).memory_mib == mebibytes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "ftp://host/x"}, r"url='ftp://host/x'.*use one of local://"),
        ({"url": "judge:score"}, "use one of local://"),
        ({"url": 5}, "use one of local://"),
        ({"timeout": 0}, r"timeout=0\): must be seconds above 0, 604800 at most; use timeout=10"),
        ({"timeout": float("inf")}, r"timeout=inf\): .*604800 at most; use timeout=10"),
        ({"timeout": float("nan")}, r"timeout=nan\): "),
        ({"timeout": 10**400}, r"timeout=10+…\): .*604800 at most"),
        ({"timeout": 10**5000}, r"timeout=a number of thousands of digits\)"),
        ({"timeout": "10"}, "must be seconds above 0"),
        ({"timeout": True}, "must be seconds above 0"),
        ({"memory": "512"}, 'use memory="512MB"'),
        ({"memory": "512Mi"}, 'use memory="512MB"'),
        ({"memory": -1}, 'use memory="512MB"'),
        ({"memory": 1.5}, 'use memory="512MB"'),
        ({"memory": 10**15}, r"memory=10+\): .*1048576 MiB at most; use memory=\"512MB\""),
        ({"memory": "1025 GB"}, "memory='1025 GB'.*1048576 MiB at most"),
        ({"memory": "9" * 5000 + "MB"}, r"memory='9+…\): .*1048576 MiB at most"),
        ({"concurrency": 10**15}, r"concurrency=10+\): .*1000000 at most; use concurrency=8"),
        ({"concurrency": float("inf")}, r"concurrency=inf\): "),
        ({"concurrency": 0}, "use concurrency=8"),
        ({"concurrency": 1.5}, "use concurrency=8"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value_and_a_valid_one(
    arguments: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        serverless(**arguments)  # type: ignore[arg-type]


def test_the_largest_that_is_told_is_taken() -> None:
    declares = serverless(timeout=604_800, memory="1024GB", concurrency=1_000_000)
    settings = declared_settings(declares(lambda trajectory: 0.0))
    assert settings.memory_mib == 1_048_576
    assert (settings.timeout_s, settings.concurrency) == (604_800.0, 1_000_000)


@pytest.mark.parametrize("stands_on", [dict, 3])
def test_on_what_is_no_function_it_is_refused(stands_on: object) -> None:
    with pytest.raises(ConfigError, match="which is no function"):
        serverless()(stands_on)  # type: ignore[type-var]
