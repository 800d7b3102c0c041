"""Reading what a seeker says, as a stranger would: how much better or worse the person sounds, and why.

Two things are read from each sentence. A linear model on its embedding, its words and word pairs, and a few cues,
fitted on short reactions we wrote (data/reading.jsonl), says how the person sounds (-1 to 1) and what the sentence is
about: the supporter's reply (felt understood, advice too early, ...) or their own story, news, small talk. A reaction
mostly has two parts, the answer to the reply and then more story; a sad story told to someone who listens is no
complaint, so sentences that answer the supporter weigh more. All weights and cues are ours. Nothing here knows the
simulated seeker.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise

import numpy as np

from rapo_lib.dialogue import Turn
from rapo_lib.encoder import embed, embed_middle

Items = Sequence[tuple[Sequence[Turn], str, str]]  # (history, reply, reaction)

PENALTY = 4.0  # ridge, ours: best of 2, 3, 4, 6, 8 by leave-one-out on our own sentences
MIDDLE_WEIGHT = 2.0  # ours: tone beside topic; 1 to 3 do much the same
COMMON = 3  # ours: sentences of our own that a word or a pair of words must be in to count
STRETCH = 2.0  # undoes the ridge's shrinkage
ABOUT_LIFE = ("story", "news", "smalltalk")  # causes that lie outside the reply
STORY_WEIGHT = 0.15  # ours: what a sentence of pure story counts beside an answer to the reply
FADE = 0.75  # ours: each later sentence of a reaction is less about the reply
OPENING_WEIGHT = 0.05  # ours: most that saying more than usual can add; little, for the unheard go on at length too
NEGATIONS = frozenset(
    """not no never don't doesn't didn't isn't wasn't won't can't cannot couldn't nobody nothing hardly
    without less""".split()
)
GOOD = frozenset(
    """appreciate appreciated better breathe calm calmer comfort doable easier encouraging fine free glad good
    grateful great happy heard helped helpful helps hope hopeful kind laugh lighter nice peace proud relief relieved
    right safe seen smile smiled support supported thank thanks true trust understood useful warm wonderful""".split()
)
OPENER = re.compile(  # ways of starting that say nothing about the reply
    r"^(to be (honest|frank|candid|fair|plain)|honestly|frankly|apparently|truth be told|i mean|so|well|okay|right|and"
    r"|i'd say|i would say|i (must|have to) (say|admit)|i regret to say( that)?|i find( that)?|it seems to me( that)?"
    r"|it's just( that)?|the (thing|trouble) is|not to [a-z ]{3,20}, but|i don't (want|mean) to [a-z ]{3,25}, but"
    r"|if (you ask me|i may say so|you don't mind)|just a thought|with respect|sorry, but|i guess|i suppose|i think)"
    r"\b[,: ]+(?=\w+ \w)",
    re.IGNORECASE,
)
BAD = frozenset(
    """afraid alone angry annoying anxious ashamed awful bad broken crazy cry crying depressed difficult fail failed
    fault frustrated frustrating generic guilty hard hate hopeless horrible hurt hurtful insulting judged judging
    lecture lonely lost nonsense painful panic platitudes pointless sad scared sick stuck stupid terrible tired
    useless worried worse worst worthless wrong""".split()
)
CUES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(thank you|thanks|appreciate|grateful)\b(?!,? (i guess|a lot, really|for making|for nothing))",
        r"^((oh|wow|well|huh|okay),? )?(yes|yeah|yep|exactly|right|true|correct|that('s| is) (it|right|true|exactly))"
        r"\b",
        r"^((hm|um|well),? )?(no\b|not really|not quite|nope)",
        r"\byou (don't|do not|didn't|did not|aren't|weren't|never|keep|already|sound|missed|jumped|skipped|moved on)\b"
        r"|\byou (make|made) it|\byou're (not (?!far|wrong)|judging|making)|\bdid you (even|copy)",
        r"\b(never ?mind|forget (it|i)|whatever|leave it|i'm (done|fine)|it's fine|bye|what's the point|going to go"
        r"|shouldn't have said|something else|not helping|doesn't help|useless)\b",
        r"never told|honest|the truth is|there's (more|another)|haven't said|tell you the rest|don't usually"
        r"|nobody (ever )?(asked|told|has)|when you (ask|say|put)|since you ask|good question|think about that",
        r"^(oh,? great|great|wow|sure|right)[,.] (?!i|that)|\bvery helpful\b|, really\.$|\bas if\b",
        r"\b(i guess|i suppose|maybe|perhaps|if you say so)\b",
        r"\bi (need|wanted|want|was hoping|had hoped|wish|asked)\b|\bi'd (like|rather)\b",
        r"\b(gets it|you (really )?(see|understand|understood|get|got|noticed|nailed)|were listening"
        r"|feels? (heard|seen|understood|lighter|better|easier))\b",
        r"\b(i'll|i will|i could|i can) (try|do|call|write|start|talk|ask|give)|might work|worth a try|good idea",
        r"\balready|again\b|we've been|same (thing|line)|repeat",
        r"^(what|huh|er|why|where|how)\b[^.]*\?",
        r"\bjust (called|heard|got|texted|wrote|phoned|came)\b",
    )
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reaction says about the reply before it."""

    relief: float  # -1 much worse to 1 much better
    causes: dict[str, float]  # how well each cause of data/reading.jsonl fits, about 0 to 1
    empty: bool  # nothing was said


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order."""
    return [part.strip() for part in re.split(r"(?<=[.!?…])[\"')]*\s+|\n+", text.strip()) if part.strip()]


def words(text: str) -> list[str]:
    """Lower-case words, straight apostrophes."""
    return re.findall(r"[a-z]+(?:'[a-z]+)*", text.lower().replace("’", "'"))


def read_rows(name: str) -> list[dict]:
    """The records of one of our data files."""
    source = resources.files("rapo_lib") / "data" / name
    return [json.loads(line) for line in source.read_text("utf-8").splitlines() if line]


def ridge(features: np.ndarray, targets: np.ndarray, penalty: float) -> np.ndarray:
    """W = (X'X + penalty I)^-1 X'Y: features (n, d), targets (n, k), returns (d, k)."""
    n, d = features.shape
    if n < d:  # the same by the smaller system, X'(XX' + penalty I)^-1 Y
        return features.T @ np.linalg.solve(features @ features.T + penalty * np.eye(n), targets)
    return np.linalg.solve(features.T @ features + penalty * np.eye(d), features.T @ targets)


# ---------------------------------------------------------------------------------------------- sentences


def polarity(text: str) -> float:
    """Signed count of good and bad words, a negation among the three words before turns one round; -1 to 1."""
    tokens, total = words(text), 0.0
    for i, word in enumerate(tokens):
        value = (word in GOOD) - (word in BAD)
        total += -0.7 * value if value and NEGATIONS & set(tokens[max(0, i - 3) : i]) else value
    return total / (total**2 + 4.0) ** 0.5


def without_opener(sentence: str) -> str:
    """The sentence without 'To be honest,' and the like, at most two of them."""
    for _ in range(2):
        sentence = OPENER.sub("", sentence)
    return sentence[:1].upper() + sentence[1:]


def _terms(sentence: str) -> set[str]:
    """The words of a sentence and each pair of neighbours, its start and end counted as words."""
    marks = [mark for mark in "?!" if mark in sentence]
    row = ["<", *words(sentence), *marks, ">"]
    return {*row[1:-1], *(f"{a} {b}" for a, b in pairwise(row))}


@cache
def _vocabulary() -> dict[str, int]:
    rows = read_rows("reading.jsonl")
    counts = Counter(term for row in rows for term in _terms(without_opener(row["text"])))
    return {term: i for i, term in enumerate(sorted(term for term, count in counts.items() if count >= COMMON))}


def _word_features(sentences: Sequence[str]) -> np.ndarray:
    """Which known words and pairs each sentence has, scaled to length 1: (n, V)."""
    bag = np.zeros((len(sentences), len(_vocabulary())))
    for row, sentence in zip(bag, sentences, strict=True):
        row[[_vocabulary()[term] for term in _terms(sentence) if term in _vocabulary()]] = 1.0
    return bag / np.maximum(np.linalg.norm(bag, axis=1, keepdims=True), 1.0)


def features(sentences: Sequence[str]) -> np.ndarray:
    """Embedding, words, polarity and cues of each sentence, and a constant: (n, d)."""
    plain = [without_opener(sentence.replace("’", "'")) for sentence in sentences]
    cues = np.array([[polarity(s), *(float(bool(cue.search(s))) for cue in CUES), 1.0] for s in plain])
    tone = MIDDLE_WEIGHT * embed_middle(plain)
    return np.hstack([embed(plain), tone, _word_features(plain), cues.reshape(len(plain), -1)])


@cache
def cause_names() -> tuple[str, ...]:
    """Every cause in our sentences, sorted."""
    return tuple(sorted({row["cause"] for row in read_rows("reading.jsonl")}))


@cache
def _weights() -> np.ndarray:
    rows = read_rows("reading.jsonl")
    relief = np.array([[row["relief"] / 2] for row in rows])  # (n, 1)
    causes = np.array([[float(row["cause"] == name) for name in cause_names()] for row in rows])  # (n, K)
    return ridge(features([row["text"] for row in rows]), np.hstack([relief, causes]), PENALTY)


@cache
def _mean_relief() -> np.ndarray:
    """How people sound, on average, for each cause (K,)."""
    rows = read_rows("reading.jsonl")
    return np.array([np.mean([row["relief"] / 2 for row in rows if row["cause"] == name]) for name in cause_names()])


def read_sentences(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """How each sentence sounds (n,), -1 to 1, and how well each cause fits it (n, K), 0 to 1.

    The sound is the mean of the fitted value and of what people sound like for the causes that fit.
    """
    if not sentences:
        return np.empty(0), np.empty((0, len(cause_names())))
    fitted = features(sentences) @ _weights()  # (n, 1 + K)
    causes = np.clip(fitted[:, 1:], 0, 1)
    by_cause = causes**2 @ _mean_relief() / ((causes**2).sum(1) + 1e-6)
    return np.clip((STRETCH * fitted[:, 0] + by_cause) / 2, -1, 1), causes


# ---------------------------------------------------------------------------------------------- reactions


def _life_columns() -> list[int]:
    return [cause_names().index(name) for name in ABOUT_LIFE]


def _answer_shares(causes: np.ndarray) -> np.ndarray:
    """How far each sentence of one reaction answers the reply rather than tells the story: (n,), STORY_WEIGHT to 1."""
    life = causes[:, _life_columns()].max(1)
    answers = np.delete(causes, _life_columns(), axis=1).max(1)
    return STORY_WEIGHT + (1 - STORY_WEIGHT) * answers**2 / (answers**2 + life**2 + 1e-6)


def _opening(history: Sequence[Turn], reaction: str) -> float:
    """Says more (1) or less (-1) than the seeker's turns before, on average."""
    usual = [len(words(turn.text)) for turn in history if turn.speaker == "seeker"]
    said, mean = len(words(reaction)), sum(usual) / len(usual) if usual else 15.0
    return float(np.tanh(np.log((said + 5) / (mean + 5))))


def _read_one(history: Sequence[Turn], reaction: str, relief: np.ndarray, causes: np.ndarray) -> Reading:
    if not len(relief):
        return Reading(0.0, {}, True)
    shares = _answer_shares(causes)
    weights = shares * FADE ** np.arange(len(shares))
    weights /= weights.sum()
    total = float(shares.max() * (weights @ relief)) + OPENING_WEIGHT * _opening(history, reaction)
    fitting = dict(zip(cause_names(), (weights @ causes).tolist(), strict=True))
    return Reading(float(np.clip(total, -1, 1)), fitting, False)


def read_batch(items: Items) -> list[Reading]:
    """Read each reaction; one embedding call for all of them."""
    parts = [split_sentences(reaction) if words(reaction) else [] for _, _, reaction in items]
    relief, causes = read_sentences([sentence for part in parts for sentence in part])
    readings, start = [], 0
    for (history, _, reaction), part in zip(items, parts, strict=True):
        end = start + len(part)
        readings.append(_read_one(history, reaction, relief[start:end], causes[start:end]))
        start = end
    return readings


def read_relief(history: Sequence[Turn], reply: str, reaction: str) -> float:
    """How much better (to 1) or worse (to -1) the person sounds after the reply."""
    return read_batch([(history, reply, reaction)])[0].relief


def sound(texts: Sequence[str]) -> np.ndarray:
    """How the person sounds in each text, all sentences alike: (n,), -1 to 1; 0 where nothing is said."""
    parts = [split_sentences(text) for text in texts]
    relief, _ = read_sentences([sentence for part in parts for sentence in part])
    ends = np.cumsum([len(part) for part in parts])
    return np.array(
        [relief[end - len(part) : end].mean() if part else 0.0 for part, end in zip(parts, ends, strict=True)]
    )
