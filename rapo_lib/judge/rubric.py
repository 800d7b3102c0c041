"""What a reply does, read from its text alone, and the best expert rubric we can make of it.

The rubric is the reaction-free judge: it rewards a specific reflection, an open question and warmth, and marks down
advice before understanding, stock phrases, cheering up, talk of oneself, repetition and length. A small linear model on
sentence embeddings, fitted on supporter sentences we wrote (data/rubric_acts.jsonl), names what each sentence does.
Order of helping skills after Hill (2009): explore before action. All numbers are ours.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rapo_lib.dialogue import Turn
from rapo_lib.encoder import embed
from rapo_lib.judge.reading import read_rows, ridge, split_sentences, words

PENALTY = 1.0  # ridge, ours
STOCK_NEAR = 0.6  # cosine, ours
MANY_WORDS = 60  # ours: a longer reply is a lecture
TOO_MANY_WORDS = 160  # ours: nobody reads this in a chat
QUESTION_WORTH = (1.0, 0.5, -0.5)  # ours: of a question alone, after none, one, two or more such turns in a row
ACTS = (
    "reflect",
    "question",
    "advise",
    "reassure",
    "inform",
    "disclose",
    "validate",
    "dismiss",
    "stock",
    "flatter",
    "small",
)
FUNCTION_WORDS = frozenset(
    """a about after all am an and any are as at be because been but by can could did do does don't for from had has
    have he her him his how i i'm if in is it it's its just me more my no not of on or our out she so some than that
    that's the their them then there they this to too up us was we were what when where which who why will with would
    you you're your""".split()
)
UNFINISHED = frozenset("a an and are as at because but for from if in is of on or that the to was with your".split())
ADVISE = re.compile(
    r"\b(you (just )?(should|could|might want)|you (just )?(need|have) to (?!deal|carry|go through|face|be |feel)"
    r"|have you (tried|considered|thought (of|about))"
    r"|why (don't|not)|how about|what about|i (suggest|recommend)|if i were you|it (would|might) (help|be good)"
    r"|maybe (try|ask|talk|call|write)|step (could|would) be)\b"
    r"|^(just |please )?(try|talk|go|make|write|take|ask|call|set|focus|stop|consider|start|forget|see|get|find|pick"
    r"|open|look) ",
    re.IGNORECASE,
)
OPEN = re.compile(
    r"^(and |so |but )?(what|how|when|where|who|which)\b.*\?$|tell me (more|about)|say (a bit |a little )?more",
    re.IGNORECASE,
)
WANTS_ADVICE = re.compile(
    r"what (should|can|could|do|would) (i|you)\b.{0,12}\b(do|suggest|advise)|any (advice|suggestions?|ideas|tips)"
    r"|\b(need|want|give me) (a plan|advice|something (concrete|practical)|options)|how (do|can|should) i\b|what now\b",
    re.IGNORECASE,
)
BOTH_SIDES = re.compile(r"(^|\n)\s*(seeker|user|supporter|assistant|human|ai)\s*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Traits:
    """What one reply does, each 0 to 1 where not said otherwise."""

    reflects: float  # says back, specifically, what this seeker said
    asks: float  # 1 open question, 0.5 closed one
    advises: float
    reassures: float
    informs: float
    discloses: float  # the supporter's own life
    validates: float
    dismisses: float
    flatters: float
    stock: float  # share of sentences that fit anybody
    relevance: float  # nearness to what the seeker said
    repeats: float  # says an earlier supporter turn again
    words: int
    fault: str  # "" or why it is no reply at all: "empty", "garbled", "foreign", "endless", "parrot", "both_sides"


def fault(history: Sequence[Turn], reply: str) -> str:
    """The one plain reason why this text cannot count as a reply, or ''."""
    said = words(reply)
    letters = sum(c.isalpha() for c in reply)
    if not reply.strip():
        return "empty"
    if letters and sum(c.isalpha() and not c.isascii() for c in reply) > 0.3 * letters:
        return "foreign"
    if not said or letters < 0.5 * len(reply.replace(" ", "")):
        return "garbled"
    if BOTH_SIDES.search(reply):
        return "both_sides"
    if len(said) > TOO_MANY_WORDS:
        return "endless"
    if len(said) >= 8 and (_pairs_again(said) > 0.3 or (said[-1] in UNFINISHED and reply.rstrip()[-1].isalpha())):
        return "garbled"
    if len(said) >= 6 and (_function_share(said) < 0.15 or len(set(said)) < 0.45 * min(len(said), 40)):
        return "garbled"
    seeker = [words(turn.text) for turn in history if turn.speaker == "seeker"]
    if len(said) >= 6 and any(_overlap(said, theirs) > 0.9 for theirs in seeker):
        return "parrot"
    return ""


def _function_share(said: Sequence[str]) -> float:
    return sum(word in FUNCTION_WORDS for word in said) / len(said)


def _pairs_again(said: Sequence[str]) -> float:
    """Share of neighbouring word pairs that the same text has had before."""
    pairs = list(zip(said, said[1:], strict=False))
    return 1 - len(set(pairs)) / len(pairs)


def _overlap(said: Sequence[str], earlier: Sequence[str]) -> float:
    """Share of word pairs of `said` that `earlier` has too."""
    pairs, known = list(zip(said, said[1:], strict=False)), set(zip(earlier, earlier[1:], strict=False))
    return sum(pair in known for pair in pairs) / len(pairs) if pairs else 0.0


def wants_advice(history: Sequence[Turn]) -> bool:
    """The seeker asked for something to do, in one of the last two turns."""
    return any(WANTS_ADVICE.search(turn.text) for turn in [t for t in history if t.speaker == "seeker"][-2:])


# ---------------------------------------------------------------------------------------------- acts


def _act_features(sentences: Sequence[str]) -> np.ndarray:
    cues = [
        [float(bool(ADVISE.search(s))), float(s.endswith("?")), float(bool(re.search(r"\b(i|my|me)\b", s, re.I))), 1.0]
        for s in sentences
    ]
    return np.hstack([embed(sentences), np.array(cues).reshape(len(sentences), 4)])


@cache
def _act_weights() -> np.ndarray:
    rows = read_rows("rubric_acts.jsonl")
    targets = np.array([[float(row["act"] == act) for act in ACTS] for row in rows])
    return ridge(_act_features([row["text"] for row in rows]), targets, PENALTY)


def name_acts(sentences: Sequence[str]) -> list[str]:
    """The act of each supporter sentence, one of ACTS; 'stock' only for one close to a known stock phrase."""
    if not sentences:
        return []
    fitted = _act_features(sentences) @ _act_weights()  # (n, acts)
    stock = [row["text"] for row in read_rows("rubric_acts.jsonl") if row["act"] == "stock"]
    far = (embed(sentences) @ embed(stock).T).max(1) < STOCK_NEAR
    fitted[far, ACTS.index("stock")] = -np.inf
    return [_corrected(sentence, ACTS[i]) for sentence, i in zip(sentences, fitted.argmax(1), strict=True)]


def _corrected(sentence: str, act: str) -> str:
    """Form settles advice and open questions: the embedding alone mistakes their topic for their act."""
    if OPEN.search(sentence) and not ADVISE.search(sentence):
        return act if act == "dismiss" else "question"
    if ADVISE.search(sentence):
        return act if act in ("dismiss", "advise") else "advise"
    if sentence.endswith("?"):
        return act if act in ("dismiss", "advise", "small") else "question"
    return "reflect" if act == "question" else act


def _traits(history: Sequence[Turn], reply: str, sentences: list[str], acts: list[str]) -> Traits:
    theirs = [s for turn in history if turn.speaker == "seeker" for s in split_sentences(turn.text)][-12:]
    earlier = [s for turn in history if turn.speaker == "supporter" for s in split_sentences(turn.text)]
    near = (embed(sentences) @ embed(theirs).T).max(1) if theirs and sentences else np.zeros(len(sentences))
    again = [max((_overlap(words(s), words(e)) for e in earlier), default=0.0) for s in sentences]
    specific = np.clip((near - 0.2) / 0.3, 0, 1)
    counts = {act: float(act in acts) for act in ACTS}
    mirrored = [x for x, act in zip(specific, acts, strict=True) if act in ("reflect", "validate")]
    asked = [1.0 if OPEN.search(s) else 0.5 for s, act in zip(sentences, acts, strict=True) if act == "question"]
    return Traits(
        reflects=float(max(mirrored, default=0.0)),
        asks=max(asked, default=0.0),
        advises=counts["advise"],
        reassures=counts["reassure"],
        informs=counts["inform"],
        discloses=counts["disclose"],
        validates=counts["validate"],
        dismisses=counts["dismiss"],
        flatters=counts["flatter"],
        stock=acts.count("stock") / len(acts) if acts else 0.0,
        relevance=float(specific.max(initial=0.0)),
        repeats=max(again, default=0.0),
        words=len(words(reply)),
        fault=fault(history, reply),
    )


def read_replies(items: Sequence[tuple[Sequence[Turn], str]]) -> list[Traits]:
    """What each reply does, given its history."""
    parts = [split_sentences(reply) for _, reply in items]
    embed([s for part in parts for s in part] + [s for h, _ in items for t in h for s in split_sentences(t.text)])
    return [_traits(history, reply, part, name_acts(part)) for (history, reply), part in zip(items, parts, strict=True)]


def understood_before(history: Sequence[Turn]) -> bool:
    """An earlier supporter turn reflected or asked an open question, so that advice is no longer early."""
    spoken = [s for turn in history if turn.speaker == "supporter" for s in split_sentences(turn.text)]
    return any(
        act == "reflect" or (act == "question" and OPEN.search(s))
        for s, act in zip(spoken, name_acts(spoken), strict=True)
    )


def questions_before(history: Sequence[Turn]) -> int:
    """How many of the latest supporter turns in a row asked and gave nothing back: the question-answer trap."""
    count = 0
    for turn in reversed([turn for turn in history if turn.speaker == "supporter"]):
        acts = set(name_acts(split_sentences(turn.text)))
        if "question" not in acts or acts & {"reflect", "validate"}:
            break
        count += 1
    return count


def rubric_score(history: Sequence[Turn], traits: Traits) -> float:
    """The expert's mark, -1 to 1 (ours): explore and reflect first, then act; never empty, stock or endless.

    A further question after questions alone is worth less and then does harm (the question-answer trap of
    motivational interviewing, Miller and Rollnick).
    """
    if traits.fault:
        return -1.0
    wanted = wants_advice(history)
    advice = 1.0 if wanted else (0.2 if understood_before(history) else -0.9)
    trap = 0 if traits.reflects > 0.3 or traits.validates else min(questions_before(history), len(QUESTION_WORTH) - 1)
    mark = (
        0.9 * traits.reflects
        + (0.3 if wanted else 0.6) * QUESTION_WORTH[trap] * traits.asks
        + 0.4 * traits.validates
        + 0.8 * traits.relevance
        + advice * traits.advises
        - 1.2 * traits.dismisses
        - 0.7 * traits.stock
        - 0.4 * traits.reassures
        - 0.4 * traits.discloses
        - 0.5 * traits.flatters
        - 0.8 * traits.repeats
        - 0.02 * max(0, traits.words - MANY_WORDS)
        - 0.15 * max(0, 5 - traits.words)
    )
    return float(np.tanh(mark - 0.7))
