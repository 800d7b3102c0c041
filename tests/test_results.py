"""From the files of planted cells to contrasts and verdicts: what was put in comes out, and nothing else."""

import shutil

import numpy as np
import pandas as pd
import pytest

from rapo_lib import runs
from rapo_lib.grid import figures, results
from rapo_lib.grid.arms import ARMS, FULL, PRIMARY, WARM
from rapo_lib.grid.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, decide, shipped_claims
from rapo_lib.grid.publish import publish
from rapo_lib.grid.results import (
    at_equal_distance,
    contrast,
    contrasts_with,
    counts,
    estimates,
    load_cells,
    measures,
    over_optimisation,
    power,
    rate_by_turn,
    readme_table,
    same_history,
    success_by_threshold,
    summary,
    trajectory_bands,
    way,
    write_results,
)

CLAIMS = shipped_claims()
PEOPLE = [f"p{i:02d}" for i in range(12)]
GAINS = {WARM: 10.0, FULL: 20.0, "without_reactions": 12.0, "without_distillation": 19.8, "grpo_rubric": 11.0}
SUGGESTS = {"without_distillation": 0.9}  # else 0.2


def write_cell(folder, arm, seed, gain, noise=1.0, suggests=0.2, kl=0.2, seekers=CLAIMS.seekers):
    """One cell whose people gain `gain` points, give or take."""
    rng = np.random.default_rng([seed, len(arm)])
    tables = {name: [] for name in ("trajectories", "outcomes", "replies", "wins", "way", "responses", "samples")}
    for seeker in seekers:
        for i, person in enumerate(PEOPLE):
            g = gain + i + noise * rng.normal()
            who = {"seeker": seeker, "profile": person}
            felt = [35.0, 35 + g / 2, 35 + g]
            tables["trajectories"] += [{**who, "turn": t, "emotion": e} for t, e in enumerate(felt)]
            tables["outcomes"].append(
                {**who, "start": 35, "end": 35 + g, "gained": g, "success": 35 + g >= 70, "turns": 2}
            )
            for turn in (1, 2):
                act = {"suggestion": rng.random() < suggests, "premature": turn == 1 and rng.random() < suggests}
                rest = dict.fromkeys(("question", "open_question", "reflection", "stock", "repetition"), False)
                text = {"reply": "NA" if turn == 1 else "a b", "fault": "", "words": 2, "fluency": -3.0}
                tables["replies"].append({**who, "turn": turn, **act, **rest, **text})
            win = {"win": 0.9 if "reactions" in arm else 0.6, "true_win": 0.6}
            tables["wins"].append({**who, **win})
            tables["way"].append({**who, "win": 0.55, "true_win": 0.7, "share": 0.5, "kl": kl / 2})
    for i, person in enumerate(PEOPLE):
        tables["responses"] += [{"contrast": f"c{i}", "draw": d, "responsiveness": int(arm == FULL)} for d in (0, 1)]
        tables["samples"].append(
            {"profile": person, "said": f"Said {i}.", "start": "None", "reply": f"{arm} {i}", "kl": kl}
        )
    if arm == WARM:
        del tables["wins"], tables["way"]
    place = folder / "cells" / arm / f"seed-{seed}"
    for name, rows in tables.items():
        runs.write_csv(place / f"{name}.csv", rows)
    record = {"arm": arm, "seed": seed, "settings": {"steps": 1}, "evaluated_on": "heldout", "seekers": list(seekers),
              "claims": CLAIMS.hash, "library": "x", "inputs": "y", "seconds": {"training": 1.0, "measuring": 2.0},
              "versions": {}, "device": "cpu"}  # fmt: skip
    runs.write_json(place / "cell.json", record)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The start and the primary arms, three seeds each; one exploratory arm with one seed."""
    place = tmp_path_factory.mktemp("grid")
    for seed in range(3):
        for arm in (WARM, *PRIMARY):
            write_cell(place, arm, seed, GAINS[arm], suggests=SUGGESTS.get(arm, 0.2), kl=0.4 if arm == FULL else 0.2)
    write_cell(place, "dpo", 0, 15.0)
    return place


@pytest.fixture(scope="module")
def cells(folder):
    return load_cells(folder)


@pytest.fixture(scope="module")
def long(cells):
    return measures(cells)


def test_measures_are_the_files(folder, long):
    table = pd.read_csv(folder / "cells" / FULL / "seed-1" / "outcomes.csv")
    found = long[(long.arm == FULL) & (long.seed == 1) & (long.metric == "gained") & (long.seeker == "evaluator")]
    expected = table[table.seeker == "evaluator"].set_index("profile").gained
    pd.testing.assert_series_equal(found.set_index("unit").value, expected, check_names=False)
    gap = long[(long.metric == "self_deception") & (long.arm == "without_reactions")].value
    assert gap.to_numpy() == pytest.approx(0.3)
    assert set(long[long.metric == "responsiveness"].unit) == {f"c{i}" for i in range(12)}
    assert set(long[long.metric == "distinct_2"].unit) == {"all"}
    # "NA" is a reply of one word and no missing value: one pair of words, "a b", in each of 12 dialogues
    assert long[long.metric == "distinct_2"].value.to_numpy() == pytest.approx(1 / 12)


def test_a_contrast_is_paired_and_carries_both_counts(long):
    i = contrast(long, "gained", FULL, "without_reactions", "appraisal")
    assert (i.n, i.seeds) == (12, 3) and i.low < 8 < i.high and i.high - i.low < 4  # people differ by 11, pairs do not
    assert contrast(long, "gained", FULL, "verbal_only", "appraisal") is None
    assert contrast(long, "self_deception", FULL, WARM, "appraisal") is None  # the start is not compared with itself


def test_planted_effects_earn_their_verdicts(long):
    found = {d.id: d for d in decide(CLAIMS, estimates(long, CLAIMS))}
    assert found["reactions_relieve"].verdict == SUPPORTED  # 8 points
    assert found["beats_rubric_grpo"].verdict == SUPPORTED  # 9 points
    assert found["distillation_relieves"].verdict == NOT_SUPPORTED  # 0.2 points: 3 is excluded
    assert found["training_helps"].verdict == SUPPORTED
    assert found["without_reactions_deceives_itself"].verdict == SUPPORTED  # 0.3 more
    assert found["without_distillation_suggests"].verdict == SUPPORTED  # 0.7 more
    assert found["adapts_to_the_seeker"].verdict == SUPPORTED
    assert found["beats_preference_pairs"].verdict == INCONCLUSIVE  # a point
    assert found["selection_helps"].reason == "not run"


def test_exploratory_arms_are_points(long):
    table = contrasts_with(long, metrics=("gained",))
    assert set(table.arm) == {WARM, "without_reactions", "without_distillation", "grpo_rubric", "dpo"}
    points = table[table.arm == "dpo"]
    assert points[["low", "high"]].isna().all().all() and (points.seeds == 1).all()
    assert points["mean"].to_numpy() == pytest.approx(-5, abs=1)
    assert table[table.tier == "primary"].low.notna().all()


def test_captions_say_how_many(long):
    table = contrasts_with(long, metrics=("gained",))
    assert counts(table) == "n = 12 units x 1 to 3 seeds"
    assert counts(table[table.arm == "dpo"]) == "n = 12 units x 1 seed"


def test_the_way_begins_at_the_start_and_ends_at_the_trained_policy(cells):
    stops = way(cells)
    one = stops[(stops.arm == FULL) & (stops.seed == 0) & (stops.seeker == "appraisal")]
    assert one.share.tolist() == [0.0, 0.5, 1.0] and one.kl.tolist() == pytest.approx([0.0, 0.2, 0.4])
    assert one.win.tolist() == pytest.approx([0.5, 0.55, 0.6]) and one.true_win.tolist() == pytest.approx(
        [0.5, 0.7, 0.6]
    )
    curves = over_optimisation(stops)
    assert set(curves.who) == {"own judge", "truth, appraisal seeker", "truth, evaluator seeker"}
    assert len(curves) == 5 * 3 * 3  # trained arms, who, stops


def test_arms_are_compared_where_the_least_moved_one_is(cells):
    table = at_equal_distance(way(cells))
    assert set(table.kl.round(3)) == {0.2}
    full, other = (table[table.arm == name].true_win.to_numpy() for name in (FULL, "grpo_rubric"))
    assert full == pytest.approx(0.7) and other == pytest.approx(0.6)  # half of full's way, all of the other's


def test_tables_for_figures(cells, long):
    bands = trajectory_bands(cells, "appraisal")
    last = bands[(bands.arm == FULL) & (bands.turn == 2)].iloc[0]
    assert last["mean"] == pytest.approx(35 + 20 + 5.5, abs=1) and (last.n, last.seeds) == (12, 3)
    rates = rate_by_turn(cells, "premature", "appraisal")
    assert (rates[rates.turn == 2]["mean"] == 0).all()
    found = success_by_threshold(cells).set_index(["seeker", "arm", "threshold"]).success
    places = [place for place in cells if place.parent.name == FULL]
    ends = pd.concat([pd.read_csv(place / "outcomes.csv") for place in places]).query("seeker == 'appraisal'").end
    assert found["appraisal", FULL, 60.0] == pytest.approx((ends >= 60).mean())
    means = summary(long).set_index(["seeker", "arm"])
    assert means.loc[("appraisal", "dpo"), "seeds"] == 1 and means.loc[("appraisal", FULL), "kl"] == pytest.approx(0.4)


def test_the_same_history_side_by_side(cells):
    table = same_history(cells, [FULL, "dpo", "verbal_only"], count=4)
    assert list(table.columns) == ["profile", "said", "start", FULL, "dpo"] and len(table) == 4
    row = table.iloc[1]
    number = row.said.removeprefix("Said ").removesuffix(".")
    assert (row[FULL], row.dpo, row.start) == (f"full {number}", f"dpo {number}", "None")  # the word, not a gap


def test_power_from_a_pilot(long):
    table = power(long, CLAIMS, (3, 6), (16, 40))
    assert len(table) == 3 * 4 and (table.detectable > 0).all()
    of_one = table[table.claim == "reactions_relieve"]
    assert of_one.detectable.iloc[0] == of_one.detectable.max()  # fewest seeds and people


def test_everything_is_written_and_one_seed_decides_nothing(tmp_path):
    for arm in (WARM, FULL):
        write_cell(tmp_path, arm, 0, GAINS[arm])
    decisions = {d.id: d for d in write_results(tmp_path)}
    assert decisions["training_helps"].reason == "one seed has no interval"
    names = {p.name for p in tmp_path.glob("*.csv")}
    assert names == {f"{n}.csv" for n in ("results", *results.TABLES)}
    assert all(len(pd.read_csv(tmp_path / name).columns) > 3 for name in names)
    assert runs.read_json(tmp_path / "run.json")["arms"] == {name: ARMS[name].label for name in (WARM, FULL)}


def test_the_readme_table_says_what_the_files_say(folder):
    write_results(folder)
    start, full, *rest = readme_table(folder).splitlines()[2:]
    assert full.startswith("| full RAPO | ") and full.endswith("| 3 |") and "[" not in full
    assert start.startswith("| warm start | ") and start.count(" [") == len(CLAIMS.seekers)
    summary_ = pd.read_csv(folder / "summary.csv").set_index(["arm", "seeker"])
    assert full.split(" | ")[1] == f"{summary_.gained[FULL, CLAIMS.seekers[0]]:.1f}"
    assert len(rest) == len(PRIMARY) - 1


def test_every_figure_is_drawn_from_the_tables_alone(folder, tmp_path):
    write_results(folder)
    for name in results.TABLES:
        shutil.copy(folder / f"{name}.csv", tmp_path)
    made = figures.write_figures(tmp_path)
    assert {path.stem for path in made} >= {"trajectories", "differences_gained", "suggestions", "successes"}
    for path in made:
        assert path.stat().st_size > 5_000 and all(path.with_suffix(end).is_file() for end in (".svg", ".csv", ".json"))
    (tmp_path / "rates.csv").unlink()
    with pytest.raises(runs.RapoError, match="rates.csv is missing"):
        figures.read_tables(tmp_path)


def test_what_is_published_can_be_drawn_and_gone_on_from(folder, tmp_path):
    (folder / "inputs").mkdir(exist_ok=True)
    (folder / "inputs" / "selected.jsonl").write_text("{}\n", encoding="utf-8")
    target = publish(folder, publish(folder, tmp_path / "published"))  # an older one is replaced
    assert len(load_cells(target)) == len(load_cells(folder)) and (target / "inputs/selected.jsonl").is_file()
    assert readme_table(target) == readme_table(folder)
    assert "git" not in runs.read_json(load_cells(target)[0] / "cell.json")
    assert not any(target.rglob("*.safetensors")) and (target / "figures/differences_gained.svg").is_file()


def test_an_empty_grid_is_a_clear_error(tmp_path):
    with pytest.raises(runs.RapoError, match="no finished cell"):
        results.load_cells(tmp_path)
