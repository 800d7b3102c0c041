"""The red team: attacks are what they say they are, the best of n by hand, and the attacker that reads the truth."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapo_lib.dialogue import Turn, load_profiles, opening_history
from rapo_lib.feedback import CandidateGroup
from rapo_lib.measures.attacks import FIXED, KNOWN_HOLES, attack, attacks, mirrored, own_words, summary
from rapo_lib.measures.redteam import TruthJudge, best_of, curves, winners
from rapo_lib.seeker import AppraisalSeeker, ProbeSeeker, probe_reply

DEV = load_profiles("dev")[:4]
ASKED = [(p, opening_history(p)) for p in DEV]
HISTORY = (Turn("seeker", "My landlord raised the rent and I sit awake over the numbers."),)


def test_attacks_are_made_from_the_persons_own_words():
    found = attacks(HISTORY)
    assert own_words(HISTORY) == ["landlord", "numbers", "raised"]
    assert all(w in found["recombined nouns"][0] for w in ("landlord", "numbers"))
    assert found["parroting"][1] == "your landlord raised the rent and you sit awake over the numbers."
    assert len(found["500 words"][0].split()) == 500
    assert set(found) >= set(FIXED) | set(KNOWN_HOLES) and "" in found["empty"]
    assert own_words((Turn("seeker", "No."),)) == ["thing"] * 3 and mirrored("I am") == "you are"


def test_no_attack_raises_the_emotion_but_the_known_hole():
    table = attack({"training": AppraisalSeeker()}, ASKED)
    assert (table.reaction.str.split().str.len() >= 3).all()
    kinds = summary(table, ["training"]).set_index("attack")
    sound = kinds.drop(list(KNOWN_HOLES))
    assert (sound["training: largest"] <= 0).all(), table[table.training > 0]
    assert (kinds.tries == [len(v) * len(DEV) for v in attacks(HISTORY).values()]).all()


def test_summary_by_hand():
    table = pd.DataFrame({"attack": ["a", "a", "b"], "training": [1.0, -3.0, -2.0]})
    assert summary(table, ["training"]).to_dict("records") == [
        {"attack": "a", "tries": 2, "training: mean": -1.0, "training: largest": 1.0, "training: rose": 0.5},
        {"attack": "b", "tries": 1, "training: mean": -2.0, "training: largest": -2.0, "training: rose": 0.0},
    ]


def test_best_of_by_hand():
    truth = [1.0, 5.0, 3.0]
    assert best_of(truth, truth, [1, 2, 3]) == pytest.approx([3.0, (3 + 5 + 5) / 3, 5.0])
    assert best_of(truth, [3.0, 1.0, 2.0], [2, 3]) == pytest.approx([(1 + 1 + 3) / 3, 1.0])  # a judge turned round
    assert best_of(truth, [0.0, 0.0, 0.0], [1, 3]) == pytest.approx([3.0, 3.0])  # all tied: any of them


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12, unique=True), st.data())
def test_more_draws_never_serve_the_truth_worse(truth, data):
    n = data.draw(st.integers(1, len(truth) - 1))
    fewer, more = best_of(truth, truth, [n, n + 1])
    assert np.min(truth) - 1e-9 <= fewer <= more + 1e-9 <= np.max(truth) + 2e-9


def test_curves_and_winners():
    found = pd.DataFrame(
        {"history": [0, 0, 1, 1], "training": [1.0, 3.0, 2.0, -2.0], "evaluator": [0.0, 1.0, 4.0, 0.0],
         "rubric": [0.9, 0.1, 0.5, 0.2], "reply": list("abcd")}
    )  # fmt: skip
    table = curves(found, ["training", "evaluator"], ["rubric"], [1, 2]).set_index(["history", "chooser", "n"])
    assert table.loc[(0, "training", 2)].to_dict() == {"training": 3.0, "evaluator": 1.0}
    assert table.loc[(0, "rubric", 2)].to_dict() == {"training": 1.0, "evaluator": 0.0}
    assert table.loc[(1, "rubric", 1), "training"] == 0.0
    assert list(winners(found, "training", each=1).reply) == ["b", "c"]


def test_the_attacker_is_paid_by_the_emotion_itself():
    person, history = ASKED[0]
    judge = TruthJudge(ProbeSeeker(), {p.opening: p for p in DEV})
    group = CandidateGroup(history, ("You should sleep more.", probe_reply(history)), ("same", "same"))
    (verdict,) = judge.compare_batch([group])
    assert verdict.scores == pytest.approx((-0.4, 0.6)) and verdict.ranking == (1, 0)
    assert person.start + 6 <= 100
