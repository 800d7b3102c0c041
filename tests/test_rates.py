"""Which learning rate is chosen, from whom, and that a grid keeps to it."""

import pandas as pd
import pytest
from test_results import write_cell

from rapo_lib import runs
from rapo_lib.grid.arms import FULL, WARM
from rapo_lib.grid.rates import SEED, best_rates, gains, parse_rates, search_plans, with_rates
from rapo_lib.grid.run import Plan
from rapo_lib.runs import RapoError


def plan(tmp_path, **overrides):
    return Plan(
        folder=tmp_path / "ablate", profile="smoke", arms=(WARM, FULL, "dpo"), seeds=(0, 1), overrides=overrides
    )


def test_rates():
    assert parse_rates("1e-3,1e-4,1e-4") == (1e-4, 1e-3)
    for bad in ("", "a", "0", "-1e-3", "1e-3,2"):
        with pytest.raises(RapoError, match="as learning rates"):
            parse_rates(bad)


def test_the_search_sees_dev_people_only_and_a_seed_of_its_own(tmp_path):
    plans = search_plans(plan(tmp_path), (1e-4, 1e-3), steps=3)
    assert [p.settings_of(FULL).learning_rate for p in plans.values()] == [1e-4, 1e-3]
    for one in plans.values():
        assert one.split == "dev" and one.seeds == (SEED,) and one.arms == (FULL, "dpo")
        assert one.settings_of("dpo").steps == 3
    assert len({p.folder for p in plans.values()}) == 2
    assert search_plans(plan(tmp_path, steps=5), (1e-4,), None)[1e-4].settings_of(FULL).steps == 5


def test_the_best_rate_by_hand():
    rows = [(FULL, 1e-4, 3.0), (FULL, 1e-3, 5.0), ("dpo", 1e-4, 2.0), ("dpo", 1e-3, 2.0), (WARM, 1e-4, 9.0)]
    assert best_rates(pd.DataFrame(rows, columns=["arm", "rate", "gained"])) == {FULL: 1e-3, "dpo": 1e-4}


def test_gains_are_those_the_training_seeker_sees(tmp_path):
    for rate, gain in ((1e-4, 5.0), (1e-3, 9.0)):
        write_cell(tmp_path / f"{rate:g}", FULL, SEED, gain, noise=0.0)
        place = write_cell(tmp_path / f"{rate:g}", WARM, SEED, 1.0, noise=0.0)
        ends = pd.read_csv(place / "outcomes.csv")
        runs.write_csv(place / "outcomes.csv", ends.assign(gained=ends.gained.where(ends.seeker == "appraisal", 99.0)))
    table = gains({1e-4: tmp_path / "0.0001", 1e-3: tmp_path / "0.001"})
    assert table[table.arm == FULL].gained.tolist() == pytest.approx([10.5, 14.5])  # plus 5.5, the mean over people
    assert table[table.arm == WARM].gained.tolist() == pytest.approx([6.5, 6.5])


def test_a_grid_keeps_to_what_was_chosen_unless_told_otherwise(tmp_path):
    assert with_rates(plan(tmp_path)) == plan(tmp_path)
    runs.write_json(tmp_path / "ablate" / "rates.json", {FULL: 1e-3, "verbal_only": 1e-5})
    chosen = with_rates(plan(tmp_path))
    assert chosen.settings_of(FULL).learning_rate == 1e-3
    assert chosen.settings_of("dpo").learning_rate == plan(tmp_path).settings_of("dpo").learning_rate
    told = with_rates(plan(tmp_path, **{"full.learning_rate": 2e-3}))
    assert told.settings_of(FULL).learning_rate == 2e-3
