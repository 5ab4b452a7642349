"""Running a command line: options of every command, errors in one line, exit codes."""

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from zkdv.cli import _audit, _inspect, _key, _match, _membership, _plugins, _verify
from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import Debug, debug_requested
from zkdv.errors import ZKDVVerificationError

application = typer.Typer(
    name="zkdv",
    help="Show others how a model was trained, and verify what others show.",
    epilog="Exit codes: 0 passed or done, 1 failed, 2 wrong usage or unreadable, 3 incomplete.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
application.command("verify", short_help="Say whether transcripts hold.")(_verify.verify)
application.command("audit", short_help="Execute updates of a run again, and compare.")(_audit.audit)
application.command("inspect", short_help="Show what a transcript says, unverified.")(_inspect.inspect)
application.command("match", short_help="Find the update that a model file is from.")(_match.match)
application.add_typer(_membership.application, name="membership")
application.add_typer(_key.application, name="key")
application.command("plugins", short_help="List the installed plugins.")(_plugins.plugins)


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
    given = sys.argv[1:] if arguments is None else list(arguments)
    terminal.show_tracebacks(wanted=debug_requested(given))
    try:
        code = application(given, prog_name="zkdv", standalone_mode=False) or ExitCode.PASSED
        terminal.finish()
    except terminal.OutputClosedError:
        terminal.give_up_output()
        return ExitCode.OUTPUT_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except ZKDVVerificationError as error:
        # What a command concludes from a transcript, it concludes from one that holds.
        terminal.report(error)
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 (the last line of defence: one line, and a code that is no verdict)
        terminal.report(error)
        return ExitCode.UNUSABLE
    # Releases of typer differ in whether they raise an interruption or return its code.
    if code == ExitCode.INTERRUPTED:
        terminal.complain("interrupted")
    return code
