"""The command `zkdv`.

`main` runs a command line and returns its exit code. Each command is a module of its own (`_verify`, `_inspect`,
`_key`, `_plugins`); what they print goes through `_terminal`, and what may happen to them ends in `_application`.
"""

from zkdv.cli._application import main
from zkdv.cli._exit_codes import ExitCode

__all__ = ["ExitCode", "main"]
