"""Values of the command line, read; and a command as all of them are described."""

import argparse
from typing import Any

from rollart.cli.common import EXIT_CODES


def positive(text: str) -> int:
    """A whole number above 0."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number greater than 0; use 100")
    return number


def number_from_0(text: str) -> int:
    """A whole number."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on; use 0")
    return int(text)


def port(text: str) -> int:
    """A port; 0 lets the system choose."""
    number = number_from_0(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; use 0 to 65535")
    return number


def command_of(
    commands: "argparse._SubParsersAction[Any]", name: str, help_text: str, more: str
) -> argparse.ArgumentParser:
    """A command with its help and the exit codes below it."""
    return commands.add_parser(
        name,
        help=help_text,
        description=f"{help_text[0].upper()}{help_text[1:]}. {more}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
