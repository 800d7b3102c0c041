"""A language model as the person of the EmoHarbor-style suite: it perceives, it feels, and in the end it judges.

Three roles, each with a prompt of its own (data/prompts/user_*.md), all ours, for the paper's are not available: the
first says what the reply is to this person, the second what that does to them and what they say, the third looks back
over all of it and scores ten dimensions. The second never judges and the third never talks. What cannot be read is
asked for once more by the chat model, then marked: a moment without a reaction ends the talk, a judgement is left out.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rapo_lib.chat import ChatModel, ChatRequest
from rapo_lib.dialogue import SeekerProfile, Turn
from rapo_lib.lm.prompts import load_prompt, quoted, transcript
from rapo_lib.lm.seeker import STEP, flaw, latest, moved, tidy
from rapo_lib.measures.emoharbor import DIMENSIONS, HIGHEST, LOWEST, Judgement, Moment
from rapo_lib.seeker import Item

ROLES = ("user_perceives", "user_feels", "user_judges")
LANGUAGE = "en"

PERCEIVES = {
    "type": "object",
    "properties": {"perceived": {"type": "string", "minLength": 3, "maxLength": 300}},
    "required": ["perceived"],
}
FEELS = {
    "type": "object",
    "properties": {
        "feeling": {"type": "string", "maxLength": 300},
        "change": {"type": "integer", "minimum": -STEP, "maximum": STEP},
        "reaction": {"type": "string", "maxLength": 600},
    },
    "required": ["change", "reaction"],
}
JUDGES = {
    "type": "object",
    "properties": {
        "looking_back": {"type": "string", "maxLength": 600},
        "scores": {
            "type": "object",
            "properties": {
                name: {"type": "integer", "minimum": int(LOWEST), "maximum": int(HIGHEST)} for name in DIMENSIONS
            },
            "required": list(DIMENSIONS),
        },
    },
    "required": ["scores"],
}


class LMUser:
    """The person, played by the language model behind `chat`."""

    def __init__(self, chat: ChatModel, *, temperature: float = 0.0, max_tokens: int = 320) -> None:
        self.chat, self.temperature, self.max_tokens = chat, temperature, max_tokens

    def live(self, items: Sequence[Item]) -> list[Moment]:
        """One moment per (profile, history, reply, seed); the seed is the draw where the temperature is above 0."""
        asked = [self._perceives(profile, history, reply, seed) for profile, history, reply, seed in items]
        perceived = self.chat.complete(asked)
        heard = [(item, p.value["perceived"]) for item, p in zip(items, perceived, strict=True) if p.answered]
        felt = iter(self.chat.complete([self._feels(*item, words) for item, words in heard]))
        moments = []
        for (profile, history, reply, _), p in zip(items, perceived, strict=True):
            if not p.answered:
                moments.append(Moment(reply, "", "", math.nan, f"perceives: {p.status}: {p.reason}"))
                continue
            f, words = next(felt), p.value["perceived"]
            if not f.answered:
                moments.append(Moment(reply, words, "", math.nan, f"feels: {f.status}: {f.reason}"))
                continue
            emotion = moved(feeling(profile, history), f.value["change"])
            moments.append(Moment(reply, words, tidy(f.value["reaction"]), emotion))
        return moments

    def judge(self, talks: Sequence[tuple[SeekerProfile, Sequence[Turn], Sequence[Moment]]]) -> list[Judgement]:
        """What each person says of the talk, from what they perceived and felt; None where it cannot be read."""
        replies = self.chat.complete([self._judges(*talk) for talk in talks])
        return [
            Judgement({name: float(r.value["scores"][name]) for name in DIMENSIONS})
            if r.answered
            else Judgement(None, f"{r.status}: {r.reason}")
            for r in replies
        ]

    def _perceives(self, profile: SeekerProfile, history: Sequence[Turn], reply: str, seed: int) -> ChatRequest:
        values = person(profile) | {"history": transcript(latest(history)), "reply": quoted(reply)}
        return self._request("user_perceives", values, PERCEIVES, seed)

    def _feels(
        self, profile: SeekerProfile, history: Sequence[Turn], reply: str, seed: int, perceived: str
    ) -> ChatRequest:
        before, spoken = feeling(profile, history), load_prompt("seeker", LANGUAGE).parts
        values = person(profile) | {
            "history": transcript(latest(history)),
            "reply": quoted(reply),
            "perceived": quoted(perceived),
            "emotion": f"{before:.0f}",
            "voice": spoken[f"voice {profile.voice}"],
            "details": quoted(profile.details),
            "disclosures": quoted({d.topic: d.text for d in profile.disclosures}),
        }
        earlier = [turn.text for turn in history if turn.speaker == "seeker"]

        def check(value: Any) -> str:
            return flaw(tidy(value["reaction"]), reply, earlier, moved(before, value["change"]))

        return self._request("user_feels", values, FEELS, seed, check)

    def _judges(self, profile: SeekerProfile, turns: Sequence[Turn], moments: Sequence[Moment]) -> ChatRequest:
        lines = [
            quoted({"turn": i, "supporter": m.reply, "you perceived": m.perceived, "you felt then": round(m.emotion)})
            for i, m in enumerate(moments, start=1)
        ]
        values = person(profile) | {
            "opening": quoted(profile.opening),
            "start": str(profile.start),
            "moments": "\n".join(lines),
            "dimensions": json.dumps(DIMENSIONS, indent=1),
        }
        return self._request("user_judges", values, JUDGES, 0)

    def _request(
        self, role: str, values: Mapping[str, str], schema: Mapping[str, Any], seed: int, check: Any = None
    ) -> ChatRequest:
        prompt = load_prompt(role, LANGUAGE)
        return ChatRequest(
            messages=prompt.messages(**values),
            schema=schema,
            max_tokens=self.max_tokens if role != "user_judges" else 2 * self.max_tokens,
            temperature=self.temperature,
            draw=seed if self.temperature > 0 else 0,
            check=check,
            asker=prompt.tag,
        )


def person(profile: SeekerProfile) -> dict[str, str]:
    """What every role knows of the person, by placeholder."""
    return {
        "age": str(profile.age),
        "situation": quoted(profile.situation),
        "theme": quoted(profile.theme),
        "need": quoted(profile.need),
        "advice": load_prompt("seeker", LANGUAGE).parts[f"advice {profile.advice}"],
    }


def feeling(profile: SeekerProfile, history: Sequence[Turn]) -> float:
    """How this person felt after their last words, which carry it."""
    felt = [t.emotion for t in history if t.speaker == "seeker" and t.emotion is not None]
    return felt[-1] if felt else float(profile.start)
