"""The evaluator seeker: hearing, alliance and speech joined behind the seam that every seeker has."""

from collections.abc import Sequence

from rapo_lib.dialogue import Item, Reaction, SeekerProfile, Turn
from rapo_lib.evaluator.alliance import Felt, State, arrival, live
from rapo_lib.evaluator.hearing import hear, reaches
from rapo_lib.evaluator.speech import speak


class EvaluatorSeeker:
    """A second person behind the same profile, for testing only: never train, tune or select with it."""

    def react_batch(self, items: Sequence[Item]) -> list[Reaction]:
        """One reaction per (profile, history, reply, seed); the seed selects wording only."""
        reactions = []
        for profile, history, reply, seed in items:
            felt = relive(profile, (*history, Turn("supporter", reply)))[1]
            reactions.append(Reaction(speak(profile, history, reply, felt, seed), felt.emotion))
        return reactions

    def emotion(self, profile: SeekerProfile, history: Sequence[Turn]) -> float:
        """How this person feels after `history`, 0-100."""
        return relive(profile, history)[0].emotion


def relive(profile: SeekerProfile, turns: Sequence[Turn]) -> tuple[State, Felt]:
    """The state after every supporter turn of a talk, and what the last of them did."""
    state, felt = arrival(profile), Felt((), 0.0, float(profile.start))
    said: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    for turn in turns:
        if turn.speaker == "seeker":
            said = (*said, turn.text)
            continue
        reach = [reaches(turn.text, secret.topic, secret.text) for secret in profile.disclosures]
        state, felt = live(profile, state, hear(said, earlier, turn.text), reach, said)
        earlier = (*earlier, turn.text)
    return state, felt
