"""`zkdv plugins`: which plugins are installed, what they declare, and what is wrong with them."""

import typer
from rich.text import Text

from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import Debug, Json
from zkdv.plugins import Plugin, Registry, registry


def plugins(*, as_json: Json = False, debug: Debug = False) -> None:  # noqa: ARG001 (debug is read before parsing)
    """List the installed plugins and what they declare; imports no framework.

    Exit code 1 where a plugin cannot be used, or two declare one name.
    """
    found = registry()
    healthy = not found.conflicts and all(plugin.error is None for plugin in found.plugins)
    if as_json:
        terminal.write_json(_described(found))
    else:
        for plugin in found.plugins:
            _write_plugin(plugin)
        if not found.plugins:
            terminal.write("no plugins are installed")
        for conflict in found.conflicts:
            terminal.write(Text.assemble(("conflict: ", "bold red"), terminal.harmless(conflict)))
    raise typer.Exit(ExitCode.PASSED if healthy else ExitCode.FAILED)


def _write_plugin(plugin: Plugin) -> None:
    heading = f"{plugin.distribution} {plugin.version}"
    origin = f"  {plugin.entry_point} = {plugin.module}"
    terminal.write(Text.assemble((terminal.harmless(heading), "bold"), (terminal.harmless(origin), "dim")))
    if plugin.error is not None:
        cannot = f"cannot be used: {plugin.error}"
        terminal.write(Text.assemble("  ", (terminal.harmless(cannot), "red")))
    elif not plugin.declarations:
        terminal.write("  declares nothing")
    for declared in plugin.declarations:
        terminal.write(terminal.harmless(f"  {declared.hook}  {declared.name} -> {declared.target}"))


def _described(found: Registry) -> dict[str, object]:
    return {
        "plugins": [
            {
                "distribution": plugin.distribution,
                "version": plugin.version,
                "entry_point": plugin.entry_point,
                "module": plugin.module,
                "error": plugin.error,
                "declarations": [
                    {"hook": declared.hook, "name": declared.name, "object": declared.target}
                    for declared in plugin.declarations
                ],
            }
            for plugin in found.plugins
        ],
        "conflicts": list(found.conflicts),
    }
