"""Hindsight dialogue selection: which supporter turns, looking back, changed how the seeker feels.

RAPO asks a language model to mark such turns over the whole dialogue; its criterion is not public. Ours reads text:
1. The level of each seeker turn is read from its words (`judge.reading`).
2. A change counts as far as it lasts: median level of this and the next two seeker turns against the three before, and
   never more than the step taken at this turn, so that a polite 'thanks' that is gone a turn later counts little.
3. It is credited to the supporter turn that it follows, which may lie up to two turns earlier when the seeker comes
   back to it; news that the seeker brings, and small talk, are discounted.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rapo_lib.dialogue import Dialogue, Turn
from rapo_lib.encoder import embed
from rapo_lib.judge.reading import cause_names, read_batch, read_sentences, split_sentences, words
from rapo_lib.judge.rubric import name_acts

log = logging.getLogger(__name__)

WINDOW = 3  # ours: seeker turns looked at on either side
MIN_CHANGE = 0.15  # ours: on the scale of readings, -1 to 1
FLAT = 0.15  # ours: a weaker reading is noise
AT_ONCE = 0.25  # ours: head start of the reply just before, in cosine
COMES_BACK = 0.4  # ours: what an explicit reference to an earlier turn adds, in cosine
NEWS_SHARE = 0.1  # ours: what remains of a change that the seeker's own news explains
NEWS_CLEAR = 0.3  # ours: fit of the cause 'news' above which it explains the change
BACK = re.compile(
    r"\b(you|your) (asked|said|wrote|told|question|mentioned)\b.{0,30}\b(earlier|before|ago|stayed)\b"
    r"|\b(earlier|before|back then|a while ago) you (asked|said)"
    r"|\b(what|when) you (asked|said)\b.{0,30}\b(earlier|before|stayed)"
    r"|keep thinking about (what|your)|come back to (what|your)|still thinking (about|of) (what|your)",
    re.IGNORECASE,
)
ACT_WORDS = {
    "reflect": "a reflection", "question": "a question", "advise": "advice", "reassure": "reassurance",
    "inform": "information", "disclose": "talk of the supporter's own life", "validate": "words of acceptance",
    "dismiss": "a dismissive remark", "stock": "a stock phrase", "flatter": "praise", "small": "small talk",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PivotalTurn:
    """A supporter turn that changed the seeker's trajectory; levels are readings, -1 to 1."""

    dialogue_id: str
    turn: int  # index in Dialogue.turns; history(turn) is what came before
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the supporter said, from turn number `turn` on, and what the seeker answered."""

    turn: int
    reply: str
    answer: str


def exchanges(turns: Sequence[Turn]) -> list[Exchange]:
    """The dialogue as (reply, answer) pairs, neighbouring turns of one speaker joined; the opening has reply ''."""
    found: list[Exchange] = []
    start, reply, answer = 0, [], []
    for i, turn in enumerate(turns):
        if turn.speaker == "supporter" and answer:
            found.append(Exchange(start, " ".join(reply), " ".join(answer)))
            reply, answer = [], []
        if turn.speaker == "supporter" and not reply:
            start = i
        (reply if turn.speaker == "supporter" else answer).append(turn.text)
    if answer:
        found.append(Exchange(start, " ".join(reply), " ".join(answer)))
    return found


def readable(dialogue: Dialogue) -> bool:
    """Our reader knows English only: at least half of the letters are ASCII."""
    texts = [turn.text for turn in dialogue.turns] or [dialogue.situation]
    letters = [c for text in texts for c in text if c.isalpha()]
    return bool(letters) and sum(c.isascii() for c in letters) >= 0.5 * len(letters)


def levels(dialogue: Dialogue) -> list[float]:
    """How the seeker sounds in each exchange, -1 to 1, from the text alone; within FLAT of 0 is 0, unread is NaN."""
    talk = exchanges(dialogue.turns)
    if not readable(dialogue):
        return [float("nan")] * len(talk)
    items = [(dialogue.turns[: e.turn] if e.reply else (), e.reply, e.answer) for e in talk]
    relief = np.array([reading.relief for reading in read_batch(items)])
    return (np.sign(relief) * np.maximum(np.abs(relief) - FLAT, 0)).tolist()


def emotions(dialogue: Dialogue) -> list[float]:
    """The true emotion at the end of each exchange, NaN where the dialogue has none. For the experimenter's eyes."""
    ends = [e.turn for e in exchanges(dialogue.turns)[1:]] + [len(dialogue.turns)]
    said = [[t for t in dialogue.turns[:end] if t.speaker == "seeker"] for end in ends]
    return [float("nan") if each[-1].emotion is None else each[-1].emotion for each in said]


def despike(level: Sequence[float]) -> list[float]:
    """Each level held between the (despiked) one before and the one after: what is gone a turn later does not count."""
    held = list(level)
    for k in range(1, len(held) - 1):
        held[k] = float(np.median(held[k - 1 : k + 2]))
    return held


def lasting_change(level: Sequence[float], k: int) -> float:
    """sign(step) * min(|step|, |rise|), 0 where the signs differ; on despiked levels.

    step = L_k - L_{k-1};  rise = median(L_k..L_{k+2}) - median(L_{k-3}..L_{k-1})
    """
    rise = float(np.median(level[k : k + WINDOW]) - np.median(level[max(0, k - WINDOW) : k]))
    step = level[k] - level[k - 1]
    return float(np.sign(step) * min(abs(step), abs(rise))) if step * rise > 0 else 0.0


def _peaks(changes: Sequence[float]) -> list[int]:
    """Where a change is not outdone by a neighbour of the same sign: one move is one pivot."""
    padded = [0.0, *changes, 0.0]
    return [
        i
        for i, change in enumerate(changes)
        if change and all(other * change <= 0 or abs(other) <= abs(change) for other in (padded[i], padded[i + 2]))
    ]


def _fit(answer: str, cause: str) -> float:
    _, causes = read_sentences(split_sentences(answer))
    return float(causes[:, cause_names().index(cause)].max(initial=0.0))


def _credited(talk: Sequence[Exchange], k: int) -> int:
    """The exchange whose reply the answer of exchange k follows: k itself or one of the two before."""
    options = [j for j in (k, k - 1, k - 2) if j >= 0 and talk[j].reply]
    vectors = embed([talk[k].answer, *(talk[j].reply for j in options)])
    near = vectors[1:] @ vectors[0]
    returns = bool(BACK.search(talk[k].answer))
    bonus = [AT_ONCE if j == k and not returns else COMES_BACK if j < k and returns else 0.0 for j in options]
    return options[int(np.argmax(near + bonus))]


def _is_small(reply: str) -> bool:
    return len(words(reply)) < 4 or set(name_acts(split_sentences(reply))) == {"small"}


def _reason(talk: Sequence[Exchange], j: int, k: int, change: float) -> str:
    act = ACT_WORDS[name_acts(split_sentences(talk[j].reply))[0]]
    when = "at once" if j == k else f"{k - j} turn{'s' if k - j > 1 else ''} later, when the seeker came back to it"
    return f"After {act} the seeker sounds {'better' if change > 0 else 'worse'} {when}, and it lasts."


def pivots(dialogue: Dialogue, min_change: float = MIN_CHANGE) -> list[tuple[float, PivotalTurn]]:
    """Every pivotal turn of one dialogue with the size of its change, largest first."""
    talk, level = exchanges(dialogue.turns), levels(dialogue)
    smooth = despike(level)
    changes = [0.0, *(lasting_change(smooth, k) for k in range(1, len(talk)))]
    for k in range(1, len(talk)):
        if abs(changes[k]) >= min_change and _fit(talk[k].answer, "news") > NEWS_CLEAR:
            changes[k] *= NEWS_SHARE
    best: dict[int, tuple[float, PivotalTurn]] = {}
    for k in _peaks(changes):
        change = changes[k]
        if abs(change) < min_change:
            continue
        j = _credited(talk, k)
        turn = talk[j].turn
        if _is_small(talk[j].reply) or abs(change) <= best.get(turn, (0.0, None))[0]:
            continue
        pivot = PivotalTurn(dialogue.id, turn, level[k - 1], level[k], _reason(talk, j, k, change))
        best[turn] = (abs(change), pivot)
    return sorted(best.values(), key=lambda found: (-found[0], found[1].turn))


def select(
    dialogues: Sequence[Dialogue], top: int | None = None, per_dialogue: int = 2, min_change: float = MIN_CHANGE
) -> list[PivotalTurn]:
    """The `top` largest changes overall, at most `per_dialogue` of each dialogue, in dialogue order."""
    english = [dialogue for dialogue in dialogues if readable(dialogue)]
    if len(english) < len(dialogues):
        log.warning("%d of %d dialogues are not English: not read", len(dialogues) - len(english), len(dialogues))
    found = [
        (size, number, pivot)
        for number, dialogue in enumerate(english)
        for size, pivot in pivots(dialogue, min_change)[:per_dialogue]
    ]
    kept = sorted(found, key=lambda item: (-item[0], item[1], item[2].turn))[:top]
    return [pivot for _, _, pivot in sorted(kept, key=lambda item: (item[1], item[2].turn))]


def histories_of(
    dialogues: Sequence[Dialogue], pivots: Sequence[PivotalTurn], count: int
) -> list[tuple[str, tuple[Turn, ...]]]:
    """(dialogue id, history) before each pivotal turn, then openings until there are `count`: words only.

    Every history ends with the seeker; a pivotal turn that opens its dialogue has none.
    """
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    found = [(pivot.dialogue_id, by_id[pivot.dialogue_id].history(pivot.turn)) for pivot in pivots]
    first = {d.id: next(i for i, turn in enumerate(d.turns) if turn.speaker == "seeker") for d in dialogues}
    openings = [(d.id, d.turns[: first[d.id] + 1]) for d in dialogues]
    known = [pair for pair in found if any(turn.speaker == "seeker" for turn in pair[1])]
    taken = {(name, len(history)) for name, history in known}
    known += [pair for pair in openings if (pair[0], len(pair[1])) not in taken][: max(0, count - len(known))]
    return [(name, tuple(Turn(turn.speaker, turn.text) for turn in history)) for name, history in known]
