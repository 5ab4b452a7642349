"""The guide to matching: what it prints is what happens."""

from pathlib import Path

import pytest
from printed_commands import run_page

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "matching.md"


@pytest.mark.slow
def test_the_guide_to_matching_runs_as_printed(tmp_path):
    assert run_page(GUIDE, tmp_path) == GUIDE.read_text(encoding="utf-8").count("\n$ ")
