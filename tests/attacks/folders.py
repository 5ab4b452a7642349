"""Cheats beside the transcript: the files of sealed programs."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from victims import Attacked, Runs, attack


def program(folder: Path) -> Path:
    """One of the programs, not of their texts, which stand beside them."""
    return min(path for path in (folder / "programs").iterdir() if path.suffix != ".txt")


@attack("program-missing")
def programs_that_are_not_there(runs: Runs) -> Iterable[Attacked]:
    def without(folder):
        program(folder).unlink()

    def renamed(folder):
        program(folder).rename(program(folder).with_suffix(".other"))

    def without_folder(folder):
        shutil.rmtree(folder / "programs")

    def unreadable(folder):
        path = program(folder)
        path.unlink()
        path.mkdir()

    def waiting(folder):
        path = program(folder)
        path.unlink()
        os.mkfifo(path)

    for run in runs.values():
        for spoil in (without, renamed, without_folder, unreadable, waiting):
            yield Attacked(run, run.data, {"allow_edits": True}, spoil)


@attack("program-missing")
def programs_that_are_links(runs: Runs) -> Iterable[Attacked]:
    """To the very same bytes, which could be others tomorrow."""

    def linked(folder):
        path = program(folder)
        other = folder / "elsewhere"
        path.rename(other)
        path.symlink_to(other)

    def linked_folder(folder):
        other = folder / "elsewhere"
        (folder / "programs").rename(other)
        (folder / "programs").symlink_to(other)

    for spoil in (linked, linked_folder):
        yield Attacked(runs["checked"], runs["checked"].data, {}, spoil)


@attack("program-digest")
def other_programs(runs: Runs) -> Iterable[Attacked]:
    def flipped(place):
        def spoil(folder):
            path = program(folder)
            data = bytearray(path.read_bytes())
            data[place] ^= 1
            path.write_bytes(data)

        return spoil

    def longer(folder):
        with program(folder).open("ab") as file:
            file.write(b"\0")

    def emptied(folder):
        program(folder).write_bytes(b"")

    for spoil in (flipped(0), flipped(-1), flipped(1000), longer, emptied):
        yield Attacked(runs["checked"], runs["checked"].data, {}, spoil)
