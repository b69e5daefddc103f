"""Examples of the README and of the documentation, run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_first_example_loads_a_committed_checkpoint_offline_and_reads_a_digit(tmp_path):
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", example + "\nassert (coefficients < 0).any()"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_the_worked_example_of_attention_pooling_prints_what_it_says():
    page = (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8")
    *others, example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, timeout=300)
    said = re.findall(r"^print.*  # ([\w.\[\]()]+)", example, re.MULTILINE)
    assert (len(said), done.stdout.splitlines()) == (4, [line.rstrip(":") for line in said]), done.stderr
    for other in others:
        subprocess.run([sys.executable, "-c", other], cwd=ROOT, check=True, timeout=300)


def test_every_picture_of_the_documentation_is_there():
    for page in (ROOT / "docs").glob("*.md"):
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / picture).is_file(), f"{page.name}: {picture}"
