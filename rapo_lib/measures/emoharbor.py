"""An EmoHarbor-style suite: the simulated person talks to the supporter, and then judges, as that person, how it was.

EmoHarbor (arXiv 2601.01530) lets the user judge, splits what goes on inside the user into a chain of three roles,
talks for up to 15 turns and scores ten dimensions of personalised support. Its names, scale, prompts, profiles and
stop rule are not available to us, so these are **ours**: the chain is *perceives* (what is this reply doing to me?),
*feels* (what does that do to me?) and *judges* (looking back, how well was I supported?); the ten dimensions stand in
DIMENSIONS, each scored 1 to 5; a person leaves early when overwhelmed or relieved. Scores here cannot be compared with
the paper's.

`EmbeddedUser` computes each judgement from the dialogue as this person lived it: every number below is ours.
`rapo_lib.lm.user.LMUser` is the same chain played by a language model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
import pandas as pd

from rapo_lib.chat import Failure
from rapo_lib.dialogue import Dialogue, SeekerProfile, Turn, load_profiles, opening_history
from rapo_lib.encoder import embed
from rapo_lib.person.appraisal import Heard, Mood, appraise, first_mood, noticed
from rapo_lib.person.perception import Perception, content, split_sentences
from rapo_lib.person.wording import CLOSE_AT, WITHDRAW_AT
from rapo_lib.runs import seed_for
from rapo_lib.seeker import AppraisalSeeker, Item

TURNS = 15  # the paper's limit
LOWEST, HIGHEST = 1.0, 5.0
DIMENSIONS = {  # what a person says of each at its best
    "understood": "What weighs on me was seen and said.",
    "particular": "It was about my story, not about people like me.",
    "remembered": "It came back to what I had told before.",
    "theme": "It came near what this is really about for me.",
    "drawn_out": "It asked so that I could tell what I usually keep back.",
    "acknowledged": "My feelings were allowed; nothing was judged or made small.",
    "advice": "Advice came when and how I can take it, or stayed away where I want none.",
    "manner": "It kept clear of what I cannot bear: being cheered up, questioned, talked over, left hanging.",
    "genuine": "No set phrases, nothing said twice, no nonsense: somebody was there.",
    "lighter": "I leave lighter than I came, and would come back.",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """One reply as the person lived it: what they perceived, what they said, how they feel then (0-100)."""

    reply: str
    perceived: str
    reaction: str
    emotion: float
    status: str = "ok"  # or why this person could not be played; only a language model can fail


@dataclass(frozen=True, slots=True)
class Judgement:
    """A score for every dimension, or None and why."""

    scores: Mapping[str, float] | None
    status: str = "ok"


class User(Protocol):
    """A person who perceives, feels and judges; a pure function of what was said and of their own moments."""

    def live(self, items: Sequence[Item]) -> list[Moment]:
        """One moment per (profile, history, reply, seed); seeker turns of a history carry the emotion so far."""

    def judge(self, talks: Sequence[tuple[SeekerProfile, Sequence[Turn], Sequence[Moment]]]) -> list[Judgement]:
        """What each person says of the whole talk."""


class Answers(Protocol):
    """A policy that may fail to answer a history."""

    def __call__(self, histories: Sequence[Sequence[Turn]], seed: int) -> Sequence[str | Failure]: ...


# ---------------------------------------------------------------------------------------- talking and judging


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One person's talk and what they said of it."""

    profile: SeekerProfile
    turns: tuple[Turn, ...]
    moments: tuple[Moment, ...]
    judgement: Judgement
    ended: str  # "turns", "relieved", "overwhelmed" or "failed"
    failed: str = ""  # why, where it ended so

    @property
    def dialogue(self) -> Dialogue:
        """The talk, for measures of dialogues."""
        p = self.profile
        return Dialogue(p.id, self.turns, p.situation, p.problem, p.emotion_type, source="emoharbor")


def stays(
    policy: Answers, people: Sequence[SeekerProfile], user: User, *, turns: int = TURNS, seed: int = 0
) -> list[Stay]:
    """One talk with everybody, all of them a turn at a time, and their judgements; same seed, same draws."""
    talks = {p.id: opening_history(p) for p in people}
    lived: dict[str, list[Moment]] = {p.id: [] for p in people}
    ended, why = dict.fromkeys(talks, "turns"), dict.fromkeys(talks, "")
    running = list(people)
    for turn in range(turns):
        replies = policy([talks[p.id] for p in running], seed_for(seed, "reply", turn)) if running else []
        answered = [(p, reply) for p, reply in zip(running, replies, strict=True) if not isinstance(reply, Failure)]
        why |= {p.id: r.reason for p, r in zip(running, replies, strict=True) if isinstance(r, Failure)}
        items = [(p, talks[p.id], reply, seed_for(seed, p.id, turn)) for p, reply in answered]
        for (p, history, reply, _), moment in zip(items, user.live(items), strict=True):
            lived[p.id].append(moment)
            said = Turn("seeker", moment.reaction, emotion=moment.emotion)
            talks[p.id] = (*history, Turn("supporter", reply), said)
            why[p.id] = "" if moment.status == "ok" else f"user: {moment.status}"
            ended[p.id] = _ending(moment.emotion)
        running = [p for p in running if not why[p.id] and ended[p.id] == "turns"]
    whole = [p for p in people if not why[p.id]]
    judged = user.judge([(p, talks[p.id], lived[p.id]) for p in whole])
    found = dict(zip((p.id for p in whole), judged, strict=True))
    return [
        Stay(
            profile=p,
            turns=talks[p.id],
            moments=tuple(lived[p.id]),
            judgement=found.get(p.id, Judgement(None, why[p.id])),
            ended="failed" if why[p.id] else ended[p.id],
            failed=why[p.id],
        )
        for p in people
    ]


def _ending(emotion: float) -> str:
    """Why a person stops talking; the embedded seeker takes leave at the same values."""
    return "relieved" if emotion >= CLOSE_AT else "overwhelmed" if emotion <= WITHDRAW_AT else "turns"


def scores_table(found: Sequence[Stay]) -> pd.DataFrame:
    """One row per person: profile, one column a dimension, overall (their mean); NaN where the user abstained."""
    rows = []
    for stay in found:
        scores = stay.judgement.scores or dict.fromkeys(DIMENSIONS, np.nan)
        rows.append({"profile": stay.profile.id, **scores, "overall": float(np.mean([*scores.values()]))})
    return pd.DataFrame(rows, columns=["profile", *DIMENSIONS, "overall"])


def stays_table(found: Sequence[Stay]) -> pd.DataFrame:
    """One row per person: how the talk went and ended, and whether they could judge it."""
    return pd.DataFrame(
        {
            "profile": s.profile.id,
            "advice": s.profile.advice,
            "turns": len(s.moments),
            "start": float(s.profile.start),
            "end": s.moments[-1].emotion if s.moments else float(s.profile.start),
            "ended": s.ended,
            "judgement": s.judgement.status,
        }
        for s in found
    )


def moments_table(found: Sequence[Stay]) -> pd.DataFrame:
    """One row per supporter turn: what was said, perceived, felt and answered."""
    return pd.DataFrame(
        {
            "profile": s.profile.id,
            "turn": turn,
            "reply": m.reply,
            "perceived": m.perceived,
            "reaction": m.reaction,
            "emotion": m.emotion,
        }
        for s in found
        for turn, m in enumerate(s.moments, start=1)
    )


# -------------------------------------------------------------------------------------------- the embedded user


@dataclass(frozen=True, slots=True)
class Felt:
    """One reply inside the embedded person: the acts as they take them, points of emotion by cause, the mood then."""

    acts: Perception
    causes: Mapping[str, float]
    mood: Mood

    @property
    def fresh(self) -> float:
        """Share of the reply that is neither set phrase nor repetition; nothing of what is no reply."""
        return 0.0 if self.acts.fault else 1 - max(self.acts.stock, self.acts.repeats)


@dataclass(frozen=True, slots=True)
class Life:
    """A whole talk as one person lived it."""

    profile: SeekerProfile
    turns: tuple[Turn, ...]
    felt: tuple[Felt, ...]
    answered: float = field(init=False)  # share of the replies that could be taken as one

    def __post_init__(self) -> None:
        object.__setattr__(self, "answered", self.mean(lambda f: float(not f.acts.fault)))

    def mean(self, value: Callable[[Felt], float]) -> float:
        """The mean over replies, 0 without any."""
        return float(np.mean([value(f) for f in self.felt])) if self.felt else 0.0

    def points(self, *causes: str) -> float:
        """All points of emotion that these causes brought; losses are negative."""
        return sum(f.causes.get(cause, 0.0) for f in self.felt for cause in causes)

    def replies(self) -> list[tuple[int, str]]:
        """(place among the turns, text) of every supporter turn that is a reply at all."""
        spoken = [(i, t.text) for i, t in enumerate(self.turns) if t.speaker == "supporter"]
        return [place for place, f in zip(spoken, self.felt, strict=True) if not f.acts.fault]


class EmbeddedUser:
    """The embedded seeker, looking back: perception, appraisal, and a judgement of each dimension by rule."""

    def __init__(self, seeker: AppraisalSeeker | None = None) -> None:
        self.seeker = seeker or AppraisalSeeker()

    def live(self, items: Sequence[Item]) -> list[Moment]:
        """One moment per item; `perceived` names what weighed most, heaviest first."""
        reactions = self.seeker.react_batch(items)
        lives = self.lives([(p, (*history, Turn("supporter", reply))) for p, history, reply, _ in items])
        return [
            Moment(reply, ", ".join([*life.felt[-1].causes][:3]) or "nothing", reaction.text, reaction.emotion)
            for (*_, reply, _), reaction, life in zip(items, reactions, lives, strict=True)
        ]

    def judge(self, talks: Sequence[tuple[SeekerProfile, Sequence[Turn], Sequence[Moment]]]) -> list[Judgement]:
        """A judgement of each talk; computed from its words alone, so the moments are not needed."""
        lives = self.lives([(profile, tuple(turns)) for profile, turns, _ in talks])
        return [Judgement(scores(life)) for life in lives]

    def lives(self, talks: Sequence[tuple[SeekerProfile, tuple[Turn, ...]]]) -> list[Life]:
        """Each talk replayed as this person lived it."""
        heard = self.seeker.hear(talks)
        return [Life(p, turns, lived(p, own)) for (p, turns), own in zip(talks, heard, strict=True)]


def lived(profile: SeekerProfile, heard: Sequence[Heard]) -> tuple[Felt, ...]:
    """Every reply with what it did to this person."""
    mood, felt = first_mood(profile), []
    for turn in heard:
        mood, told = appraise(profile, mood, turn)
        felt.append(Felt(noticed(turn.acts), dict(told.causes), mood))
    return tuple(felt)


# ---------------------------------------------------------------------------- ten judgements (all numbers ours), 0 to 1


def understood(life: Life) -> float:
    """Reflections of this story; one full one in every second reply is all that can be wished for."""
    return life.mean(lambda f: f.acts.understands * f.fresh) / 0.5


def particular(life: Life) -> float:
    """How surely the replies belong to this story and not to another's, set phrases apart."""
    return (life.mean(lambda f: f.acts.relevance * f.fresh) - 0.15) / 0.6


def remembered(life: Life) -> float:
    """Share of later replies that name something told before the person's last turn and not in it; 40 % is plenty."""
    later = [(i, text) for i, text in life.replies() if i > 1]
    hits = sum(bool(content(text) & _older(life.turns[:i])) for i, text in later)
    return hits / max(1, len(life.felt) - 1) / 0.4


def _older(turns: Sequence[Turn]) -> frozenset[str]:
    """Content words of what the seeker told before their last turn and did not say again in it."""
    said = [t.text for t in turns if t.speaker == "seeker"]
    return content(" ".join(said[:-1])) - content(said[-1])


def theme(life: Life) -> float:
    """Whether replies lie nearer to this person's hidden theme and need than to other people's; 0 where by chance."""
    texts = [text for _, text in life.replies()]
    if not texts:
        return 0.0
    own = embed([life.profile.theme, life.profile.need])  # (2, D)
    replies = np.stack([embed(split_sentences(text)).mean(0) for text in texts])  # (replies, D)
    mine = (replies @ own.T).max(1)  # (replies,)
    others = (replies @ _hidden().T).reshape(len(texts), -1, 2).max(2)  # (replies, people)
    nearer = (others < mine[:, None]).mean(1)  # share of people whose theme is less near
    return (float(nearer.sum()) / len(life.felt) - 0.5) / 0.4


@cache
def _hidden() -> np.ndarray:
    """Embeddings of theme and need of the train people, in turn, shape (2 * people, D)."""
    return embed([text for p in load_profiles("train") for text in (p.theme, p.need)])


def drawn_out(life: Life) -> float:
    """Share of what they keep back that came out; half for a question that reached it too late."""
    if not (kept := life.profile.disclosures):
        return life.answered
    said = " ".join(t.text for t in life.turns if t.speaker == "seeker")
    reached = {index for index, _ in life.felt[-1].mood.reached} if life.felt else set()
    return sum(1.0 if d.text in said else 0.5 * (i in reached) for i, d in enumerate(kept)) / len(kept)


def acknowledged(life: Life) -> float:
    """That feelings make sense, in every fourth reply or more; blame takes it away again."""
    allowed = life.mean(lambda f: f.acts.validates * f.fresh) / 0.25
    blamed = sum(f.acts.dismisses for f in life.felt)
    return 0.4 * life.answered + 0.6 * min(1.0, allowed) - 0.5 * blamed


def advice(life: Life) -> float:
    """Advice by attitude: 8 points' worth for who wants a plan; for others its absence is good, and pushing is not."""
    helped = life.points("advice", "informed")
    pushed = -life.points("advice_early", "own_way", "advice_again", "no_plan")
    if life.profile.advice == "wants_plan":
        return helped / 8 - pushed / 10
    return 0.75 * life.answered + helped / 16 - pushed / 10


def manner(life: Life) -> float:
    """What this person cannot bear did not happen; 8 points of it are too much."""
    grated = -life.points("reassurance", "questioned", "took_floor", "off", "thin", "dismissed")
    return life.answered - grated / 8


def genuine(life: Life) -> float:
    """Neither set phrases nor repetition nor nonsense."""
    return life.mean(lambda f: f.fresh)


def lighter(life: Life) -> float:
    """Half for 40 points of relief, half for trust."""
    if not life.felt:
        return 0.0
    mood, first = life.felt[-1].mood, first_mood(life.profile)
    trust = (mood.trust - first.trust) / (0.8 - first.trust)
    return 0.5 * _share((mood.emotion - first.emotion) / 40) + 0.5 * _share(trust)


JUDGES: Mapping[str, Callable[[Life], float]] = {
    judge.__name__: judge
    for judge in (
        understood,
        particular,
        remembered,
        theme,
        drawn_out,
        acknowledged,
        advice,
        manner,
        genuine,
        lighter,
    )
}


def scores(life: Life) -> dict[str, float]:
    """Every dimension from 1 to 5."""
    return {name: round(LOWEST + (HIGHEST - LOWEST) * _share(JUDGES[name](life)), 3) for name in DIMENSIONS}


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
