"""No test depends on how fast the machine is; names of tests are short."""

import re
from pathlib import Path

import pytest
from hypothesis import settings

REPO = Path(__file__).parents[2]
FORBIDDEN = {
    "a limit of its own for a test": r"mark\.timeout\(",
    "a deadline for an example of Hypothesis": r"deadline=[^N]",
    "an upper bound on what a clock measured": r"(monotonic|perf_counter|time)\(\) - \w+ <",
    "a name of 80 characters or more": r"def test_\w{75}",
}


@pytest.mark.parametrize("profile", ["default", "ci"])
def test_no_profile_of_hypothesis_has_a_deadline(profile):
    assert settings.get_profile(profile).deadline is None
    assert settings.default.deadline is None


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_test_has(what):
    own = Path(__file__)
    tests = [f for f in REPO.glob("**/*_test.py") if ".venv" not in f.parts and f != own]
    assert len(tests) > 200
    found = [
        f"{file.relative_to(REPO)}: {line.strip()}"
        for file in tests
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(FORBIDDEN[what], line)
    ]
    assert found == []
