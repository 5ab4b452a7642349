"""The guide to membership: what it prints is what happens."""

from pathlib import Path

import pytest
from printed_commands import run_page

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "membership.md"


@pytest.mark.slow
def test_the_guide_to_membership_runs_as_printed(tmp_path):
    assert run_page(GUIDE, tmp_path) == GUIDE.read_text(encoding="utf-8").count("\n$ ")
