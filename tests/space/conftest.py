"""The files of a Space import each other as neighbours, as on the Hub."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "space"))
