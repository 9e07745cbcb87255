"""The command line: one module a command, each with a function `command`; importing them must stay cheap.

A command imports torch, the driver and the harness inside its function, so that `vmmref --help` starts without them.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperGroup

ORDER: tuple[str, ...] = ("check", "explore", "prove", "faults", "replay", "explain", "doctor", "bench")
"""The order in which `--help` lists the commands; others follow by name."""


class UsageError(Exception):
    """What was asked for cannot be done; the text is one sentence with the values. Ends with exit status 2."""


class Commands(TyperGroup):
    """Every module of this package without a leading underscore is a command, loaded when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
        return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        single.command(cmd_name)(module.command)
        return typer.main.get_command(single)


app = typer.Typer(
    cls=Commands,
    help="Check memory pools for feature tensors against the numbered rules of their specification.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from vmmref.cli._output import version

        typer.echo(f"vmmref {version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line; exits with 0 (all well), 1 (a rule is broken) or 2 (could not run, bad usage)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a sign gets another one for it, and not a traceback.
            stream.reconfigure(errors="replace")
    if threading.current_thread() is threading.main_thread():
        # A CI that ends a job gets what was found so far, as somebody at a terminal does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="vmmref")
    except UsageError as error:
        print(f"vmmref: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # Nobody reads on: neither a rule that is broken nor worth a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(2) from None
    except OSError as error:
        print(f"vmmref: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
    return 0
