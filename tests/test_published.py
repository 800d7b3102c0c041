"""What is published is whole, was made under the claims that ship, and is what the README says."""

import json
import re

import pandas as pd
import pytest

from rapo_lib import runs
from rapo_lib.grid import figures, results
from rapo_lib.grid.claims import shipped_claims

FOLDER = runs.published_dir("ablation")
README = (runs.ROOT / "README.md").read_text("utf-8")


def test_the_readme_shows_the_published_table_and_figure():
    begin, end = "<!-- published/ablation -->\n", "\n<!-- end -->"
    shown = README[README.index(begin) + len(begin) : README.index(end)]
    assert shown == results.readme_table(FOLDER)
    assert "](outputs/published/ablation/figures/differences_gained.png)" in README


def test_its_tables_are_those_of_its_cells():
    long = results.measures(results.load_cells(FOLDER))
    kept = pd.read_csv(FOLDER / "summary.csv")
    again = results.summary(long)
    pd.testing.assert_frame_equal(kept, again, check_dtype=False, rtol=1e-9)


def test_it_was_made_under_the_claims_that_ship():
    made = runs.read_json(FOLDER / "run.json")
    assert made["claims"] == shipped_claims().hash and made["evaluated_on"] == "heldout"
    assert len(made["cells"]) == len(list(FOLDER.glob("cells/*/*/cell.json")))


def test_every_figure_is_there_with_its_data():
    assert {d.name for d in figures.drawn(figures.read_tables(FOLDER))} == {
        path.stem for path in (FOLDER / "figures").glob("*.png")
    }


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.json")), ids=lambda p: p.parent.name + "/" + p.name)
def test_no_path_of_a_machine_is_in_it(path):
    text = path.read_text("utf-8")
    assert json.loads(text) and not re.search(r"/(home|root|tmp|Users)/|[A-Z]:\\\\", text)
