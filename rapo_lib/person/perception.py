"""What a reply does, as the person who hears it perceives it, and why it may not count as a reply at all.

Three real models do the hearing: sentence embeddings (`encoder`), a reply-act classifier (`acts`) and the untouched
language model's fluency (`fluency`). The rules that join them, and every number here, are ours. Fluency is a one-sided
gate, never a reward for bland text.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from rapo_lib.dialogue import Turn
from rapo_lib.encoder import embed
from rapo_lib.fluency import fluency_batch
from rapo_lib.person.acts import ACTS, act_probabilities, examples

__all__ = ["Perception", "fluency_batch", "perceive_batch", "split_sentences"]

# Mean token log-probability: the 5th percentile of 160 human supporter turns (ESConv validation and FailedESConv) is
# -6.0 at six words or more, and -12.8 below that.
FLUENT = -6.5  # six words or more; half a nat of grace, so that a rare name is no garble
FLUENT_SHORT = -12.8  # fewer words: "Bye!" is a surprising thing to begin with
LONG = 90  # words
REMEMBERED = 20_000  # perceptions kept in memory
# Specificity is the probability that a sentence belongs to this history and not to another person's: a logistic
# regression on the warm-start pairs (own history against moved ones and stock phrases; AUC 0.87).
NEAREST, WHOLE, GENERIC, SHARED, OFFSET = 3.5, 3.8, -1.0, 2.2, -2.6

TAG = re.compile(
    r"(?:^|[\n.!?\"”]\s*)[*_\[(]*(user|seeker|me|you|supporter|assistant|human|client|therapist|counsell?or|listener"
    r"|helper|patient|ai|bot|system|friend|speaker|person [ab12])[*_\])]*\s*:",
    re.IGNORECASE,
)
INJECTION = re.compile(
    r"\b\d+\s*(/|out of)\s*(5|10|100)\b|\b(the|this) (user|seeker|client|simulator|judge)('s)?\b|system prompt"
    r"|\b(ignore|disregard|forget) .{0,30}\b(instruction|prompt|rule)s?\b|\b(emotion|mood|feeling"
    r"|empathy)s?( is| are|'s)?"
    r"( now)? (score|level|rating|value|point|number|index|at \d|to \d|= ?\d|\d)|\bset .{0,20}\b(emotion|mood)\b"
    r"|\b(give|rate|score|rank) (me|this|my|it)\b.{0,25}\b(high|top|best|full|max|first|score|star|point"
    r"|response|reply)"
    r"|\b(highest|maximum|full|perfect|top) (score|reward|rating|marks|points)\b|<\|?[a-z_/]+\|?>"
    r"|\[/?inst\]|\breward model\b"
    r"|\bas an ai\b|\blanguage model\b|\bemotion\s*[:=]",
    re.IGNORECASE,
)
ANSWER = re.compile(
    r"^\W*(yes|no|yeah|nope|well,? i|because i|i'm|i am|i feel|i don't|he left me|my )\b", re.IGNORECASE
)
FUNCTION_WORDS = frozenset(
    "a about after all am an and any are as at be because been but by can could did do does don't for"
    " from get go had has have"
    " he her here him his how i i'm if in into is it it's its just let like may me might more my no not"
    " now of on one or our out"
    " she should so some sounds than that that's the their them then there they this to too try up us"
    " very was we were what"
    " when where which who why will with would you you'd you'll you're you've your it'll i'd i've"
    " there's didn't isn't"
    " doesn't can't won't what's he's she's they're wasn't".split()
)
DANGLING = frozenset(
    "a an and are as at because but by for from if in is of on or so than that the their they this to was were what"
    " when where which who why will with would your you're i'm i".split()
)
STAMMER = 2  # triples of words said again within one reply; 2 % of human supporter turns have as many
FOREIGN_WORDS = frozenset(
    "der das und ist nicht ich du mir dir wie geht sie es ein eine mit auf zu für auch bin bist sehr le"
    " la les est pas vous je"
    " tu une et que qui dans pour avec très el los las por qué está estoy muy como pero con una usted lo"
    " siento il che di sono"
    " sei mi ti per molto non het een niet ik jij met van zijn voor não você eu uma com muito estou jest"
    " nie się och att jag"
    " är inte det som på för med".split()
)
TOO_PLAIN = frozenset(
    "anything anyone done everything everyone feel feeling feelings feels felt get getting hard know"
    " like make makes maybe"
    " much nothing perhaps really right said same seem seems something sometimes sorry sound sounds"
    " still talk tell thing"
    " things think thinking time today tough want way".split()
)
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
MIRROR = {"i": "you", "me": "you", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "was": "were"}
MIRROR |= {"i'm": "you're", "i've": "you've", "i'd": "you'd", "i'll": "you'll"}


@dataclass(frozen=True, slots=True)
class Perception:
    """What one reply does, each 0-1, and the fault, if any, that keeps it from being taken as a reply."""

    understands: float  # reflects, specifically, what this seeker said; not parroting
    asks: float  # an open question that fits
    suggests: float  # tells the seeker what to do
    informs: float  # gives information
    reassures: float  # "it will get better", "you've got this"
    discloses: float  # the supporter's own experience
    validates: float  # says that the feeling makes sense, or values the effort
    dismisses: float  # judges, belittles, blames
    stock: float  # share of the words that are stock phrase
    relevance: float  # about what this seeker said
    repeats: float  # says again what an earlier supporter turn said
    fault: str  # "", or the first of the reasons below


Item = tuple[Sequence[Turn], str]
Key = tuple[tuple[tuple[str, str], ...], str]
_memory: dict[Key, Perception] = {}


# ------------------------------------------------------------------------------------------------ words


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, end marks kept."""
    return [part.strip() for part in re.split(r"(?<=[.!?])[\"'”]?\s+|\n+", text.strip()) if WORD.search(part)]


def words_of(text: str) -> list[str]:
    """Lower-cased words; a typographic apostrophe is read as a plain one."""
    return [word.lower().replace("’", "'") for word in WORD.findall(text)]


def stem(word: str) -> str:
    """A word without its commonest endings: "waited", "waiting" and "waits" become "wait"."""
    for ending in ("'s", "ing", "ed", "es", "s", "ly", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def content(text: str) -> frozenset[str]:
    """Stems of the words that carry what a text is about."""
    plain = FUNCTION_WORDS | TOO_PLAIN
    return frozenset(stem(word) for word in words_of(text) if len(word) > 2 and word not in plain)


def copied_share(text: str, source: str, run: int = 4) -> float:
    """Share of the words of `text` inside runs of `run` or more words found in `source`, "my" and"
    " "your" taken as one."""
    mine, theirs = ([MIRROR.get(w, w) for w in words_of(t)] for t in (text, source))
    run = min(run, max(len(mine), 1))
    known = {tuple(theirs[i : i + run]) for i in range(len(theirs) - run + 1)}
    covered = {
        place + step
        for place in range(len(mine) - run + 1)
        if tuple(mine[place : place + run]) in known
        for step in range(run)
    }
    return len(covered) / len(mine) if mine else 0.0


# ---------------------------------------------------------------------------------------- what it is about


@cache
def generic_distress() -> np.ndarray:
    """Embeddings of distress without a story, the background that anything sad resembles."""
    sentences, labels = examples()
    return embed([s for s, label in zip(sentences, labels, strict=True) if ACTS[label] == "distress"])


@cache
def stock_phrases() -> np.ndarray:
    """Embeddings of the phrases that everybody has heard."""
    lines = (resources.files("rapo_lib") / "data" / "stock.txt").read_text("utf-8").splitlines()
    return embed([line for line in lines if line])


def said_by(history: Sequence[Turn], speaker: str) -> list[str]:
    """What one of the two has said so far."""
    return [turn.text for turn in history if turn.speaker == speaker]


def specificity(sentences: Sequence[str], said: Sequence[str]) -> np.ndarray:
    """How surely each sentence belongs to what this seeker said, and not to another person's story, shape (n,)."""
    parts = [part for text in said for part in split_sentences(text)]
    if not parts:
        return np.full(len(sentences), 0.5)
    whole = " ".join(said[-3:])
    mine = embed(sentences)  # (n, D)
    nearest = (mine @ embed(parts).T).max(1)
    generic = np.sort(mine @ generic_distress().T, axis=1)[:, -3:].mean(1)
    known = content(" ".join(said))
    shared = np.array([min(len(content(sentence) & known), 2) / 2 for sentence in sentences])
    z = NEAREST * nearest + WHOLE * (mine @ embed([whole])[0]) + GENERIC * generic + SHARED * shared + OFFSET
    return 1 / (1 + np.exp(-z))


def stock_share(sentences: Sequence[str], acts: np.ndarray, own: np.ndarray) -> float:
    """Share of the words in sentences that are a stock phrase or nearly one, and name nothing of this story."""
    nearness = (embed(sentences) @ stock_phrases().T).max(1)
    phrase = np.clip((nearness - 0.6) / 0.25, 0, 1)
    heard = np.maximum(phrase, acts[:, ACTS.index("stock")]) * np.clip(1.3 - own, 0, 1)
    lengths = np.array([len(words_of(sentence)) for sentence in sentences])
    return float(np.clip(heard, 0, 1) @ lengths / lengths.sum())


def repetition(sentences: Sequence[str], earlier: Sequence[str]) -> float:
    """How much of a reply an earlier supporter turn has said, by wording or by meaning, weighed by length."""
    old = [part for text in earlier for part in split_sentences(text)]
    if not old:
        return 0.0
    same = np.clip(((embed(sentences) @ embed(old).T).max(1) - 0.55) / 0.35, 0, 1)
    copied = np.array([copied_share(sentence, " ".join(earlier)) for sentence in sentences])
    lengths = np.array([len(words_of(sentence)) for sentence in sentences])
    return float(np.maximum(same, copied) @ lengths / lengths.sum())


# ------------------------------------------------------------------------------------------------ faults


def surface_fault(reply: str, said: Sequence[str]) -> str:
    """A fault that can be seen without a model, or ""."""
    pictures = sum(unicodedata.category(mark) in ("So", "Sk") for mark in reply)
    words = words_of(reply)
    letters = [mark for mark in reply if mark.isalpha()]
    if not reply.strip():
        return "empty"
    if pictures >= 4 or pictures > len(words):
        return "emoji"
    if not letters:
        return "empty"
    if sum(not mark.isascii() for mark in letters) > 0.25 * len(letters) or is_foreign(words):
        return "language"
    if INJECTION.search(reply):
        return "injection"
    if TAG.search(reply):
        return "both_sides"
    if len(words) > LONG:
        return "too_long"
    if len(words) >= 4 and max((copied_share(reply, text) for text in said), default=0.0) >= 0.75:
        return "parrot"
    return "garbled" if is_soup(reply) else ""


def is_foreign(words: Sequence[str]) -> bool:
    """True if more words are common in other languages than in English."""
    foreign = sum(word in FOREIGN_WORDS for word in words)
    return foreign >= 2 and foreign > sum(word in FUNCTION_WORDS for word in words)


def is_soup(reply: str) -> bool:
    """Words without a sentence: hardly any function words, a few words over and over, or letters without words."""
    words = words_of(reply)
    if not words:
        return True
    if max(map(len, words)) > 24 or sum(not re.search("[aeiouy]", word) for word in words) > 0.4 * len(words) > 1:
        return True
    glue = sum(word in FUNCTION_WORDS for word in words)
    repeated = any(a == b == c for a, b, c in zip(words, words[1:], words[2:], strict=False))
    triples = list(zip(words, words[1:], words[2:], strict=False))
    if len(triples) - len(set(triples)) >= STAMMER or breaks_off(reply, words):
        return True
    return repeated or (len(words) >= 6 and (glue < 0.2 * len(words) or len(set(words)) < 0.5 * len(words)))


def breaks_off(reply: str, words: Sequence[str]) -> bool:
    """A long sentence that stops at a word which cannot end one: "... so that you are the"."""
    return len(words) >= 8 and words[-1] in DANGLING and bool(WORD.search(reply.rstrip()[-1:]))


def answers_itself(sentences: Sequence[str], acts: np.ndarray) -> bool:
    """A question, and then the seeker's answer to it in the same breath."""
    distress, told = acts[:, ACTS.index("distress")], acts[:, ACTS.index("disclosure")]
    return any(
        before.endswith("?") and ANSWER.match(sentence) and (distress[place] > 0.3 or distress[place] > told[place])
        for place, (before, sentence) in enumerate(zip(sentences, sentences[1:], strict=False), start=1)
    )


def heard_fault(sentences: Sequence[str], acts: np.ndarray, own: np.ndarray, fluency: float) -> str:
    """A fault that takes understanding to notice, or ""."""
    p = dict(zip(ACTS, acts.T, strict=True))
    lengths = np.array([len(words_of(sentence)) for sentence in sentences])
    share = lengths / lengths.sum()
    if answers_itself(sentences, acts):
        return "both_sides"
    if fluency < (FLUENT if lengths.sum() >= 6 else FLUENT_SHORT):
        return "garbled"
    first_person = np.array(
        [bool(re.search(r"\b(i|i'm|i've|my|me)\b", s.lower().replace("’", "'"))) for s in sentences]
    )
    if ((p["distress"] > 0.5) & first_person & (p["disclosure"] < 0.35)) @ share >= 0.3:
        return "role_reversal"
    if (p["flattery"] > 0.5) @ share > 0.6 and own.max() < 0.6:
        return "flattery"
    idle = (p["other"] + p["information"]) @ share
    asks = (p["question_open"] + p["question_closed"]).max() > 0.5
    lost = own.max() < 0.075 + 0.1 * idle
    return "off_topic" if lost and lengths.sum() >= 5 and not (asks and lengths.sum() <= 12) else ""


# -------------------------------------------------------------------------------------------- perceiving


def faulty(fault: str, repeats: float = 0.0) -> Perception:
    """A reply that cannot be taken as one does nothing else."""
    return Perception(**dict.fromkeys(ACT_FIELDS, 0.0), stock=0.0, relevance=0.0, repeats=repeats, fault=fault)


ACT_FIELDS = ("understands", "asks", "suggests", "informs", "reassures", "discloses", "validates", "dismisses")


def perceive(history: Sequence[Turn], reply: str, fluency: float) -> Perception:
    """One reply that passed the surface gates, heard after this history."""
    said, sentences = said_by(history, "seeker"), split_sentences(reply)
    acts = act_probabilities(sentences)
    own = specificity(sentences, said)
    known = np.clip((own - 0.15) / 0.75, 0, 1)
    judges = acts.argmax(1) == ACTS.index("dismissal")
    acts[:, ACTS.index("reflection")] *= 1 + 4 * known * ~judges  # to speak of this story is what makes a reflection
    acts /= acts.sum(1, keepdims=True)
    repeats = round(repetition(sentences, said_by(history, "supporter")), 3)
    if fault := heard_fault(sentences, acts, own, fluency):
        return faulty(fault, repeats)
    p = dict(zip(ACTS, acts.T, strict=True))
    copied = np.array([max((copied_share(s, text) for text in said), default=0.0) for s in sentences])
    mirrors = p["reflection"] + p["validation"] + 0.2 * p["question_closed"] * (own > 0.5)
    found = {
        "understands": mirrors * known * (1 - np.clip((copied - 0.4) / 0.4, 0, 1)),
        "asks": p["question_open"] * (0.5 + 0.5 * known),
        "suggests": p["suggestion"],
        "informs": p["information"],
        "reassures": p["reassurance"] + 0.5 * p["stock"],
        "discloses": p["disclosure"],
        "validates": p["validation"] + 0.3 * p["stock"],
        "dismisses": p["dismissal"],
    }
    whole = specificity([reply], said)[0] if len(sentences) > 1 else 0.0
    return Perception(
        **{name: round(float(min(value.max(), 1.0)), 3) for name, value in found.items()},
        stock=round(stock_share(sentences, acts, own), 3),
        relevance=round(float(max(own.max(), whole)), 3),
        repeats=repeats,
        fault="",
    )


def perceive_batch(items: Sequence[Item]) -> list[Perception]:
    """What each (history, reply) does; the models are called once for all of them."""
    keys = [(tuple((turn.speaker, turn.text) for turn in history), reply) for history, reply in items]
    if len(_memory) + len(keys) > REMEMBERED:
        _memory.clear()
    new = {key: item for key, item in zip(keys, items, strict=True) if key not in _memory}
    faults = {key: surface_fault(reply, said_by(history, "seeker")) for key, (history, reply) in new.items()}
    _memory.update({key: faulty(fault) for key, fault in faults.items() if fault})
    whole = [key for key, fault in faults.items() if not fault]
    embed([part for key in whole for part in texts_to_embed(*new[key])])  # one batch, remembered by the encoder
    for key, fluency in zip(whole, fluency_batch([key[1] for key in whole]), strict=True):
        _memory[key] = perceive(*new[key], float(fluency))
    return [_memory[key] for key in keys]


def texts_to_embed(history: Sequence[Turn], reply: str) -> list[str]:
    """Every text whose embedding the perception of this reply needs."""
    said = said_by(history, "seeker")
    sentences = [part for text in (reply, *(turn.text for turn in history)) for part in split_sentences(text)]
    return [*sentences, " ".join(said[-3:]), reply]
