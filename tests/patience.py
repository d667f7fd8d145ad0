"""How long tests wait for what must happen."""

from typing import Final

PATIENCE_S: Final = 240.0
"""A bound for failures on a machine that does much else, in seconds; never a figure. Less than
what pytest gives a test, so that it is told what has not happened."""
