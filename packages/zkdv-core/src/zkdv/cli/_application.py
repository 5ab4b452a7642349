"""Running a command line: options of every command, errors in one line, exit codes."""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from zkdv._native import NativeError
from zkdv.cli import _inspect, _key, _plugins, _verify
from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import Debug, debug_requested
from zkdv.errors import ZKDVError

# `UsageError` and the base of all errors in a command line; releases of typer differ in where they are.
_COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

application = typer.Typer(
    name="zkdv",
    help="Show others how a model was trained, and verify what others show.",
    epilog="Exit codes: 0 passed or done, 1 failed, 2 wrong usage or unreadable, 3 incomplete.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
application.command("verify")(_verify.verify)
application.command("inspect")(_inspect.inspect)
application.add_typer(_key.application, name="key")
application.command("plugins")(_plugins.plugins)


def _print_version(requested: bool) -> None:  # noqa: FBT001 (typer's callback)
    if requested:
        terminal.write(f"zkdv {version('zkdv-core')}")
        raise typer.Exit


@application.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    *,
    show_version: Annotated[  # noqa: ARG001 (handled by its callback)
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Debug = False,  # noqa: ARG001 (handled by its callback)
) -> None:
    """Show others how a model was trained, and verify what others show."""
    if context.invoked_subcommand is None:
        terminal.write(context.get_help())
        raise typer.Exit(ExitCode.UNUSABLE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: What follows `zkdv`; default: this process's own.

    Returns:
        The exit code, one of `ExitCode`.
    """
    terminal.accept_any_text()
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
        # Here, not when the interpreter shuts down: a reader that is gone is then an ordinary exception.
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OUTPUT_CLOSED
    except KeyboardInterrupt:
        terminal.complain("interrupted")
        return ExitCode.INTERRUPTED
    return code


def _run(arguments: list[str]) -> int:
    try:
        return application(arguments, prog_name="zkdv", standalone_mode=False) or ExitCode.PASSED
    except _COMMAND_LINE_ERROR as error:
        _show_traceback(arguments)
        terminal.complain(f"{_described(error)}; see `{_command_path(error)} --help`")
    except BrokenPipeError:
        raise
    except (ZKDVError, NativeError, OSError) as error:
        _show_traceback(arguments)
        terminal.complain(terminal.described(error))
    except typer.Abort:
        terminal.complain("aborted")
    except Exception as error:  # noqa: BLE001 (the last line of defence: one line, and a code that is no verdict)
        _show_traceback(arguments)
        terminal.complain(f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)")
    return ExitCode.UNUSABLE


def _show_traceback(arguments: list[str]) -> None:
    if debug_requested(arguments):
        traceback.print_exc()


def _described(error: Exception) -> str:
    message: str = error.format_message() if hasattr(error, "format_message") else str(error)
    return message.rstrip(".")


def _command_path(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "zkdv"
