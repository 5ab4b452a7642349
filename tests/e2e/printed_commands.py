"""Runs what a page of the documentation prints: files that it shows, and commands with their output."""

import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(python title=\"(?P<file>[\w.-]+)\"|console)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def run_page(page, folder, **variables):
    """Write the files and run the commands of a page in the order that they stand in; return how many commands ran.

    A line `…` of a printed output stands for any number of lines, `…` inside of one for any text.
    """
    environment = {
        **os.environ,
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(folder / "configuration"),
        **variables,
    }
    environment.pop("ZKDV_IDENTITY", None)
    count = 0
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["file"]:
            (folder / block["file"]).write_text(block["text"], encoding="utf-8")
            continue
        for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block["text"], re.MULTILINE):
            done = subprocess.run(
                ["bash", "-uc", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert re.fullmatch(pattern_of(printed), done.stdout), f"{command}\n{done.stdout}{done.stderr}"
            if "exit code" not in printed:
                assert done.returncode == 0, f"{command}\n{done.stderr}"
            count += 1
    return count


def pattern_of(printed):
    lines = ["(?:.*\n)*" if line == "…\n" else re.escape(line).replace("…", ".*") for line in printed.splitlines(True)]
    return "".join(lines)
