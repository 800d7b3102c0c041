"""A language model as turn selector: it reads a whole dialogue, looking back, and names the turns that changed it.

Long dialogues are read in windows that overlap; a turn in an overlap is taken from the window that shows more of what
came after it. Only numbers of supporter turns with something said before and after count; levels are -1 to 1, as in
`selection`. What the papers' selector asked is not public; the prompt is ours.
"""

import logging
from collections.abc import Sequence
from typing import Any

from rapo_lib.chat import ChatModel, ChatRequest
from rapo_lib.dialogue import Dialogue, language_of
from rapo_lib.lm.prompts import load_prompt, transcript
from rapo_lib.selection import PivotalTurn

log = logging.getLogger(__name__)

WINDOW = 60  # turns read at once; ours
OVERLAP = 20  # turns that neighbouring windows share; ours
LEVEL = 10  # levels are asked for as integers within -10..10

SCHEMA = {
    "type": "object",
    "properties": {
        "pivots": {
            "type": "array",
            "maxItems": 6,
            "items": {
                "type": "object",
                "properties": {
                    "reason": {"type": "string", "maxLength": 240},
                    "turn": {"type": "integer", "minimum": 0},
                    "before": {"type": "integer", "minimum": -LEVEL, "maximum": LEVEL},
                    "after": {"type": "integer", "minimum": -LEVEL, "maximum": LEVEL},
                },
                "required": ["reason", "turn", "before", "after"],
            },
        }
    },
    "required": ["pivots"],
}


def windows(length: int, size: int = WINDOW, overlap: int = OVERLAP) -> list[range]:
    """Ranges of at most `size` turns that cover 0..length, neighbours sharing `overlap`."""
    starts = range(0, max(1, length - overlap), size - overlap)
    return [range(start, min(start + size, length)) for start in starts]


class LMSelector:
    """Finds pivotal turns with a language model."""

    def __init__(self, chat: ChatModel, *, per_window: int = 3, max_tokens: int = 600) -> None:
        self.chat, self.per_window, self.max_tokens = chat, per_window, max_tokens

    def select(
        self, dialogues: Sequence[Dialogue], top: int | None = None, per_dialogue: int = 2, min_change: float = 0.0
    ) -> list[PivotalTurn]:
        """The `top` largest changes overall, at most `per_dialogue` of each dialogue, in dialogue order."""
        asked = [(k, part) for k, d in enumerate(dialogues) for part in windows(len(d.turns)) if d.turns]
        replies = self.chat.complete([self._request(dialogues[k], part) for k, part in asked])
        if unread := sum(not reply.answered for reply in replies):
            log.warning("%d of %d windows could not be read: nothing is selected there", unread, len(replies))
        best: dict[tuple[int, int], tuple[int, PivotalTurn]] = {}  # (dialogue, turn) -> (turns seen after it, pivot)
        for (k, part), reply in zip(asked, replies, strict=True):
            for one in reply.value["pivots"] if reply.answered else ():
                seen = part.stop - one["turn"]
                pivot = _pivot(dialogues[k], one)
                if seen > best.get((k, pivot.turn), (0, pivot))[0]:
                    best[k, pivot.turn] = (seen, pivot)
        return _largest({place: pivot for place, (_, pivot) in best.items()}, top, per_dialogue, min_change)

    def _request(self, dialogue: Dialogue, part: range) -> ChatRequest:
        turns = dialogue.turns[part.start : part.stop]
        prompt = load_prompt("selector", language_of([t.text for t in turns if t.speaker == "seeker"]))
        able = eligible(dialogue, part)

        def check(value: Any) -> str:
            wrong = sorted({one["turn"] for one in value["pivots"]} - able)
            return f"turn {wrong[0]} is no supporter turn between two seeker turns" if wrong else ""

        return ChatRequest(
            messages=prompt.messages(history=transcript(turns, part.start), most=self.per_window),
            schema=SCHEMA,
            max_tokens=self.max_tokens,
            check=check,
            asker=prompt.tag,
        )


def eligible(dialogue: Dialogue, part: range) -> set[int]:
    """Supporter turns of a window with a seeker turn somewhere before and after them in it."""
    seeker = [i for i in part if dialogue.turns[i].speaker == "seeker"]
    return {i for i in part if dialogue.turns[i].speaker == "supporter" and seeker and seeker[0] < i < seeker[-1]}


def _pivot(dialogue: Dialogue, one: Any) -> PivotalTurn:
    """The pivot at the first of neighbouring supporter turns, so that the history before it ends with the seeker."""
    turn = one["turn"]
    while turn and dialogue.turns[turn - 1].speaker == "supporter":
        turn -= 1
    return PivotalTurn(dialogue.id, turn, one["before"] / LEVEL, one["after"] / LEVEL, one["reason"].strip())


def _largest(
    found: dict[tuple[int, int], PivotalTurn], top: int | None, per_dialogue: int, min_change: float
) -> list[PivotalTurn]:
    """The largest changes within the limits, in dialogue order; what changes nothing is no pivot."""
    order = sorted(found, key=lambda place: (-abs(found[place].after - found[place].before), place))
    kept: list[tuple[int, int]] = []
    for place in order:
        change = abs(found[place].after - found[place].before)
        if change > 0 and change >= min_change and sum(k == place[0] for k, _ in kept) < per_dialogue:
            kept.append(place)
    return [found[place] for place in sorted(kept[:top])]
