"""The rows of gpu.py: results/gpu.csv, which a later run continues, and the table results/gpu.md."""

import csv
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.runs import markdown
from hf_bidir.common.files import replacing


class Measured(NamedTuple):
    """One measurement; without a baseline, `against` is empty."""

    measured: str
    against: str
    own: float
    baseline: float | None
    unit: str

    @property
    def ratio(self) -> float | None:
        return self.own / self.baseline if self.baseline else None

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.measured}: {self.own:.4g} {self.unit}"
        numbers = f"{self.own:.4g} / {self.baseline:.4g} {self.unit} = {self.ratio:.3f}"
        return f"{self.measured} / {self.against}: {numbers}"


class Rows:
    """The rows in a folder, of all GPUs and versions; new ones are of this GPU and these versions.

    Args:
        folder: of gpu.csv and gpu.md.
        device: "cuda" or "cpu".
        sections: in the order of the table.
        notes: above the table.
    """

    HEADER = ("section", "case", *Measured._fields[:2], "ratio", *Measured._fields[2:], "card", "versions")

    def __init__(self, folder: Path, device: str, sections: Iterable[str], notes: str):
        self.csv, self.table, self.sections = folder / "gpu.csv", folder / "gpu.md", list(sections)
        card = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {platform.machine()}"
        self.text = f"# Signed attention on a GPU\n\n{notes}\n\n"
        self.machine = {"card": card, "versions": _versions()}
        self.rows: list[dict[str, str]] = []
        if self.csv.exists():
            with self.csv.open(encoding="utf-8", newline="") as file:
                self.rows = list(csv.DictReader(file))

    def has(self, section: str, case: str) -> bool:
        """Whether the case was measured on this GPU with these versions."""
        return any(self._is(row, section, case) for row in self.rows)

    def save(self, section: str, case: str, found: Iterable[Measured]) -> None:
        """Write the files with these rows in place of earlier ones of the same case."""
        self.rows = [row for row in self.rows if not self._is(row, section, case)]
        for one in found:
            formats = {"ratio": ".3f", "own": ".4g", "baseline": ".4g"}
            numbers = {name: getattr(one, name) for name in formats}
            cells = {name: "" if x is None else format(x, formats[name]) for name, x in numbers.items()}
            self.rows.append({"section": section, "case": case, **one._asdict(), **cells, **self.machine})
        self.rows.sort(key=lambda row: self.sections.index(row["section"]))
        with replacing(self.csv) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.HEADER)
            writer.writeheader()
            writer.writerows(self.rows)
        with replacing(self.table) as temporary:
            temporary.write_text(f"{self.text}{self._tables()}\n", encoding="utf-8")

    def _is(self, row: dict[str, str], section: str, case: str) -> bool:
        return row.items() >= {"section": section, "case": case, **self.machine}.items()

    def _tables(self) -> str:
        """A table for each GPU and versions."""
        shown = self.HEADER[:-2]
        machines = dict.fromkeys((row["card"], row["versions"]) for row in self.rows)
        return "\n\n".join(
            f"## {card}; {versions}\n\n"
            + markdown(shown, [[row[name] for name in shown] for row in self.rows
                               if (row["card"], row["versions"]) == (card, versions)])
            for card, versions in machines
        )  # fmt: skip


def _versions() -> str:
    return ", ".join(f"{name} {_version(name)}" for name in ("torch", "triton", "transformers"))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
