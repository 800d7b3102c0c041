"""What each arm and control changes, and exactly what it leaves alone."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_lib.ablation import arm_feedback, arm_settings
from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.feedback import CandidateGroup, EmbeddedJudge, RubricJudge, Verdict
from rapo_lib.grid.arms import ARMS, FULL, PRIMARY, known_arm
from rapo_lib.grid.controls import CRITIQUE_CONTROLS, GENERIC, ChangedCritiques, ShuffledReactions, rotated
from rapo_lib.profiles import settings
from rapo_lib.runs import RapoError
from rapo_lib.seeker import AppraisalSeeker
from rapo_lib.simulation import row_history, training_row

PEOPLE = {p.id: p for p in load_profiles("train")[:3]}
ROWS = [training_row(p, [Turn("seeker", p.opening)]) for p in PEOPLE.values()]
REPLIES = [
    ("What is the hardest part of this?", "You should make a list.", "I'm sure it will be fine.", "That sounds heavy."),
    ("You should call them today.", "What did you hope they would say?", "My cousin had that too.", "Well."),
    ("It must hurt to be passed over.", "Try to sleep more.", "Cheer up!", "Who knows about this so far?"),
]


SEEKER = AppraisalSeeker()  # a probe seeker says too little for critiques to differ


def ask(arm, judge=None, rows=ROWS, replies=REPLIES, seed=0, watch=None):
    feedback = arm_feedback(ARMS[arm], SEEKER, judge or EmbeddedJudge(), PEOPLE, seed, watch)
    return feedback(rows, replies)


FULL_VERDICTS = ask(FULL)


# ---------------------------------------------------------------------------------------------- arms


def test_without_reactions_differs_in_reactions_only():
    full, without = ARMS[FULL], ARMS["without_reactions"]
    changed = {f.name for f in dataclasses.fields(full) if getattr(full, f.name) != getattr(without, f.name)}
    assert changed == {"name", "label", "reactions"}
    verdicts = ask("without_reactions")
    assert all(v.reactions is None for v in verdicts)
    assert all(critique.strip() for v in verdicts for critique in v.critiques)  # still written
    chosen = settings("cpu")
    assert arm_settings(without, chosen) == arm_settings(full, chosen) == chosen


def test_what_the_other_primary_arms_change():
    chosen = settings("cpu")
    silent = arm_settings(ARMS["without_distillation"], chosen)
    assert silent == dataclasses.replace(chosen, weight=0.0)
    assert ask("without_distillation") == FULL_VERDICTS  # the feedback is the same
    rubric = ask("grpo_rubric")
    assert rubric == ask("grpo_rubric", judge=None) and all(v.reactions is None for v in rubric)
    assert [v.scores for v in rubric] == [v.scores for v in RubricJudge().compare_batch(groups())]
    assert arm_settings(ARMS["verbal_only"], chosen).weight == 1.0
    assert set(PRIMARY) == {FULL, "without_reactions", "without_distillation", "grpo_rubric"}


def groups():
    return [CandidateGroup(row_history(r), g) for r, g in zip(ROWS, REPLIES, strict=True)]


def test_the_scaled_policy_term_is_the_full_arm_without_its_verbal_half():
    chosen, full = arm_settings(ARMS["policy_scaled"], settings("cpu")), settings("cpu")
    assert chosen == dataclasses.replace(full, weight=0.0, policy_scale=1 - full.weight)
    assert ask("policy_scaled") == FULL_VERDICTS


def test_overrides_name_settings_that_exist():
    for arm in ARMS.values():
        arm_settings(arm, settings("cpu"))


def test_an_unknown_arm_suggests_the_nearest():
    with pytest.raises(RapoError, match="did you mean 'without_reactions'"):
        known_arm("without_reaction")


# ----------------------------------------------------------------------------------- critique controls


@pytest.mark.parametrize("name", [a.name for a in ARMS.values() if a.control in CRITIQUE_CONTROLS])
def test_critique_controls_change_critiques_and_nothing_else(name):
    watched, plain = [], []
    verdicts = ask(name, watch=watched.append)
    ask(FULL, watch=plain.append)
    assert [dataclasses.replace(v, critiques=()) for v in verdicts] == [
        dataclasses.replace(v, critiques=()) for v in FULL_VERDICTS
    ]
    assert [len(v.critiques) for v in verdicts] == [4, 4, 4]
    assert verdicts != FULL_VERDICTS
    assert watched == plain  # the record keeps what the judge wrote
    assert ask(name) == verdicts  # a pure function
    assert arm_settings(ARMS[name], settings("cpu")) == settings("cpu")


def numbered(rows, replies):
    """A feedback whose critiques say where they belong."""
    return [
        Verdict(tuple(float(len(r)) for r in g), tuple(f"{row['profile']}/{i}" for i in range(len(g))), None, (0,))
        for row, g in zip(rows, replies, strict=True)
    ]


def rewritten(control, rows=ROWS, replies=REPLIES, seed=0):
    return [v.critiques for v in ChangedCritiques(numbered, CRITIQUE_CONTROLS[control](seed))(rows, replies)]


def test_in_the_group_every_reply_gets_anothers_critique_of_the_same_history():
    for row, critiques in zip(ROWS, rewritten("in_group"), strict=True):
        own = [f"{row['profile']}/{i}" for i in range(4)]
        assert sorted(critiques) == own and all(a != b for a, b in zip(critiques, own, strict=True))
    assert {rewritten("in_group", seed=s)[0] for s in range(20)} > {rewritten("in_group")[0]}  # the seed matters


def test_across_histories_every_group_gets_those_of_another_history():
    found = rewritten("across_histories")
    owners = [critiques[0].split("/")[0] for critiques in found]
    assert all(owner != row["profile"] for owner, row in zip(owners, ROWS, strict=True))
    assert sorted(owners) == sorted(row["profile"] for row in ROWS)
    assert all(c == tuple(f"{o}/{i}" for i in range(4)) for c, o in zip(found, owners, strict=True))


def test_across_histories_with_the_same_history_twice():
    rows, replies = [ROWS[0], ROWS[0], ROWS[1], ROWS[1]], [REPLIES[0], REPLIES[0], REPLIES[1], REPLIES[1]]
    owners = [c[0].split("/")[0] for c in rewritten("across_histories", rows, replies)]
    assert owners == [ROWS[1]["profile"]] * 2 + [ROWS[0]["profile"]] * 2


@pytest.mark.parametrize("rows", [ROWS[:1], [ROWS[0], ROWS[0]]])
def test_across_histories_needs_two_of_them(rows):
    with pytest.raises(RapoError, match="use more groups a step"):
        rewritten("across_histories", rows, REPLIES[: len(rows)])


def test_the_constant_critique():
    assert rewritten("constant") == [(GENERIC,) * 4] * 3


def test_reply_only_critiques_are_those_of_a_judge_that_hears_nothing():
    assert [v.critiques for v in ask("critique_reply_only")] == [v.critiques for v in ask("without_reactions")]


@given(st.lists(st.integers(), min_size=2, max_size=9, unique=True), st.integers(0, 10**9))
def test_a_rotation_leaves_nothing_in_its_place(items, seed):
    moved = rotated(items, seed)
    assert sorted(moved) == sorted(items) and all(a != b for a, b in zip(moved, items, strict=True))


# ----------------------------------------------------------------------------------- reaction control


class Recorder:
    """A judge that keeps what it was shown."""

    def __init__(self):
        self.groups = []

    def compare_batch(self, groups):
        self.groups += groups
        return EmbeddedJudge().compare_batch(groups)


def test_shuffled_reactions_reach_the_judge_and_nothing_else_changes():
    plain, shuffled, watched, seen = Recorder(), Recorder(), [], []
    ask(FULL, plain, watch=watched.append)
    ask("reactions_shuffled", shuffled, watch=seen.append)
    for a, b in zip(plain.groups, shuffled.groups, strict=True):
        assert (a.history, a.replies) == (b.history, b.replies)
        assert sorted(a.reactions) == sorted(b.reactions)
        assert b.reactions in [a.reactions[k:] + a.reactions[:k] for k in (1, 2, 3)]
    for a, b in zip(watched, seen, strict=True):  # the record keeps what was truly said and felt
        assert (a.reply, a.reaction, a.emotion, a.before) == (b.reply, b.reaction, b.emotion, b.before)


def test_without_reactions_there_is_nothing_to_shuffle():
    silent = groups()
    assert ShuffledReactions(EmbeddedJudge(), 0).compare_batch(silent) == EmbeddedJudge().compare_batch(silent)
