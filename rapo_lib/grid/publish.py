"""The small part of a finished grid that others should see and can go on from: cells, inputs, tables and figures.

Adapters and logs stay behind, and so does the commit of each cell: it may be of a checkout that nobody else has. The
library's hash says which code it was.
"""

import shutil
from pathlib import Path

from rapo_lib import runs
from rapo_lib.grid import figures
from rapo_lib.grid.results import load_cells, write_results


def publish(folder: Path, target: Path) -> Path:
    """Make `target` from the grid in `folder`, whole or not at all; an older one there is replaced."""
    cells = load_cells(folder)
    shutil.rmtree(target, ignore_errors=True)
    with runs.atomic_folder(target) as building:
        shutil.copytree(folder / "inputs", building / "inputs")
        for place in cells:
            copied = building / place.relative_to(folder)
            shutil.copytree(place, copied)
            record = runs.read_json(copied / "cell.json")
            runs.write_json(copied / "cell.json", {key: value for key, value in record.items() if key != "git"})
        write_results(building)
        figures.write_figures(building)
        (building / "results.csv").unlink()  # every measure once more: the cells have them
    return target
