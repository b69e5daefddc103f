"""Makes kernels/signed-attention loadable by the Hub's `kernels` library, from hf_bidir/modeling and hf_bidir/kernels.

    python kernels/build.py        # then: kernels.get_local_kernel(Path("kernels/signed-attention"))

Copies the files of SOURCES and those that they import beside the kernel's own __init__.py, where `kernel-builder`
expects sources, and into build/torch-cuda and build/torch-cpu with their metadata: Triton and torch code needs no
compiler. The two rooms become one flat folder, so imports between them are rewritten. tilings.json, which the kernel
reads, is copied too: entries of another GPU can be added to the repository. Neither the copies nor build/ are in git.
"""

import base64
import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
ROOMS = ROOT / "hf_bidir/modeling", ROOT / "hf_bidir/kernels"
KERNEL = ROOT / "kernels/signed-attention"
SOURCES = ("attention.py", "fused_path.py")
TILINGS = "tilings.json"
OF_ROOM = re.compile(r"from hf_bidir\.(?:modeling|kernels)\.(\w+) import")


def main() -> None:
    print(f"Built {build(KERNEL)} for: {', '.join(path.name for path in sorted((KERNEL / 'build').iterdir()))}")


def build(kernel: Path) -> Path:
    """Copy the sources and write every variant of a kernel folder; returns the folder."""
    settings = tomllib.loads((kernel / "build.toml").read_text(encoding="utf-8"))
    general = settings["general"]
    module = general["name"].replace("-", "_")
    sources = kernel / "torch-ext" / module
    for copied in set(sources.glob("*.py")) - {sources / "__init__.py"}:  # some may have another name since
        copied.unlink()
    for name, text in flat_sources().items():
        (sources / name).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "hf_bidir/kernels" / TILINGS, sources / TILINGS)
    with tempfile.TemporaryDirectory(dir=kernel, prefix=".build-") as scratch:
        for backend in general["backends"]:
            write_variant(sources, Path(scratch, "build", f"torch-{backend}"), settings, backend)
        if (kernel / "build").exists():
            (kernel / "build").rename(Path(scratch, "replaced"))
        Path(scratch, "build").rename(kernel / "build")
    return kernel


def flat_sources() -> dict[str, str]:
    """The text of each file by name, with relative imports of the others."""
    files = {path.name: path for room in ROOMS for path in room.glob("*.py")}
    texts: dict[str, str] = {}
    missing = list(SOURCES)
    while missing:
        name = missing.pop()
        texts[name] = OF_ROOM.sub(r"from .\1 import", files[name].read_text(encoding="utf-8"))
        imported = re.findall(r"^\s*from \.(\w+) import", texts[name], re.MULTILINE)
        missing += [f"{module}.py" for module in imported if f"{module}.py" not in texts]
    return texts


def write_variant(sources: Path, folder: Path, settings: dict, backend: str) -> None:
    """The files of one variant, with the metadata that the kernels library reads before it imports them."""
    shutil.copytree(sources, folder, ignore=shutil.ignore_patterns("__pycache__"))
    general, archs = settings["general"], settings["torch-noarch"]["cuda_capabilities"]
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    digests = {name: hashlib.sha256(content) for name, content in files.items()}
    whole = hashlib.sha256("".join(digest.hexdigest() for digest in digests.values()).encode()).hexdigest()
    metadata = {
        "name": general["name"],
        # unique, so that several versions can be loaded by one process
        "id": f"_{general['name'].replace('-', '_')}_{backend}_{whole[:7]}",
        "version": general["version"],
        "license": general["license"],
        "source": general["source"],
        "python-depends": [],
        "backend": {"type": backend} | ({"archs": archs} if backend == "cuda" else {}),
        "digest": {
            "algorithm": "sha256",
            "files": {name: base64.b64encode(digest.digest()).decode() for name, digest in digests.items()},
        },
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
