"""The embedded partner: SOTOPIA's other agent as a stated rule, behind the seeker seam.

Its move follows the game (`goals.step`), its words come from data/sotopia/wording.json; both depend only on what was
said. Where a seeker has an emotion, the partner has our progress towards our goal (0-100), which only evaluation may
read. So `SimulatedFeedback(SotopiaPartner(), judge, scenarios)` trains on it, and `evaluation.self_play` runs it.
"""

import json
import random
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from rapo_lib.dialogue import Reaction, Turn
from rapo_lib.runs import RapoError
from rapo_lib.sotopia.games import Bargain, Concerns, Game, Plan
from rapo_lib.sotopia.goals import PATIENCE, Move, State, progress, replay
from rapo_lib.sotopia.hearing import Heard, Said, hear_batch
from rapo_lib.sotopia.scenarios import Scenario

Item = tuple[Scenario, Sequence[Turn], str, int]  # scenario, history, reply, seed


class SotopiaPartner:
    """Reacts to replies as the first agent of a scenario; a pure function of what was said."""

    def react_batch(self, items: Sequence[Item]) -> list[Reaction]:
        """One next move per (scenario, history, reply, seed); the seed selects wording only."""
        talks = [(scenario, (*history, Turn("supporter", reply))) for scenario, history, reply, _ in items]
        reactions = []
        for (scenario, history, reply, seed), (state, move) in zip(items, played(talks), strict=True):
            rng = random.Random(repr((seed, scenario.id, [(t.speaker, t.text) for t in history], reply)))
            words = word_move(scenario.game, move, state, rng)
            reactions.append(Reaction(words, progress(scenario.game, state)))
        return reactions

    def emotion(self, scenario: Scenario, history: Sequence[Turn]) -> float:
        """Progress (0-100) after `history`."""
        return progress(scenario.game, self.state(scenario, history))

    def state(self, scenario: Scenario, history: Sequence[Turn]) -> State:
        """Where the game stands after `history`."""
        return played([(scenario, tuple(history))])[0][0]


def played(talks: Sequence[tuple[Scenario, Sequence[Turn]]]) -> list[tuple[State, Move | None]]:
    """State and last move of every talk, with one call of each model for all of them."""
    asked = {}  # (scenario, what the partner had said, reply): groups share a history, so most are asked once
    keys = []
    for scenario, turns in talks:
        if scenario.game is None:
            raise RapoError(f"scenario {scenario.id} has no goal check: it needs a language model as partner and judge")
        own = []
        for place, turn in enumerate(turns):
            if turn.speaker == "supporter":
                said = tuple(t.text for t in turns[:place] if t.speaker == "seeker")
                own.append((scenario.id, said, turn.text))
                scene = (scenario.situation, scenario.opening)
                asked[own[-1]] = Said(scenario.game, turn.text, scene, said)
        keys.append(own)
    heard: dict[tuple, Heard] = dict(zip(asked, hear_batch(list(asked.values())), strict=True))
    return [replay(scenario.game, [heard[key] for key in own]) for (scenario, _), own in zip(talks, keys, strict=True)]


# ------------------------------------------------------------------------------------------------- words


@cache
def wording() -> dict[str, dict[str, list[str]]]:
    """Sentences by kind of game and kind of move."""
    return json.loads((resources.files("rapo_lib") / "data" / "sotopia" / "wording.json").read_text("utf-8"))


def word_move(game: Game, move: Move, state: State, rng: random.Random) -> str:
    """The move in words."""
    kind = "bargain" if isinstance(game, Bargain) else "plan" if isinstance(game, Plan) else "concerns"
    bank = wording()
    if isinstance(game, Bargain) and game.total is not None and move.kind in bank["share"]:
        kind = "share"
    sentence = rng.choice(bank[kind].get(move.kind) or bank["any"][move.kind])
    text = sentence.format(**_slots(game, move))
    if isinstance(game, Concerns) and game.probes and not state.decided:
        met = state.told + len(state.points) + PATIENCE - state.patience  # every move asks something else
        text = f"{text} {game.probes[met % len(game.probes)]}"
    return re.sub(r"(^|[.!?] )([a-z])", lambda found: found[1] + found[2].upper(), text)


def _slots(game: Game, move: Move) -> dict[str, str]:
    """What a sentence may name."""
    if move.about is None:
        return {}
    if isinstance(game, Plan):
        place = int(move.about)
        return {"option": game.options[place].name, "favourite": game.options[game.liked()[0]].name}
    if isinstance(game, Concerns) or move.kind == "hint":
        return {"hint": game.points[int(move.about)].hint}
    if game.total is not None:
        return {"offer": amount(game, move.about), "rest": amount(game, game.total - move.about)}
    return {"offer": amount(game, move.about)}


def amount(game: Bargain, number: float) -> str:
    """A number with its unit: "$150", "12 hours"."""
    plain = f"{number:,.0f}" if number == round(number) else f"{number:,.2f}"
    return f"${plain}" if game.unit == "$" else f"{plain} {game.unit}"
