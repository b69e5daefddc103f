"""How long do `import hf_bidir` and `hf-bidir --help` take, compared with `import transformers`? CPU time, interleaved.

Each command runs in a fresh process; user and system time count, not wall time.
`python -X importtime -c "import hf_bidir"` lists the time per module.

    python benchmarks/import_time.py
"""

import resource
import subprocess
import sys
from statistics import median

from benchmarks.measure import options_of, write_table

HELP = "import sys; sys.argv[1:] = {}; from hf_bidir.cli import app; app(prog_name='hf-bidir')"
COMMANDS = {
    "import transformers": [sys.executable, "-c", "import transformers"],
    "import hf_bidir": [sys.executable, "-c", "import hf_bidir"],
    "import hf_bidir, transformers": [sys.executable, "-c", "import hf_bidir, transformers"],
    "hf-bidir --help": [sys.executable, "-c", HELP.format(["--help"])],
    "hf-bidir explain --help": [sys.executable, "-c", HELP.format(["explain", "--help"])],
}


def main() -> None:
    options = options_of(__doc__, "import_time", repeats=9)
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.repeats):
        for name, command in COMMANDS.items():
            seconds[name].append(cpu_seconds(command))
    baseline = median(seconds["import transformers"])
    rows = [[f"`{name}`", f"{median(found) / baseline:.2f}", f"{median(found):.2f}"] for name, found in seconds.items()]
    for row in rows:
        print(row)
    notes = f"Medians of {options.repeats} interleaved runs, each in a fresh process."
    header = ["command", "ratio to import transformers", "CPU seconds"]
    write_table(options.output, "Import time", notes, header, rows, "cpu")


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
