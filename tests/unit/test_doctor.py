"""What the doctor says of what is not installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from dedup.cli import doctor


def test_it_says_what_amqp_1_0_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra to install, and what has to be there to compile it; with everything installed it says nothing of it."""
    find = importlib.util.find_spec

    def without(*missing: str) -> dict[str, str]:
        def look(name: str, *rest: Any) -> Any:
            return None if name in missing else find("json", *rest)

        monkeypatch.setattr(importlib.util, "find_spec", look)
        return {finding.about: finding.text for finding in doctor._extras()}

    assert without() == {}
    said = without("proton")
    assert list(said) == ["extra amqp10"]
    assert "pip install 'dedup[amqp10]'" in said["extra amqp10"]
    assert "gcc python3-dev" in said["extra amqp10"]
