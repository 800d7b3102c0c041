"""Evaluation: self-play with simulated seekers, what each reply does, and blind comparisons of two policies.

Self-play follows PPDPP's shape (eight turns at most); success is a true emotion of 70 or more (ours).
Evaluation is the one place besides oracle arms that reads the seeker's emotion.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.dialogue import Dialogue, SeekerProfile, Turn, opening_history, to_messages
from rapo_lib.feedback import CandidateGroup, Judge
from rapo_lib.fluency import fluency_batch
from rapo_lib.lm.critic import Critic
from rapo_lib.person.perception import perceive_batch
from rapo_lib.runs import seed_for
from rapo_lib.sampling import fit, sample_replies
from rapo_lib.seeker import Seeker
from rapo_lib.stats import Interval, clustered, t_interval

log = logging.getLogger(__name__)
TURNS = 8  # supporter turns, PPDPP's limit
SUCCESS = 70.0  # emotion; ours (SAGE's band A)
SENSITIVITY = (60.0, 70.0, 80.0, 90.0)  # other thresholds that success is also counted at
ASKS = re.compile(r"\b(what (should|do|can|would) (i|you|we)|any (advice|ideas|tips)|how (do|should|can) i)\b", re.I)
PRESENT = 0.5  # a reply does what its perception gives at least this strength


class Policy(Protocol):
    """Anything that answers: one reply for each history; the seed makes it repeatable."""

    def __call__(self, histories: Sequence[Sequence[Turn]], seed: int) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPolicy:
    """A causal language model as a policy."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_tokens: int = 80
    reply_tokens: int = 32
    temperature: float = 1.0

    def __call__(self, histories: Sequence[Sequence[Turn]], seed: int) -> list[str]:
        prompts = [fit(to_messages(h), self.tokenizer, self.prompt_tokens) for h in histories]
        replies = sample_replies(
            self.model,
            self.tokenizer,
            prompts,
            max_new_tokens=self.reply_tokens,
            temperature=self.temperature,
            seed=seed,
        )
        return [group[0] for group in replies]


# ----------------------------------------------------------------------------------------- self-play


def self_play(
    policy: Policy, profiles: Sequence[SeekerProfile], seeker: Seeker, *, turns: int = TURNS, seed: int = 0
) -> list[Dialogue]:
    """One dialogue with every person, all of them a turn at a time; each seeker turn carries the true emotion.

    The same seed gives every policy the same draws, so differences between policies are paired. A dialogue ends where
    the seeker gives no usable reaction, which only a language model does, and before the reply it should answer.
    """
    return play_on(policy, [(p, opening_history(p)) for p in profiles], seeker, turns=turns, seed=seed)


def play_on(
    policy: Policy,
    begun: Sequence[tuple[SeekerProfile, Sequence[Turn]]],
    seeker: Seeker,
    *,
    turns: int = TURNS,
    seed: int = 0,
) -> list[Dialogue]:
    """`self_play` from dialogues that somebody else began, one a person; of what was said before, only the last seeker
    turn carries an emotion, so that outcomes count from there."""
    profiles = [p for p, _ in begun]
    histories = [_felt_from_here(p, h, seeker) for p, h in begun]
    going = list(range(len(profiles)))
    for turn in range(turns):
        replies = policy([histories[i] for i in going], seed_for(seed, "reply", turn))
        items = [
            (profiles[i], histories[i], reply, seed_for(seed, profiles[i].id, turn))
            for i, reply in zip(going, replies, strict=True)
        ]
        reactions = seeker.react_batch(items)
        for i, reply, r in zip(going, replies, reactions, strict=True):
            if r.status == "ok":
                histories[i] = (*histories[i], Turn("supporter", reply), Turn("seeker", r.text, emotion=r.emotion))
        going = [i for i, r in zip(going, reactions, strict=True) if r.status == "ok"]
        if not going:
            break
    if len(going) < len(profiles):
        log.warning("%d of %d dialogues end early: no usable reaction", len(profiles) - len(going), len(profiles))
    return [
        Dialogue(p.id, h, situation=p.situation, problem=p.problem, emotion_type=p.emotion_type, source="self-play")
        for p, h in zip(profiles, histories, strict=True)
    ]


def _felt_from_here(profile: SeekerProfile, history: Sequence[Turn], seeker: Seeker) -> tuple[Turn, ...]:
    """The history with the true emotion on its last turn, which is the seeker's, and on no other."""
    *before, last = history
    felt = seeker.emotion(profile, history) if last.emotion is None else last.emotion
    return (*(replace(t, emotion=None) for t in before), replace(last, emotion=felt))


def trajectories(dialogues: Sequence[Dialogue]) -> pd.DataFrame:
    """One row per seeker turn: profile, turn (0 is the opening), emotion."""
    rows = [
        {"profile": d.id, "turn": turn, "emotion": t.emotion}
        for d in dialogues
        for turn, t in enumerate(t for t in d.turns if t.emotion is not None)
    ]
    return pd.DataFrame(rows)


def outcomes(dialogues: Sequence[Dialogue], success: float = SUCCESS) -> pd.DataFrame:
    """One row per dialogue: emotion at start and end, gained, success, turns until success (failures count as all)."""
    rows = []
    for d in dialogues:
        felt = [t.emotion for t in d.turns if t.emotion is not None]
        reached = next((i for i, e in enumerate(felt) if e >= success), None)
        rows.append(
            {
                "profile": d.id,
                "start": felt[0],
                "end": felt[-1],
                "gained": felt[-1] - felt[0],
                "success": reached is not None,
                "turns": len(felt) - 1 if reached is None else reached,
            }
        )
    return pd.DataFrame(rows)


def success_at(felt: pd.DataFrame, thresholds: Sequence[float] = SENSITIVITY) -> pd.DataFrame:
    """Success and turns at other thresholds, from rows of `trajectories`; one row per dialogue and threshold.

    Columns that tell dialogues apart (profile; arm, seed, seeker where there) are kept.
    """
    keys = [column for column in felt.columns if column not in ("turn", "emotion")]
    rows = []
    for names, talk in felt.groupby(keys, sort=False):
        for threshold in thresholds:
            reached = talk.turn[talk.emotion >= threshold]
            turns = talk.turn.max() if reached.empty else reached.min()
            success = {"threshold": threshold, "success": not reached.empty, "turns": int(turns)}
            rows.append({**dict(zip(keys, names, strict=True)), **success})
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------ what a critic says


def assess(dialogues: Sequence[Dialogue], critic: Critic) -> pd.DataFrame:
    """The critic after every supporter turn until it says solved, where PPDPP's dialogue would end.

    One row each: profile, turn, value (-1 to 1; NaN: no readable answer), solved; and the true emotion beside it, which
    the critic never sees.
    """
    rows, going = [], [(d, [i for i, t in enumerate(d.turns) if t.speaker == "seeker"][1:]) for d in dialogues]
    turn = 0
    while going := [(d, places) for d, places in going if turn < len(places)]:
        ends = [places[turn] for _, places in going]
        talks = [
            (d.situation, [Turn(t.speaker, t.text) for t in d.turns[: end + 1]])
            for (d, _), end in zip(going, ends, strict=True)
        ]
        turn += 1
        solved = set()
        for (d, _), end, found in zip(going, ends, critic.assess_batch(talks), strict=True):
            value = np.nan if found.value is None else found.value
            row = {"profile": d.id, "turn": turn, "value": value, "solved": found.solved}
            rows.append({**row, "emotion": d.turns[end].emotion})
            solved |= {d.id} if found.solved else set()
        going = [(d, places) for d, places in going if d.id not in solved]
    return pd.DataFrame(rows, columns=["profile", "turn", "value", "solved", "emotion"])


def critic_outcomes(assessed: pd.DataFrame, turns: int, success: float = SUCCESS) -> pd.DataFrame:
    """PPDPP's outcome of each dialogue by the critic, and how far the critic and the truth agree on it.

    critic_success, critic_turns (failures count as all `turns`);  agrees: the true emotion at the critic's last word
    says the same;  tau: Kendall's tau-b of its values and the true emotion over the turns it saw (NaN where either is
    constant);  abstained: share of turns without a readable answer.
    """
    rows = []
    for name, talk in assessed.groupby("profile", sort=False):
        solved, known = bool(talk.solved.any()), talk.dropna(subset="value")
        varied = known.value.nunique() > 1 and known.emotion.nunique() > 1
        rows.append(
            {
                "profile": name,
                "critic_success": solved,
                "critic_turns": int(talk.turn.max()) if solved else turns,
                "agrees": solved == bool(talk.emotion.iloc[-1] >= success),
                "tau": float(kendalltau(known.value, known.emotion).statistic) if varied else np.nan,
                "abstained": float(talk.value.isna().mean()),
            }
        )
    return pd.DataFrame(rows, columns=["profile", "critic_success", "critic_turns", "agrees", "tau", "abstained"])


# ----------------------------------------------------------------------------------- what a reply does


def reply_metrics(dialogues: Sequence[Dialogue]) -> pd.DataFrame:
    """One row per supporter turn: what it does, its length, repetition and fluency.

    `premature` (ours): advice nobody asked for, before any reflection or open question in this dialogue.
    """
    items = [(d.id, d.history(i), t.text) for d in dialogues for i, t in enumerate(d.turns) if t.speaker == "supporter"]
    heard = perceive_batch([(history, reply) for _, history, reply in items])
    fluent = fluency_batch([reply for *_, reply in items])
    rows, listened = [], {}
    for (name, history, reply), acts, logp in zip(items, heard, fluent, strict=True):
        suggests = acts.suggests >= PRESENT
        rows.append(
            {
                "profile": name,
                "turn": sum(t.speaker == "supporter" for t in history) + 1,
                "reply": reply,
                "suggestion": suggests,
                "premature": suggests and not listened.get(name, False) and not asks_for_advice(history),
                "question": "?" in reply,
                "open_question": acts.asks >= PRESENT,
                "reflection": acts.understands >= PRESENT,
                "stock": acts.stock >= PRESENT,
                "repetition": acts.repeats >= PRESENT,
                "specificity": acts.relevance,
                "fault": acts.fault,
                "words": len(reply.split()),
                "fluency": float(logp),
            }
        )
        listened[name] = listened.get(name, False) or acts.understands >= PRESENT or acts.asks >= PRESENT
    return pd.DataFrame(rows)


def asks_for_advice(history: Sequence[Turn]) -> bool:
    """True if the seeker's last words ask what to do (ours; a plain pattern, so that it can be read)."""
    last = next((t.text for t in reversed(history) if t.speaker == "seeker"), "")
    return ASKS.search(last) is not None


QUALITY = ("suggestion", "premature", "open_question", "reflection", "stock", "repetition", "specificity")


def reply_quality(replies: pd.DataFrame) -> dict[str, Interval]:
    """Intervals over people of what `reply_metrics` found: what is done, when, how specific, varied, fluent and long.

    `first suggestion` is the turn of a person's first one, over those who got any (n says how many). `distinct-2` is
    the share of different word pairs within a dialogue: longer dialogues have less of it, so compare equal turns.
    """
    numbers = (*QUALITY, "fluency", "words")
    found = {name: clustered(replies.assign(**{name: replies[name].astype(float)}), name) for name in numbers}
    varied = replies.groupby("profile").reply.agg(lambda own: distinct(list(own)))
    first = replies[replies.suggestion.astype(bool)].groupby("profile").turn.min()
    return found | {"first suggestion": t_interval(first), "distinct-2": t_interval(varied)}


def distinct(replies: Sequence[str], n: int = 2) -> float:
    """Share of different n-grams among all n-grams of the replies (distinct-n)."""
    grams = [tuple(w[i : i + n]) for w in (r.lower().split() for r in replies) for i in range(len(w) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


# ------------------------------------------------------------------------------------ two policies, blind


def win_rates(
    judge: Judge,
    seeker: Seeker,
    profiles: Mapping[str, SeekerProfile],
    asked: Sequence[tuple[str, Sequence[Turn]]],
    ours: Sequence[str],
    theirs: Sequence[str],
    seed: int = 0,
    hears: bool = True,
) -> pd.DataFrame:
    """Each pair of replies to one history goes to the judge as one shuffled group with the seeker's reactions.

    `hears=False`: the judge sees the replies alone. `asked` holds (profile id, history). Columns: profile, win by the
    judge (1, 0.5 for a tie, 0; NaN if it abstained) and `true_win` by the emotion that follows.
    """
    rng = np.random.default_rng(seed)
    flip = rng.random(len(asked)) < 0.5
    pairs = [(b, a) if f else (a, b) for a, b, f in zip(ours, theirs, flip, strict=True)]
    items = [
        (profiles[name], history, reply, seed_for(seed, name, k))
        for k, ((name, history), pair) in enumerate(zip(asked, pairs, strict=True))
        for reply in pair
    ]
    flat = seeker.react_batch(items)
    reactions = list(zip(flat[::2], flat[1::2], strict=True))
    groups = [
        CandidateGroup(tuple(history), pair, (x.text, y.text) if hears else None)
        for (_, history), pair, (x, y) in zip(asked, pairs, reactions, strict=True)
    ]
    rows = []
    for (name, _), f, verdict, felt in zip(asked, flip, judge.compare_batch(groups), reactions, strict=True):
        mine, other = (1, 0) if f else (0, 1)
        scores = verdict.scores or (np.nan, np.nan)
        rows.append(
            {
                "profile": name,
                "win": _beats(scores[mine], scores[other]),
                "true_win": _beats(felt[mine].emotion, felt[other].emotion),
            }
        )
    return pd.DataFrame(rows)


def _beats(mine: float, other: float) -> float:
    return (np.sign(mine - other) + 1) / 2


def self_deception(wins: pd.DataFrame) -> pd.Series:
    """How much better a policy looks to its own judge than people feel: win - true_win, for each row of `win_rates`."""
    return wins.win - wins.true_win
