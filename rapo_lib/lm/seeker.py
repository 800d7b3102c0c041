"""A language model as the seeker: a person described in the prompt, who says what they feel and what they say next.

Every reply is one question: who this person is, what was said, how they feel (0-100), and the new reply; the answer
holds a change of at most 10 either way and a reaction. The emotion after a history is the start plus the changes of
its supporter turns, each clipped to 0-100, so the seeker stays a pure function of what was said. The seed of an item
selects nothing: with temperature above 0 a reaction is one draw, and the same draw each time it is asked for.

Simulated seekers tend to slip out of their role. What is detected: nothing said, the helper's part taken over, the
reply echoed, an earlier line said again, both sides written, a goodbye in the middle, another language. Such an
answer is asked for again, and then marked: no text, an unknown emotion (NaN), and the reason in `Reaction.status`.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from rapo_lib.chat import ChatModel, ChatRequest
from rapo_lib.dialogue import SeekerProfile, Turn, language_of
from rapo_lib.lm.prompts import load_prompt, quoted, transcript
from rapo_lib.person.appraisal import Spoken
from rapo_lib.runs import RapoError
from rapo_lib.seeker import Item, Reaction, spoken_words

STEP = 10  # a reply moves the emotion by at most this much (SAGE)
RELIEVED = 70.0  # ours: from here on a goodbye is no flaw (SAGE's band A)
ALIKE = 0.85  # ours: similarity from which two texts count as the same
LONG_ENOUGH = 5  # words (or Chinese characters); shorter answers may repeat
RESISTANCE = ("low", "usual", "high")  # a good assistant makes too willing a seeker; how far to work against it
SHOWN = 40  # turns of a history that the prompt holds, the opening and the latest; ours
REMEMBERED = 20_000  # answers kept

SCHEMA = {
    "type": "object",
    "properties": {
        "thought": {"type": "string", "maxLength": 300},
        "change": {"type": "integer", "minimum": -STEP, "maximum": STEP},
        "reaction": {"type": "string", "maxLength": 600},
    },
    "required": ["change", "reaction"],
}

OWN_TAG = re.compile(r"^\s*(seeker|user|patient|client|me|求助者|来访者|用户)\s*[:：]\s*", re.IGNORECASE)
OTHER_TAG = re.compile(
    r"^\s*(supporter|assistant|counsell?or|therapist|helper|listener|支持者|咨询师|助手|倾听者)\s*[:：].*",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
STOP = re.compile(
    r"\s*(#{2,}\s*STOP\s*#{2,}|\[?\bEND OF (CONVERSATION|DIALOGUE)\b\]?|<\|?(end|stop)\|?>).*", re.S | re.I
)
QUOTE = re.compile(r'"[^"]*"|“[^”]*”|「[^」]*」')
HELPING = re.compile(
    r"\bhow (can|may|could) i (best )?(help|support|assist)\b|\bi'?m here (for you|to (listen|help|support))\b"
    r"|\bi('?m| am) (here and )?listening\b|\bhow long have you (felt|been feeling)\b|\bit sounds like you\b"
    r"|\bmust be (so |very |really )?(hard|difficult|tough|painful) for you\b|\byour feelings are valid\b"
    r"|\bhave you (tried|considered|thought about) (talking|seeing|speaking|reaching)\b"
    r"|\bthank you for (sharing|opening up|trusting me|reaching out)\b|\bi understand how you feel\b"
    r"|我(能|可以)(怎么|如何|怎样)?帮(助|到)?你|我(会)?在(这里)?(听你|陪着?你|倾听)|你感觉(怎么样|如何)|谢谢你(的)?(分享|信任)"
    r"|听起来你|我(能)?理解你的(感受|心情)|你(有没有|可以)(试过|试试|考虑)",
    re.IGNORECASE,
)
GOODBYE = re.compile(
    r"(\bgood ?-?bye|\bbye( bye)?|\btalk to you (later|soon)|\bsee you( later| soon)?|\btake care"
    r"|\bhave a (good|nice|great) (day|night|evening|one)|再见|拜拜|回头聊|先这样吧?|下次再聊)\W*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Felt:
    """What one reply did: the change (NaN if unknown), what was said, and "ok" or why there is nothing."""

    change: float
    text: str
    status: str = "ok"


class LMSeeker:
    """A seeker played by a language model, in the language of the person's opening."""

    def __init__(
        self, chat: ChatModel, *, resistance: str = "usual", temperature: float = 0.0, max_tokens: int = 320
    ) -> None:
        if resistance not in RESISTANCE:
            raise RapoError(f"unknown resistance {resistance!r}; known: {', '.join(RESISTANCE)}")
        self.chat, self.resistance = chat, resistance
        self.temperature, self.max_tokens = temperature, max_tokens
        self._remembered: OrderedDict[tuple[str, Spoken, str], Felt] = OrderedDict()  # a cache, never state

    def react_batch(self, items: Sequence[Item]) -> list[Reaction]:
        """One reaction per (profile, history, reply, seed); marked ones have no text and emotion NaN."""
        before = self._emotions([(profile, history) for profile, history, _, _ in items])
        felt = self._feel([(p, h, reply, e) for (p, h, reply, _), e in zip(items, before, strict=True)])
        return [Reaction(f.text, moved(e, f.change), f.status) for f, e in zip(felt, before, strict=True)]

    def emotion(self, profile: SeekerProfile, history: Sequence[Turn]) -> float:
        """How this person feels after `history`; a turn whose effect is unknown leaves them as they were."""
        return self._emotions([(profile, history)])[0]

    def _emotions(self, talks: Sequence[tuple[SeekerProfile, Sequence[Turn]]]) -> list[float]:
        """The emotion after every talk: the nth supporter turns of all of them in one call."""
        emotions = [float(profile.start) for profile, _ in talks]
        places = [[i for i, turn in enumerate(turns) if turn.speaker == "supporter"] for _, turns in talks]
        for n in range(max(map(len, places), default=0)):
            at = [k for k, own in enumerate(places) if n < len(own)]
            asked = []
            for k in at:
                (profile, turns), place = talks[k], places[k][n]
                asked.append((profile, turns[:place], turns[place].text, emotions[k]))
            for k, felt in zip(at, self._feel(asked), strict=True):
                emotions[k] = moved(emotions[k], 0.0 if math.isnan(felt.change) else felt.change)
        return emotions

    def _feel(self, asked: Sequence[tuple[SeekerProfile, Sequence[Turn], str, float]]) -> list[Felt]:
        """What each reply does; remembered answers first, all others in one call."""
        keys = [(profile.id, spoken_words(history), reply) for profile, history, reply, _ in asked]
        known = {key: self._remembered[key] for key in keys if key in self._remembered}
        new = {key: item for key, item in zip(keys, asked, strict=True) if key not in known}
        replies = self.chat.complete([self._request(*item) for item in new.values()])
        for key, reply in zip(new, replies, strict=True):
            if reply.answered:
                known[key] = Felt(float(reply.value["change"]), tidy(reply.value["reaction"]))
            else:
                known[key] = Felt(math.nan, "", f"{reply.status}: {reply.reason}")
            if reply.status != "failed":
                self._remembered[key] = known[key]
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return [known[key] for key in keys]

    def _request(self, profile: SeekerProfile, history: Sequence[Turn], reply: str, emotion: float) -> ChatRequest:
        prompt = load_prompt("seeker", language_of([profile.opening]))
        messages = prompt.messages(
            age=profile.age,
            situation=profile.situation,
            theme=profile.theme,
            need=profile.need,
            advice=prompt.parts[f"advice {profile.advice}"],
            voice=prompt.parts[f"voice {profile.voice}"],
            resistance=prompt.parts[f"resistance {self.resistance}"],
            details=quoted(profile.details),
            disclosures=quoted({d.topic: d.text for d in profile.disclosures}),
            history=transcript(latest(history)),
            emotion=f"{emotion:.0f}",
            reply=quoted(reply),
        )
        earlier = [turn.text for turn in history if turn.speaker == "seeker"]

        def check(value: Any) -> str:
            return flaw(tidy(value["reaction"]), reply, earlier, moved(emotion, value["change"]))

        return ChatRequest(
            messages=messages,
            schema=SCHEMA,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            check=check,
            asker=prompt.tag,
        )


def moved(emotion: float, change: float) -> float:
    """The emotion after a change, within 0-100; NaN stays NaN."""
    return emotion + change if math.isnan(change) else min(100.0, max(0.0, emotion + change))


def latest(history: Sequence[Turn]) -> list[Turn]:
    """The opening and the latest turns of a long history."""
    return list(history) if len(history) <= SHOWN else [history[0], *history[1 - SHOWN :]]


# ---------------------------------------------------------------------------------------------- staying in the role


def tidy(text: str) -> str:
    """The seeker's own words: no speaker tag, nothing from the first line of the other speaker on, no stop sign."""
    return STOP.sub("", OTHER_TAG.sub("", OWN_TAG.sub("", text))).strip()


def flaw(text: str, reply: str, earlier: Sequence[str], emotion: float) -> str:
    """What is wrong with a reaction, as it is told to the model; nothing if it can stand. `emotion`: after it."""
    if not any(c.isalnum() for c in text):
        return "the reaction says nothing"
    if HELPING.search(QUOTE.sub("", text).replace("’", "'")):
        return "the reaction speaks as the helper; you are the seeker"
    if alike(text, reply):
        return "the reaction only repeats the supporter's words"
    if any(alike(text, said) for said in earlier):
        return "the reaction repeats what you have said before"
    if GOODBYE.search(text) and emotion < RELIEVED:
        return "the conversation is not over; do not say goodbye"
    if earlier and language_of([text]) != language_of(earlier[:1]):
        return "the reaction is in another language than yours"
    return ""


def alike(one: str, other: str) -> bool:
    """Whether two texts of some length are the same but for small changes."""
    a, b = _words(one), _words(other)
    if min(len(a), len(b)) < LONG_ENOUGH:
        return False
    return SequenceMatcher(None, a, b, autojunk=False).ratio() >= ALIKE


def _words(text: str) -> list[str]:
    return re.findall(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+", text.lower().replace("’", "'"))
