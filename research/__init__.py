"""The laboratory: experiments with signed attention that use hf_bidir and are not part of it."""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (before torch, as in the commands of the product)

from pathlib import Path
from typing import Any

from hf_bidir.common.files import replacing


def save_figure(figure: Any, path: str | Path, dpi: int = 100, **options: Any) -> None:
    """Save a Matplotlib figure; the suffix of `path` sets the format."""
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, dpi=dpi, **options)
