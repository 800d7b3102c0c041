"""Thoughts: what the policy writes between `<think>` and `</think>` before it replies, and the border they never cross.

That a reply follows explicit reasoning is in RLFF-ESC's abstract; its form is not public. Ours is one short line in one
pair of tags, then the reply. Everything that reads replies (seeker, critic, judge, reward model, evaluation, later
prompts) gets `spoken(text)` and nothing else. Reading is strict where it counts: what might be thought is thought, so a
badly formed text may lose its reply but never shows its reasoning.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from rapo_lib.dialogue import SeekerProfile, Turn
from rapo_lib.evaluation import Policy
from rapo_lib.seeker import Item, Reaction, Seeker
from rapo_lib.warmstart import warmstart_pairs

OPEN, CLOSE = "<think>", "</think>"
# any case and spacing, attributes, a missing ">"; "<thinker>" is a word
TAG = re.compile(r"<\s*(/?)\s*think(?:ing)?(?:\s[^<>]*>|\s*/?\s*>|(?![a-z]))", re.IGNORECASE)
CUT_TAG = re.compile(r"<\s*/?\s*(?:t|th|thi|thin|thinki|thinkin)?\s*$", re.IGNORECASE)  # the text ended inside a tag
FORM = re.compile(rf"\s*{OPEN}(.*?){CLOSE}(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Said:
    """What a policy wrote, taken apart."""

    thought: str
    reply: str  # what others may see; "" if there is none
    well_formed: bool  # `<think> thought </think> reply`, both there, no other tag


def take_apart(text: str) -> Said:
    """Thought and reply of what the policy wrote; no text is too broken.

    Nested thoughts are one thought, several are joined. A closing tag without its opening one makes everything before
    it a thought (a chat template may have written the opening); an unclosed one lasts to the end.
    """
    thoughts, reply = _by_depth(CUT_TAG.sub("", text))
    while TAG.search(reply) or CUT_TAG.search(reply):  # pieces of a broken tag that came together
        more, reply = _by_depth(CUT_TAG.sub("", reply))
        thoughts += more
    thought = " ".join(part for part in thoughts if part)
    return Said(thought, reply, _is_well_formed(text))


def _by_depth(text: str) -> tuple[list[str], str]:
    """The pieces inside tags, and what stands outside."""
    inside, outside = [], []
    depth = start = 0
    for tag in TAG.finditer(text):
        piece = text[start : tag.start()].strip()
        if tag[1] and depth == 0:  # nothing was opened: all so far was thought
            inside, outside = [*inside, *outside, piece], []
        else:
            (inside if depth else outside).append(piece)
            depth += -1 if tag[1] else 1
        start = tag.end()
    (inside if depth else outside).append(text[start:].strip())
    return inside, " ".join(piece for piece in outside if piece)


def _is_well_formed(text: str) -> bool:
    found = FORM.fullmatch(text)
    if found is None or len(TAG.findall(text)) != 2 or CUT_TAG.search(text):
        return False
    return bool(found[1].strip()) and bool(found[2].strip())


def spoken(text: str) -> str:
    """The reply without its reasoning: the one function that stands at every border."""
    return take_apart(text).reply


def written(thought: str, reply: str) -> str:
    """The well-formed text of a thought and a reply."""
    return f"{OPEN} {thought} {CLOSE} {reply}"


# ------------------------------------------------------------------------------------------- our thoughts


@dataclass(frozen=True, slots=True)
class Example:
    """One of our thoughts, with the history it is about and the reply it leads to."""

    history: tuple[Turn, ...]
    thought: str
    reply: str


@cache
def thought_examples() -> tuple[Example, ...]:
    """The shipped thoughts (data/thoughts.jsonl), each joined to its warm-start dialogue by the reply."""
    text = (resources.files("rapo_lib") / "data" / "thoughts.jsonl").read_text("utf-8")
    records = [json.loads(line) for line in text.splitlines() if line]
    histories = {reply: history for history, reply in warmstart_pairs()}
    return tuple(Example(histories[r["reply"]], r["thought"], r["reply"]) for r in records)


# ------------------------------------------------------------------------------------------- borders


@dataclass(frozen=True, slots=True)
class ThinkingPolicy:
    """A policy that thinks, as others know it: it answers with the reply alone.

    `policy` writes thought and reply; what it wrote is kept in `said`, in the order of the calls.
    """

    policy: Policy
    said: list[Said] = field(default_factory=list)

    def __call__(self, histories: Sequence[Sequence[Turn]], seed: int) -> list[str]:
        """One reply for each history, no thought in it."""
        said = [take_apart(text) for text in self.policy(histories, seed)]
        self.said.extend(said)
        return [one.reply for one in said]


@dataclass(frozen=True, slots=True)
class ThoughtlessSeeker:
    """A seeker behind the border: whoever asks it with a thinking policy's raw text, it hears the reply."""

    seeker: Seeker

    def react_batch(self, items: Sequence[Item]) -> list[Reaction]:
        """One reaction per (profile, history, reply, seed)."""
        return self.seeker.react_batch([(p, h, spoken(reply), seed) for p, h, reply, seed in items])

    def emotion(self, profile: SeekerProfile, history: Sequence[Turn]) -> float:
        """How this person feels after `history`."""
        return self.seeker.emotion(profile, history)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a policy's replies cost and how well they were formed; the means are over replies."""

    replies: int
    well_formed: float  # share
    thought_tokens: float
    reply_tokens: float
    total_tokens: int  # of all texts, thoughts and their tags included


def spent(said: Sequence[Said], count: Callable[[str], int]) -> Spent:
    """The tokens of thoughts and replies, counted by `count` (a tokenizer's length of a text)."""
    if not said:
        raise ValueError("nothing was said; play or train with the policy first")
    return Spent(
        replies=len(said),
        well_formed=sum(one.well_formed for one in said) / len(said),
        thought_tokens=sum(count(one.thought) for one in said) / len(said),
        reply_tokens=sum(count(one.reply) for one in said) / len(said),
        total_tokens=sum(count(written(one.thought, one.reply) if one.thought else one.reply) for one in said),
    )
