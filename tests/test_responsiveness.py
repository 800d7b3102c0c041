"""Contrast pairs and the score of policies that listen, never listen, listen the wrong way, or toss a coin."""

import random
from collections import Counter

import pytest

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.measures.responsiveness import Contrast, contrasts, responses
from rapo_lib.person.perception import perceive_batch

DOES = {  # a reply that does the act wherever it is said
    "suggests": "You could try to talk to someone at the council tomorrow.",
    "asks": "What was the hardest part of it?",
    "reassures": "You will get through this, I'm sure.",
    "validates": "You have every right to feel like that.",
}
NEUTRAL = "Hm, I see."


PAIRS = [pair for pair in contrasts() if pair.act in DOES]
ENDING = {pair.ending(last): (pair, last == pair.second) for pair in PAIRS for last in (pair.first, pair.second)}


def listening(histories, seed):
    return [DOES[ENDING[h][0].act] if ENDING[h][1] else NEUTRAL for h in histories]


def contrary(histories, seed):
    return [NEUTRAL if ENDING[h][1] else DOES[ENDING[h][0].act] for h in histories]


def deaf(histories, seed):
    return [DOES[ENDING[h][0].act] for h in histories]


def coin(histories, seed):
    rng = random.Random(seed)
    return [rng.choice([DOES[ENDING[h][0].act], NEUTRAL]) for h in histories]


def test_the_shipped_pairs():
    pairs = contrasts()
    assert len(pairs) >= 24 and len({p.id for p in pairs}) == len(pairs)
    assert min(Counter(p.act for p in pairs).values()) >= 2 and len({p.act for p in pairs}) == 6
    for pair in pairs:
        assert pair.first != pair.second
        speakers = [t.speaker for t in pair.ending(pair.first)]
        assert speakers[0] == speakers[-1] == "seeker"
        assert all(a != b for a, b in zip(speakers, speakers[1:], strict=False)) or len(pair.history) == 1


def test_the_people_in_the_pairs_are_not_those_we_train_on_or_evaluate_with():
    said = {p.opening for split in ("train", "dev", "heldout") for p in load_profiles(split)}
    assert not said & {turn.text for pair in contrasts() for turn in pair.history}


@pytest.mark.parametrize(("policy", "score"), [(listening, 1.0), (contrary, -1.0), (deaf, 0.0)])
def test_policies_with_a_known_score(policy, score):
    table = responses(policy, PAIRS)
    assert table.responsiveness.mean() == pytest.approx(score, abs=0.12)  # the ears miss a few acts
    assert len(table) == 2 * len(PAIRS)


def test_tossing_a_coin_is_not_listening():
    table = responses(coin, PAIRS, draws=20)
    assert abs(table.responsiveness.mean()) < 0.08
    assert (table.responsiveness > 0).mean() > 0.15  # although it often changes in the right direction


def test_draws_differ_and_are_repeatable():
    pairs = PAIRS[:4]
    assert responses(coin, pairs, seed=1).equals(responses(coin, pairs, seed=1))
    seen = []
    responses(lambda h, seed: seen.append(seed) or [NEUTRAL] * len(h), pairs, draws=3)
    assert len(set(seen)) == 3


def test_an_unknown_act_is_an_error():
    with pytest.raises(ValueError, match="act 'sings'"):
        Contrast("x", "sings", (Turn("seeker", "Hello."),), "a", "b")


def test_a_reflection_of_the_second_ending_is_heard():
    pair = next(p for p in contrasts() if p.id == "cake-reflection")
    reply = "So you had hoped for eleven people and sat there alone with the plates."
    first, second = perceive_batch([(pair.ending(pair.first), NEUTRAL), (pair.ending(pair.second), reply)])
    assert second.understands >= 0.5 > first.understands
