"""Each cheat gives its own code and no other, in whatever place and on whichever run it is made."""

import re
from pathlib import Path

import pytest
from attacks import ATTACKS

from zkdv import _native

PAGE = Path(__file__).parents[2] / "docs" / "protocol" / "verification.md"


def test_every_code_has_an_attack():
    codes = _native.violation_codes()
    table = PAGE.read_text().partition("## Codes")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == codes
    attacked = {attack.code for attack in ATTACKS}
    assert sorted(set(codes) - attacked) == []
    assert sorted(attacked - set(codes)) == []


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_an_attack_is_found_by_its_code_alone(attack, runs, folder):
    places = 0
    for places, attacked in enumerate(attack(runs), 1):
        report = attacked.verify(folder)
        found = {violation.code for violation in report.violations}
        assert found == {attack.code}, (places, report.violations)
        assert (report.verdict, report.exit_code) == ("failed", 1)
    assert places > 0
