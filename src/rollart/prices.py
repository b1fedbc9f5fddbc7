"""What an hour of a GPU costs, for those who look at runs: the catalogue, and a run's own world.

Invariant: an hour of an H20 is 1; a class that nobody gave a price has none.
"""

from collections.abc import Mapping
from pathlib import Path

from rollart.core.errors import ConfigError
from rollart.observe.report import WORLD_FILE


def prices_of(run: Path) -> Mapping[str, float]:
    """Prices by GPU class in the run's world, if it has one, and else in the catalogue.

    Raises:
        ConfigError: the run's world file cannot be read.
    """
    from rollart.runtimes.sim.hardware.catalogue import gpu, known

    prices = {name: price for name in known("gpu") if (price := gpu(name).price) is not None}
    file = run / WORLD_FILE
    if not file.is_file():
        return prices
    from rollart.runtimes.sim.world.file import load_world

    try:
        own = load_world(file).gpu
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    for name, section in own.items():
        prices.pop(name, None)
        if section.price is not None:
            prices[name] = section.price
    return prices
