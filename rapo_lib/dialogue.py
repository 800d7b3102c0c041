"""What is said, and by whom: turns, dialogues and the people who seek support.

Everything here is plain immutable data with JSON in and out. No model, no torch.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

Speaker = Literal["seeker", "supporter"]
T = TypeVar("T")
Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}

SPLITS = ("train", "dev", "heldout")
ADVICE = ("heard_first", "wants_plan", "hates_reassurance", "wary_of_advice")
VOICES = ("plain", "curt", "rambling", "ironic", "formal", "guarded")
SYSTEM = "You are an emotional support listener. Reply in one or two short sentences."
ROLE = {"seeker": "user", "supporter": "assistant"}
IDEOGRAPH = re.compile(r"[\u3400-\u9fff]")
CHINESE = 0.2  # share of ideographs among letters from which a text counts as Chinese; ours


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance; `emotion` is the seeker's true state after it (0-100), where a simulator knows it."""

    speaker: Speaker
    text: str
    strategies: tuple[str, ...] = ()  # ESConv's eight names
    raw_strategies: tuple[str, ...] = ()  # as the source file spells them
    feedback: int | None = None  # the seeker's own 1-5 rating of the replies before this turn
    emotion: float | None = None

    def __post_init__(self) -> None:
        if self.speaker not in ROLE:
            raise ValueError(f"speaker must be 'seeker' or 'supporter', not {self.speaker!r}")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation between one seeker and one supporter."""

    id: str
    turns: tuple[Turn, ...]
    situation: str = ""
    problem: str = ""
    emotion_type: str = ""
    survey: dict[str, int | None] | None = None
    source: str = ""

    def history(self, turn: int) -> tuple[Turn, ...]:
        """What had been said before turn number `turn` (a supporter turn): h."""
        return self.turns[:turn]


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Something the seeker says only when a question reaches its topic."""

    topic: str  # what an open question must be about, a short noun phrase
    text: str  # what the seeker then says


@dataclass(frozen=True, slots=True)
class SeekerProfile:
    """A person we wrote: what they say, what they hold back, and how they take advice."""

    id: str
    problem: str  # ESConv problem type
    emotion_type: str  # ESConv emotion type
    age: int
    voice: str  # one of VOICES
    advice: str  # one of ADVICE
    situation: str  # first person, what has happened
    opening: str  # the first thing they say
    need: str  # hidden: what would help, a sentence
    theme: str  # hidden: what it is really about, a sentence
    details: tuple[str, ...]  # more of the story, in their words, told as the talk goes on
    disclosures: tuple[Disclosure, ...]  # told only to a question that reaches them
    start: int  # emotion at the opening, 30-40

    def __post_init__(self) -> None:
        if self.voice not in VOICES:
            raise ValueError(f"profile {self.id}: voice {self.voice!r} is not one of {', '.join(VOICES)}")
        if self.advice not in ADVICE:
            raise ValueError(f"profile {self.id}: advice {self.advice!r} is not one of {', '.join(ADVICE)}")
        if not 30 <= self.start <= 40:
            raise ValueError(f"profile {self.id}: start must lie in 30-40, not {self.start}")


def opening_history(profile: SeekerProfile) -> tuple[Turn, ...]:
    """The history a dialogue with this person begins with."""
    return (Turn("seeker", profile.opening, emotion=float(profile.start)),)


def language_of(texts: Sequence[str]) -> str:
    """'zh' if a good part of the letters are Chinese, else 'en'."""
    letters = [c for text in texts for c in text if c.isalpha()]
    return "zh" if letters and sum(bool(IDEOGRAPH.match(c)) for c in letters) >= CHINESE * len(letters) else "en"


# ---------------------------------------------------------------------------------------------- chat


def to_messages(history: Sequence[Turn], system: str | None = SYSTEM) -> list[Message]:
    """Chat messages with strictly alternating roles, a user message first.

    Neighbouring turns of one speaker become one message. Supporter turns before the first seeker
    turn have nobody to answer; they are kept behind a neutral lead-in user message.
    """
    messages: list[Message] = []
    for turn in history:
        role = ROLE[turn.speaker]
        if messages and messages[-1]["role"] == role:
            messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n{turn.text}"}
        else:
            messages.append({"role": role, "content": turn.text})
    if messages and messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": "Hello."})
    return [{"role": "system", "content": system}, *messages] if system else messages


def fit_messages(messages: list[Message], limit: int, count: Callable[[list[Message]], int]) -> list[Message]:
    """Drop the oldest whole exchanges until `count(messages)` is at most `limit` tokens.

    The system message and the last message always stay, so one very long last turn may exceed the limit.
    """
    head = messages[:1] if messages and messages[0]["role"] == "system" else []
    body = messages[len(head) :]
    while len(body) > 1 and count(head + body) > limit:
        body = body[2:] if len(body) > 2 else body[-1:]
    return head + body


# ---------------------------------------------------------------------------------------------- files


def from_record(kind: type[T], record: dict[str, Any]) -> T:
    """Build a frozen dataclass from a JSON object; an unknown or missing key raises a ValueError that names it."""
    if not isinstance(record, dict):
        raise ValueError(f"{kind.__name__}: expected an object, found {type(record).__name__}")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(record) - known):
        raise ValueError(f"{kind.__name__}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    try:
        return kind(**record)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def turn_from_record(record: dict[str, Any]) -> Turn:
    """The inverse of `to_record` for one turn."""
    lists = {k: tuple(record[k]) for k in ("strategies", "raw_strategies") if k in record}
    return from_record(Turn, {**record, **lists})


def dialogue_from_record(record: dict[str, Any]) -> Dialogue:
    """The inverse of `to_record` for a dialogue."""
    return from_record(Dialogue, {**record, "turns": tuple(turn_from_record(t) for t in record.get("turns", ()))})


def profile_from_record(record: dict[str, Any]) -> SeekerProfile:
    """The inverse of `to_record` for a profile."""
    disclosures = tuple(from_record(Disclosure, d) for d in record.get("disclosures", ()))
    return from_record(
        SeekerProfile, {**record, "details": tuple(record.get("details", ())), "disclosures": disclosures}
    )


def to_record(item: Turn | Dialogue | SeekerProfile) -> dict[str, Any]:
    """A JSON-ready dict of a turn, dialogue or profile; fields at their defaults are left out of turns."""
    if isinstance(item, Turn):
        return {k: v for k, v in asdict(item).items() if v not in ((), None)}
    record = asdict(item)
    if isinstance(item, Dialogue):
        record["turns"] = [to_record(t) for t in item.turns]
    return record


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file; a broken line raises a ValueError with file and line number."""
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from None


def load_dialogues_jsonl(path: Path) -> list[Dialogue]:
    """Read dialogues in our own JSONL form; errors name file and line."""
    dialogues = []
    for number, record in enumerate(read_jsonl(path), start=1):
        try:
            dialogues.append(dialogue_from_record(record))
        except ValueError as error:
            raise ValueError(f"{path}, record {number}: {error}") from None
    return dialogues


@cache
def all_profiles() -> dict[str, tuple[SeekerProfile, ...]]:
    """Every shipped profile by split."""
    found = {}
    for split in SPLITS:
        source = resources.files("rapo_lib") / "data" / "profiles" / f"{split}.jsonl"
        found[split] = tuple(
            profile_from_record(json.loads(line)) for line in source.read_text("utf-8").splitlines() if line
        )
    return found


def load_profiles(split: str) -> list[SeekerProfile]:
    """The profiles of one split: 'train', 'dev' or 'heldout'."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; splits: {', '.join(SPLITS)}")
    return list(all_profiles()[split])
