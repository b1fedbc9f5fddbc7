"""`rollart serve`: a model behind an OpenAI-compatible endpoint."""

from pathlib import Path

from rollart.cli.common import BAD_INPUT, FAILED, INTERRUPTED, fail
from rollart.core.errors import ConfigError, RollartError


def serve(
    model: Path, *, host: str, port: int, name: str | None, context: int | None, slots: int
) -> int:
    """Returns the exit code, once it is told to stop."""
    from rollart.serving.command import ServeSettings
    from rollart.serving.command import serve as run

    settings = ServeSettings(
        model=model, host=host, port=port, name=name, context=context, slots=slots
    )
    try:
        run(settings, lambda line: print(line, flush=True))
    except ConfigError as error:
        return fail(BAD_INPUT, str(error))
    except RollartError as error:
        return fail(FAILED, str(error))
    return INTERRUPTED
