"""Other people's data: spans of ratings, correlations with whole dialogues drawn anew, and turns against chance."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from rapo_lib.cli import main
from rapo_lib.dialogue import Dialogue, Turn
from rapo_lib.measures.outside import (
    clustered_rho,
    emotion_table,
    moves,
    rated_spans,
    rating_table,
    selection_table,
)
from rapo_lib.selection import PivotalTurn


def talk(*turns, name="a"):
    """Turns as (speaker letter, text, rating or emotion)."""
    made = [
        Turn("seeker" if who == "k" else "supporter", text, feedback=note if isinstance(note, int) else None,
             emotion=note if isinstance(note, float) else None)
        for who, text, note in turns
    ]  # fmt: skip
    return Dialogue(name, tuple(made))


def test_a_rating_is_about_the_supporters_words_before_it():
    told = talk(("k", "one", 3), ("s", "two", None), ("s", "three", None), ("k", "four", None), ("k", "five", 4),
                ("k", "six", None), ("s", "seven", None), ("k", "eight", 1))  # fmt: skip
    first, second = rated_spans([told])  # the 3 follows nobody
    assert (first.reply, first.reaction, first.rating) == ("two three", "four five six", 4)
    assert [t.text for t in first.history] == ["one"]
    assert (second.reply, second.reaction, second.rating) == ("seven", "eight", 1)


def test_rho_by_hand_and_its_interval_over_dialogues():
    table = pd.DataFrame({"d": [0, 0, 1, 1, 2, 2], "x": [1, 2, 3, 4, 5, 6], "y": [1, 3, 2, 4, 6, 5]})
    rho, low, high = clustered_rho(table, "x", "y", "d", draws=200)
    assert rho == pytest.approx(1 - 6 * (0 + 1 + 1 + 0 + 1 + 1) / (6 * 35))  # 1 - 6 sum d^2 / n (n^2 - 1)
    assert low <= rho <= high <= 1
    assert math.isnan(clustered_rho(table.assign(x=1), "x", "y", "d", draws=5)[0])


def test_ratings_that_follow_the_reaction_are_found():
    good = ["Thank you, that really helps me.", "Yes, exactly, you understood it.", "I feel better now, thank you."]
    bad = ["You're not listening to me.", "That doesn't help at all.", "I feel worse now, forget it."]
    talks = [
        talk(("k", "My job is gone.", None), ("s", "What happened?", None), ("k", text, rating), name=str(i))
        for i, (text, rating) in enumerate([*zip(good, (5, 4, 5), strict=True), *zip(bad, (1, 2, 1), strict=True)])
    ]
    table = rating_table(talks, draws=20).set_index("reading")
    assert table.rho["relief in the next words"] > 0.5
    assert math.isnan(table.rho["length of the reply"])  # all alike
    assert (table.ratings == 6).all() and (table.dialogues == 6).all()


def test_a_file_is_reported_or_refused_in_one_line(tmp_path, capsys):
    turns = [("seeker", "My job is gone and I can't sleep.", None), ("supporter", "What happened?", None)]
    turns += [("seeker", "They closed the plant. Thank you for asking.", 4)]
    for name, rated in (("rated", True), ("bare", False)):
        dialog = [
            {"speaker": who, "annotation": {"feedback": str(note)} if note and rated else {}, "content": text}
            for who, text, note in turns
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps([{"situation": "", "dialog": dialog}] * 2), "utf-8")
    assert main(["check", str(tmp_path / "rated.json")]) == 0
    assert "2 ratings of supporter turns" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "bare.json")]) == 1
    assert "no turn carries a rating or an emotion" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "missing.json")]) == 1


FELT = talk(("k", "a", 30.0), ("s", "r1", None), ("k", "b", 31.0), ("s", "r2", None), ("k", "c", 40.0),
            ("s", "r3", None), ("k", "d", 38.0))  # fmt: skip


def test_moves_and_selected_turns_by_hand():
    assert moves(FELT) == {1: 1.0, 3: 9.0, 5: -2.0}
    table = selection_table([FELT], [PivotalTurn("a", 3, 0, 1, ""), PivotalTurn("a", 5, 0, 1, "")])
    found = table.set_index("arm").change
    assert found["selected"] == 5.5 and found["random"] == 4.0 and found["by the truth"] == 5.5
    assert selection_table([FELT], []).empty
    assert selection_table([talk(("k", "a", None), ("s", "r", None), ("k", "b", None))], []).empty


def test_what_is_not_english_is_counted_and_not_read():
    chinese = talk(("k", "我很难过，不知道怎么办", 40.0), ("s", "怎么了？", None), ("k", "谢谢你，我好多了", 45.0))
    table, unread = emotion_table([chinese])
    assert table.empty and list(table.columns) == ["arm", "change", "low", "high", "dialogues"]
    assert (unread.dialogues, unread.unread) == (1, 1)
    assert not np.isnan(moves(chinese)[1])
