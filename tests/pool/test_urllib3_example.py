"""The example prints the figures that its text promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "requests_pool.py"


@pytest.mark.slow
def test_the_example_prints_the_mistake_and_the_cure() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=80, check=True)
    mistake, _, cure = done.stdout.partition("HTTPAdapter(pool_maxsize=64)")
    assert "batch 2: 54 made, 10 reused, 54 thrown away" in mistake
    assert "advised pool_maxsize: 64" in mistake
    assert "batch 2: 0 made, 64 reused, 0 thrown away" in cure
    assert "advised pool_maxsize: none" in cure
