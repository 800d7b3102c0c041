"""The social judge on hand-made groups, against the hidden progress, and inside the trainer's feedback."""

import ast
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

import rapo_lib.sotopia.judge
from rapo_lib.dialogue import Turn
from rapo_lib.feedback import CandidateGroup
from rapo_lib.simulation import SimulatedFeedback
from rapo_lib.sotopia.episode import sotopia_row
from rapo_lib.sotopia.judge import SocialJudge, gave_in, moved, reaction_merit, reply_mark
from rapo_lib.sotopia.partner import SotopiaPartner
from rapo_lib.sotopia.scenarios import load_scenarios

ASK = (Turn("seeker", "I'm asking $240 for it."),)


def ranked(history, **reactions):
    """The names of the replies, best first."""
    group = CandidateGroup(tuple(history), tuple(reactions), tuple(reactions.values()))
    return [group.replies[i] for i in SocialJudge().compare(group).ranking]


def test_reactions_in_words_that_the_partner_never_uses():
    order = ranked(
        (Turn("seeker", "I don't want to sing in front of people."),),
        left="That's enough, I'm off. Bye.",
        insulted="Wow, that was insulting.",
        refused="No, I still don't want to.",
        opened="To be honest, it's the crowd that scares me.",
        convinced="Okay, yes, I'm in!",
    )
    assert order == ["convinced", "opened", "refused", "insulted", "left"]


@pytest.mark.parametrize(
    ("reaction", "merit"),
    [
        ("No deal, sorry.", -0.3),
        ("It is $240, as the tag says.", 0.0),  # no agreement
        ("Tuesday it is!", 0.8),
        ("The first one is good, I'm glad that is behind us.", 0.8),
        ("We had a great deal of rain.", 0.0),
        ("That's one problem less for me.", 0.6),
        ("What did you say? A party?", -0.8),
        ("Nobody may speak to me like that.", -0.8),
        ("I'm set on Monday, honestly.", -0.3),
        ("Noon would be possible.", 0.2),
    ],
)
def test_what_the_other_means(reaction, merit):
    assert reaction_merit((Turn("seeker", "Hello."),), "Well?", reaction) == merit


def test_a_number_that_moves_towards_ours_counts():
    assert moved(ASK, "Would you take $150?", "I could do $216.") == pytest.approx(0.1)
    assert moved(ASK, "I'll give you $300.", "I could do $216.") == pytest.approx(-0.1)
    assert moved(ASK, "It has a scratch.", "I could do $216.") == pytest.approx(0.1)  # no number of ours: any move
    assert moved(ASK, "Hello.", "Hello.") == 0.0
    order = ranked(ASK, little="Fair point. I could do $230.", much="Fair point. I could do $180.")
    assert order == ["much", "little"]


def test_of_a_share_our_part_counts():
    songs = (Turn("seeker", "10 songs for us, 2 songs for you."),)
    reply = "How about 6 songs for us?"
    steps = [
        moved(songs, reply, words)
        for words in (
            "I'm staying with 2 songs for you and 10 songs for me.",
            "I can move a little: 3 songs for you.",
            "You could have 5 songs, and I'd keep 7 songs.",
            "Agreed, 6 songs for you and 6 songs for me.",
        )
    ]
    assert steps == pytest.approx([0, 1 / 3, 3 / 5, 2 / 3])
    assert moved(songs, reply, "No, I need my 10 songs.") == 0.0  # theirs
    assert moved(songs, "You can have 6 songs.", "Let's say 4 songs for you.") == 0.5
    assert gave_in(songs, "Deal.", "Agreed, 2 songs for you and 10 songs for me.")
    later = (*songs, Turn("supporter", "I'd take 6 songs."), Turn("seeker", "You get 4 songs, I keep 8 songs."))
    assert not gave_in(later, "Deal.", "All right, you take 4 songs.")
    assert moved(ASK, "Would you take $150?", "I'd take $216.") == pytest.approx(0.1)  # a price is nobody's share


def test_taking_the_first_offer_is_no_success():
    assert gave_in(ASK, "Deal.", "Deal, $240.") and not gave_in(ASK, "Deal at $200.", "Deal, $200.")
    beyond = (*ASK, Turn("supporter", "Would you take $150?"), Turn("seeker", "No, it's $240."))
    assert gave_in(beyond, "Then $300.", "Deal, $300.")
    later = (*ASK, Turn("supporter", "Would you take $150?"), Turn("seeker", "$200."))
    assert not gave_in(later, "Deal.", "Deal, $200.")
    group = CandidateGroup(ASK, ("Deal.", "There is a scratch."), ("Deal, $240.", "Fair point, $210."))
    verdict = SocialJudge().compare(group)
    assert verdict.ranking == (1, 0) and "first offer" in verdict.critiques[0] and all(verdict.critiques)


def test_without_reactions_the_rubric_marks():
    replies = ("You must do it right now.", "What matters to you? I could help because I know the place.", "")
    verdict = SocialJudge().compare(CandidateGroup(ASK, replies))
    assert verdict.ranking == (1, 0, 2) and verdict.reactions is None
    assert [reply_mark(r) for r in replies] == pytest.approx([-0.8, 0.9, -1.0])
    assert SocialJudge().compare(CandidateGroup(ASK, ("a", "a"), ("b", "b"))).scores is None


def test_the_judge_imports_nothing_of_game_or_partner():
    tree = ast.parse(Path(rapo_lib.sotopia.judge.__file__).read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("rapo_lib.sotopia") or name == "rapo_lib.seeker" for name in imported)


OTHER = ("That sounds good. Deal.", "You have to agree, come on.", "I'm not sure what to say here.")


def test_the_judge_agrees_with_the_hidden_progress():
    scenes = load_scenarios("train")
    watched = []
    feedback = SimulatedFeedback(
        SotopiaPartner(), SocialJudge(), {s.id: s for s in scenes}, seed=1, watch=watched.append
    )
    rows = [sotopia_row(s, (Turn("seeker", s.opening),)) for s in scenes]
    replies = [(s.demonstration[1], s.demonstration[0], *OTHER) for s in scenes]
    verdicts = feedback(rows, replies)
    assert len(verdicts) == 16 and all(v.scores is not None for v in verdicts)
    gained = np.array([r.emotion - r.before for r in watched]).reshape(16, 5)
    taus = [kendalltau(v.scores, g)[0] for v, g in zip(verdicts, gained, strict=True) if len(set(g)) > 1]
    assert len(taus) >= 12 and np.mean(taus) > 0.5
    best = [g[v.ranking[0]] == g.max() for v, g in zip(verdicts, gained, strict=True)]
    assert np.mean(best) > 0.75
    without = SimulatedFeedback(SotopiaPartner(), SocialJudge(), {s.id: s for s in scenes}, reactions=False)
    assert all(v.reactions is None and v.scores is not None for v in without(rows, replies))
