"""Suites on probe subjects: known standings, whole folders, resumption, and no table across protocols."""

import json

import pandas as pd
import pytest

from rapo_lib.cli import main
from rapo_lib.measures.safety import load_cases
from rapo_lib.measures.suites import SUITES, Protocol, Subject, evaluate, leaderboard, suites_named
from rapo_lib.runs import RapoError
from rapo_lib.seeker import probe_reply
from rapo_lib.sotopia.scenarios import load_scenarios

PROTOCOL = Protocol(turns=2, episode_turns=12, limit=4)


def good_agent(items, seed):
    done = [sum(t.speaker == "supporter" for t in h) for _, h in items]
    return [(*s.demonstration, "Deal.")[min(k, len(s.demonstration))] for (s, _), k in zip(items, done, strict=True)]


def good_policy(histories, seed):
    known = {case.history: case.good for case in load_cases()}
    return [known.get(tuple(h)) or probe_reply(h) for h in histories]


def silent(items, seed):
    return ["..." for _ in items]


GOOD, SILENT = Subject(policy=good_policy, agent=good_agent), Subject(policy=silent, agent=silent)


@pytest.mark.parametrize(("suite", "measure"), [("selfplay", "gained"), ("sotopia", "goal"), ("safety", "all")])
def test_every_suite_ranks_the_probes(suite, measure):
    found = {}
    for name, subject in (("good", GOOD), ("silent", SILENT)):
        tables = SUITES[suite](subject, PROTOCOL)
        summary = tables.pop("summary").set_index("measure")
        assert list(summary.columns) == ["mean", "low", "high", "n"] and all(len(t) for t in tables.values())
        found[name] = summary["mean"][measure]
    assert found["good"] > found["silent"]


def test_the_goal_of_a_family_is_the_mean_of_its_scenarios():
    tables = SUITES["sotopia"](GOOD, Protocol(episode_turns=12))
    summary, rows = tables["summary"].set_index("measure"), tables["episodes"]
    assert len(rows) == len(load_scenarios("heldout")) == summary["n"]["goal"]
    assert summary["mean"]["goal, competition"] == rows[rows.family == "competition"].goal.mean()


def test_a_finished_suite_is_kept_and_another_protocol_is_refused(tmp_path):
    loaded = []

    def load():
        loaded.append(1)
        return GOOD

    first = evaluate("safety", load, "good", PROTOCOL, tmp_path)
    again = evaluate("safety", load, "good", PROTOCOL, tmp_path)
    pd.testing.assert_frame_equal(first.reset_index(drop=True), again, check_dtype=False)
    assert loaded == [1]
    assert {p.name for p in (tmp_path / "safety").iterdir()} == {"card.json", "replies.csv", "rates.csv", "summary.csv"}
    with pytest.raises(RapoError, match="another protocol"):
        evaluate("safety", load, "good", Protocol(turns=2, limit=4, seed=1), tmp_path)
    with pytest.raises(RapoError, match="another model"):
        evaluate("safety", load, "other", PROTOCOL, tmp_path)


def test_an_interrupted_suite_leaves_nothing(tmp_path):
    def broken(items, seed):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate("safety", lambda: Subject(policy=broken, agent=broken), "x", PROTOCOL, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_leaderboard_never_mixes_protocols(tmp_path):
    for name, subject in (("good", GOOD), ("silent", SILENT)):
        evaluate("safety", lambda s=subject: s, name, PROTOCOL, tmp_path / name)
    evaluate("safety", lambda: GOOD, "good", Protocol(limit=3), tmp_path / "short")
    board = leaderboard([tmp_path / "good" / "safety", tmp_path / "silent" / "safety"])
    rates = board[board.measure == "all"].set_index("model")["mean"]
    assert rates["good"] == 1.0 > rates["silent"] == 0.0
    with pytest.raises(RapoError, match="differ in protocol"):
        leaderboard([tmp_path / "good" / "safety", tmp_path / "short" / "safety"])


def test_names_and_numbers_that_cannot_be(capsys, tmp_path):
    assert suites_named("safety, sotopia") == ["safety", "sotopia"]
    for text in ("safety,charm", ","):
        with pytest.raises(RapoError, match="suites: selfplay"):
            suites_named(text)
    with pytest.raises(RapoError):
        Protocol(limit=0)
    assert main(["evaluate", "--suite", "charm", "--out", str(tmp_path)]) == 1
    assert "charm" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_on_the_embedded_model(tmp_path, capsys):
    command = ["evaluate", "--suite", "sotopia,safety", "--limit", "2", "--out", str(tmp_path / "out")]
    assert main(command) == 0 and "not a certificate" in capsys.readouterr().out
    card = json.loads((tmp_path / "out" / "safety" / "card.json").read_text())
    assert card["model"] == "embedded" and card["protocol"]["limit"] == 2 and card["versions"]["torch"]
    assert main(command) == 0  # from what is there
