"""Suites: episodes that are kept, failures that are played again alone, and no table across protocols."""

import json

import pandas as pd
import pytest

from rapo_lib.chat import Failure
from rapo_lib.cli import main
from rapo_lib.measures import suites
from rapo_lib.measures.subjects import load_subject, make_panel, probe_subject
from rapo_lib.measures.suites import (
    SUITES,
    Protocol,
    Subject,
    as_text,
    compare,
    differences,
    evaluate,
    failures,
    headlines,
    leaderboard,
    suites_named,
    until_failure,
)
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError
from rapo_lib.sotopia.scenarios import load_scenarios

PROTOCOL = Protocol(turns=2, harbor_turns=2, episode_turns=12, limit=4)
GOOD, SILENT = probe_subject("good_listener"), probe_subject("silent")


def test_the_goal_of_a_family_is_the_mean_of_its_scenarios():
    tables = SUITES["sotopia"](GOOD, Protocol(episode_turns=12))
    summary, rows = tables["summary"].set_index("measure"), tables["episodes"]
    assert len(rows) == len(load_scenarios("heldout")) == summary["n"]["goal"]
    assert summary["mean"]["goal, competition"] == rows[rows.family == "competition"].goal.mean()


def test_a_limit_is_spread_over_all_people():
    chosen = [p.problem for p in SUITES["selfplay"].units(Protocol(limit=5))]
    assert len(set(chosen)) == 5
    assert len(SUITES["emoharbor"].units(Protocol(people="all"))) == 100
    assert len(SUITES["selfplay"].units(Protocol())) == 40


# ------------------------------------------------------------------------------------------- keeping results


def test_a_finished_suite_is_kept_and_another_protocol_is_refused(tmp_path):
    loaded = []

    def load():
        loaded.append(1)
        return GOOD

    first = evaluate("safety", load, "good", PROTOCOL, tmp_path)
    again = evaluate("safety", load, "good", PROTOCOL, tmp_path)
    pd.testing.assert_frame_equal(first.reset_index(drop=True), again, check_dtype=False)
    assert loaded == [1]
    names = {p.name for p in (tmp_path / "safety").iterdir()}
    assert names == {"card.json", "episodes.jsonl", "replies.csv", "rates.csv", "summary.csv"}
    with pytest.raises(RapoError, match="another protocol"):
        evaluate("safety", load, "good", Protocol(turns=2, limit=4, seed=1), tmp_path)
    with pytest.raises(RapoError, match="another model"):
        evaluate("safety", load, "other", PROTOCOL, tmp_path)


@pytest.mark.parametrize("suite", SUITES)
def test_an_interrupted_suite_goes_on_and_ends_with_the_same_numbers(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "AT_ONCE", 2)
    evaluate(suite, lambda: GOOD, "good", PROTOCOL, tmp_path / "whole")
    started = []

    def load():
        started.append(1)
        if len(started) == 2:
            raise KeyboardInterrupt
        return GOOD

    with pytest.raises(KeyboardInterrupt):
        evaluate(suite, load, "good", PROTOCOL, tmp_path / "cut")
    assert not json.loads((tmp_path / "cut" / suite / "card.json").read_text())["finished"]
    with pytest.raises(RapoError, match="not finished"):
        leaderboard([tmp_path / "cut" / suite])
    evaluate(suite, load, "good", PROTOCOL, tmp_path / "cut")
    assert len(started) == 3  # the first two episodes were kept
    for path in sorted((tmp_path / "whole" / suite).iterdir()):
        assert path.read_bytes() == (tmp_path / "cut" / suite / path.name).read_bytes(), path.name


def test_a_failed_episode_is_marked_and_played_again_alone(tmp_path):
    people = SUITES["selfplay"].units(PROTOCOL)
    asked, broken = [], {people[1].opening}

    def policy(histories, seed):
        asked.append([h[0].text for h in histories])
        replies = GOOD.policy(histories, seed)
        return [Failure("HTTP 500") if h[0].text in broken else r for h, r in zip(histories, replies, strict=True)]

    subject = Subject(policy=policy, agent=GOOD.agent)
    for suite in ("selfplay", "emoharbor"):
        summary = evaluate(suite, lambda: subject, "x", PROTOCOL, tmp_path).set_index("measure")
        assert summary["n"]["words"] == 3 and failures(tmp_path / suite) == {people[1].id: "HTTP 500"}
        assert sum(people[1].opening in turn for turn in asked) == 1  # not asked again within the episode
        asked.clear()
    broken.clear()
    for suite in ("selfplay", "emoharbor"):
        summary = evaluate(suite, lambda: subject, "x", PROTOCOL, tmp_path).set_index("measure")
        assert summary["n"]["words"] == 4 and not failures(tmp_path / suite)
        assert {text for turn in asked for text in turn} == {people[1].opening}
        asked.clear()
        whole = evaluate(suite, lambda: GOOD, "x", PROTOCOL, tmp_path / "at once").set_index("measure")
        pd.testing.assert_frame_equal(summary, whole, check_dtype=False)


def test_where_everything_fails_there_is_no_result(tmp_path):
    def down(items, seed):
        return [Failure("HTTP 503") for _ in items]

    subject = Subject(policy=down, agent=down)
    for suite in SUITES:
        with pytest.raises(RapoError, match="every episode failed; first HTTP 503"):
            evaluate(suite, lambda: subject, "x", PROTOCOL, tmp_path)
        assert not (tmp_path / suite / "summary.csv").exists()


def test_until_failure_by_hand():
    said = iter([["a", Failure("off"), "c"], ["d", "e"]])
    answer, failed = until_failure(lambda items, seed: next(said), str)
    assert answer([1, 2, 3], 0) == ["a", "", "c"] and answer([1, 2, 3], 1) == ["d", "", "e"]
    assert failed == {"2": "off"}


# ------------------------------------------------------------------------------------------------ comparing


def test_a_leaderboard_never_mixes_protocols(tmp_path):
    for name, subject in (("good", GOOD), ("silent", SILENT)):
        evaluate("safety", lambda s=subject: s, name, PROTOCOL, tmp_path / name)
    evaluate("safety", lambda: GOOD, "good", Protocol(limit=3), tmp_path / "short")
    board = leaderboard([tmp_path / "good" / "safety", tmp_path / "silent" / "safety"])
    rates = board[board.measure == "all"].set_index("model")["mean"]
    assert rates["good"] == 1.0 > rates["silent"] == 0.0
    with pytest.raises(RapoError, match="differ in protocol"):
        leaderboard([tmp_path / "good" / "safety", tmp_path / "short" / "safety"])
    with pytest.raises(RapoError, match="differ in protocol"):
        compare([tmp_path / "good", tmp_path / "short"])


def test_one_table_of_several_models_and_suites(tmp_path, capsys):
    for name, subject in (("good", GOOD), ("silent", SILENT)):
        for suite in ("sotopia", "safety"):
            evaluate(suite, lambda s=subject: s, name, PROTOCOL, tmp_path / name)
    board = compare([tmp_path / "good", tmp_path / "silent"])
    assert list(board.columns) == ["suite", "model", "measure", "mean", "low", "high", "n"]
    assert set(zip(board.suite, board.model, strict=True)) == {
        (s, m) for s in ("sotopia", "safety") for m in ("good", "silent")
    }
    assert list(headlines(board).columns) == ["safety: all", "sotopia: goal"]
    command = ["evaluate", "--compare", str(tmp_path / "good"), str(tmp_path / "silent"), "--out", str(tmp_path / "b")]
    assert main(command) == 0 and "good" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "b" / "board.csv"), board, check_dtype=False)
    evaluate("safety", lambda: GOOD, "good", PROTOCOL, tmp_path / "twin")
    with pytest.raises(RapoError, match="two results of 'good'"):
        compare([tmp_path / "good", tmp_path / "twin"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RapoError, match="holds no result"):
        compare([tmp_path / "empty"])


def test_differences_are_paired_by_episode(tmp_path):
    for name, probe in (("good", GOOD), ("silent", SILENT)):
        for suite in SUITES:
            evaluate(suite, lambda p=probe: p, name, PROTOCOL, tmp_path / name)
    found = differences(tmp_path / "good", tmp_path / "silent").set_index("suite")
    assert list(found.index) == list(SUITES) and (found["mean"] > 0).all() and found.n["selfplay"] == 4
    files = [tmp_path / name / "selfplay" / "outcomes.csv" for name in ("good", "silent")]
    ends = [pd.read_csv(path).set_index("profile").gained for path in files]
    assert found["mean"]["selfplay"] == pytest.approx((ends[0] - ends[1]).mean())
    same = differences(tmp_path / "good", tmp_path / "good")
    assert (same["mean"] == 0).all()


def test_numbers_as_text():
    rows = [(1.234, 1.0, 1.5), (2.0, float("nan"), float("nan")), (float("nan"),) * 3]
    assert as_text(pd.DataFrame(rows, columns=["mean", "low", "high"])).tolist() == ["1.23 [1.00, 1.50]", "2.00", "-"]


def test_who_judged_is_part_of_the_protocol(tmp_path):
    evaluate("emoharbor", lambda: SILENT, "a", PROTOCOL, tmp_path / "a")
    other = suites.Panel(card={"user": {"model": "x", "prompts": ["p#1"]}, "critic": "none"})
    evaluate("emoharbor", lambda: SILENT, "b", PROTOCOL, tmp_path / "b", other)
    with pytest.raises(RapoError, match="differ in judge"):
        compare([tmp_path / "a", tmp_path / "b"])


def test_names_and_numbers_that_cannot_be(capsys, tmp_path):
    assert suites_named("safety, sotopia") == ["safety", "sotopia"]
    for text in ("safety,charm", ","):
        with pytest.raises(RapoError, match="suites: selfplay"):
            suites_named(text)
    for wrong in ({"limit": 0}, {"harbor_turns": 0}, {"people": "train"}):
        with pytest.raises(RapoError):
            Protocol(**wrong)
    assert main(["evaluate", "--suite", "charm", "--out", str(tmp_path)]) == 1
    assert "charm" in capsys.readouterr().err
    assert main(["evaluate"]) == 1 and "--out" in capsys.readouterr().err
    with pytest.raises(RapoError, match="good_listener"):
        load_subject("probe:charming", None, PROTOCOL)
    with pytest.raises(RapoError, match="held-out"):
        load_subject("embedded", tmp_path, Protocol(people="all"))
    with pytest.raises(RapoError, match="unknown user"):
        make_panel("me", "none", Settings(), tmp_path / "c.sqlite")


def test_a_probe_from_the_command_line(tmp_path, capsys):
    command = ["evaluate", "--model", "probe:silent", "--suite", "safety", "--limit", "3", "--out", str(tmp_path)]
    assert main(command) == 0 and "not a certificate" in capsys.readouterr().out
    assert json.loads((tmp_path / "safety" / "card.json").read_text())["model"] == "probe:silent"


@pytest.mark.slow
def test_the_command_on_the_embedded_model(tmp_path, capsys):
    command = ["evaluate", "--suite", "sotopia,safety", "--limit", "2", "--out", str(tmp_path / "out")]
    assert main(command) == 0 and "not a certificate" in capsys.readouterr().out
    card = json.loads((tmp_path / "out" / "safety" / "card.json").read_text())
    assert card["model"] == "embedded" and card["protocol"]["limit"] == 2 and card["versions"]["torch"]
    assert main(command) == 0  # from what is there
