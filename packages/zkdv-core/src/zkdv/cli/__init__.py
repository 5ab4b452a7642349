"""The command `zkdv`.

`main` runs a command line and turns what happens into an exit code; the commands are in modules of their own, and what
they print goes through `zkdv.cli.terminal`.
"""

from zkdv.cli.application import main

__all__ = ["main"]
