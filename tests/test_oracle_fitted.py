"""The oracle-fitted judge: reads the truth when fitted, text alone when judging, and finds what was planted."""

import dataclasses
import random

import numpy as np
import pytest

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.feedback import CandidateGroup
from rapo_lib.judge.oracle_fitted import _left_out, fit_judge, load_judge, save_judge
from rapo_lib.runs import RapoError
from rapo_lib.simulation import Rollout

ASKING = ["What is the hardest part of it?", "How did that feel?", "What happened next?", "What do you need most?"]
TELLING = ["You should make a list.", "Try to sleep more.", "You should call them today.", "Just move on."]
PLAIN = ["That is a lot to carry.", "It hurts to be left out like that.", "I see.", "I'm sure it will be fine."]


def rollouts(sign=1.0, noise=1.0, people=8):
    """Questions move people up by `sign` * 5 points, advice down."""
    rng, made = random.Random(3), []
    for person in load_profiles("train")[:people]:
        history = (Turn("seeker", person.opening),)
        for kind, effect in ((ASKING, 5), (TELLING, -5), (PLAIN, 0)):
            for reply in kind:
                change = sign * effect + rng.gauss(0, noise)
                made.append(Rollout(person.id, history, reply, None, 35.0, 35.0 + change, None, ""))
    return made


STRANGER = load_profiles("dev")[0]
GROUP = CandidateGroup((Turn("seeker", STRANGER.opening),), ("You should rest.", "Hm, I see.", "What hurts most?"))


def test_it_finds_what_was_planted_on_a_person_it_never_saw():
    (verdict,) = fit_judge(rollouts()).compare_batch([GROUP])
    assert verdict.ranking == (2, 1, 0)
    (turned,) = fit_judge(rollouts(sign=-1.0)).compare_batch([GROUP])
    assert turned.ranking == (0, 1, 2)
    assert all(critique.strip() for critique in verdict.critiques)


def test_it_explains_people_left_out_where_there_is_something_to_explain():
    assert fit_judge(rollouts()).explained > 0.7
    shuffled = rollouts(noise=0.0)
    felt = [r.emotion for r in shuffled]
    random.Random(0).shuffle(felt)
    chance = [dataclasses.replace(r, emotion=e) for r, e in zip(shuffled, felt, strict=True)]
    assert fit_judge(chance).explained < 0.1


def test_it_judges_by_text_alone():
    judge = fit_judge(rollouts())
    felt = dataclasses.replace(GROUP, history=(Turn("seeker", STRANGER.opening, emotion=99.0),))
    heard = dataclasses.replace(GROUP, reactions=("Thank you!", "No.", "No."))
    (plain,), (known,), (told,) = (judge.compare_batch([g]) for g in (GROUP, felt, heard))
    assert plain == known == dataclasses.replace(told, reactions=None)


def test_what_is_no_reply_never_wins_and_equal_replies_are_abstained_on():
    judge = fit_judge(rollouts())
    odd = dataclasses.replace(GROUP, replies=("", "You should rest.", "What hurts most?"))
    assert judge.compare_batch([odd])[0].ranking[-1] == 0
    same = dataclasses.replace(GROUP, replies=("I see.", "I see."))
    assert judge.compare_batch([same])[0].scores is None


def test_it_needs_enough_to_fit_on():
    with pytest.raises(RapoError, match="at least 20 rollouts"):
        fit_judge(rollouts()[:19])
    with pytest.raises(RapoError, match="with 1$"):
        fit_judge([dataclasses.replace(r, profile="one") for r in rollouts()])


def test_leaving_a_person_out_equals_fitting_without_them():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    x -= x.mean(0)
    y -= y.mean()
    people, penalty = np.repeat(["a", "b", "c"], 4), 2.0
    design, shrink = np.hstack([x, np.ones((12, 1))]), penalty * np.diag([1, 1, 1, 0])
    missed = []
    for person in "abc":
        kept = people != person
        w = np.linalg.solve(design[kept].T @ design[kept] + shrink, design[kept].T @ y[kept])
        missed += list(y[~kept] - design[~kept] @ w)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    assert _left_out(u, s, y, people, penalty) == pytest.approx(np.mean(np.square(missed)))


def test_it_is_kept_and_comes_back_the_same(tmp_path):
    judge = fit_judge(rollouts())
    back = load_judge(save_judge(judge, tmp_path / "judge.safetensors"))
    assert back.compare_batch([GROUP]) == judge.compare_batch([GROUP])
    assert (back.rollouts, back.explained, back.mean) == (judge.rollouts, judge.explained, judge.mean)
    (tmp_path / "judge.safetensors").write_bytes(b"no")
    with pytest.raises(RapoError, match="cannot read the fitted judge"):
        load_judge(tmp_path / "judge.safetensors")
