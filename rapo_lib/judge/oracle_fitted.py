"""The strongest reaction-free judge we can make: the rubric's readings, weighed by the truth they are fitted on.

"Reactions help" is only worth saying against a judge that lacks nothing but the reactions. So this one may read the
true emotion once: a ridge regression of its change on what the rubric reads of (history, reply), fitted on rollouts
with train people. When it judges, it sees replies and histories only. All choices are ours; its arm is labelled.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from rapo_lib.dialogue import Turn
from rapo_lib.encoder import embed
from rapo_lib.feedback import CandidateGroup, Verdict, scores_from
from rapo_lib.judge.critique import write_critique
from rapo_lib.judge.rubric import MANY_WORDS, Traits, read_replies, rubric_score, understood_before, wants_advice
from rapo_lib.runs import RapoError, write_bytes
from rapo_lib.simulation import Rollout

MOST = 10.0  # points an emotion moves at most in a turn: merits are predicted changes on this scale
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # ours; the best by leaving out one person is taken
FEWEST = 20  # rollouts; fewer fit anything
FIT_ON = 64  # rollouts that are sampled at least, where a short run would ask about fewer; ours
TRAITS = (
    "reflects", "asks", "advises", "reassures", "informs", "discloses", "validates", "dismisses", "flatters", "stock",
    "relevance", "repeats",
)  # fmt: skip


FITS = 9  # columns of `_shallow` beside the traits


def reply_features(items: Sequence[tuple[Sequence[Turn], str]], traits: Sequence[Traits]) -> np.ndarray:
    """What the rubric reads of each (history, reply), how it fits the moment, and the reply's embedding; (n, d)."""
    shallow = np.array([_shallow(history, t) for (history, _), t in zip(items, traits, strict=True)])
    return np.hstack([shallow, embed([reply for _, reply in items])])


def _shallow(history: Sequence[Turn], t: Traits) -> list[float]:
    wanted, understood = float(wants_advice(history)), float(understood_before(history))
    turns = sum(turn.speaker == "supporter" for turn in history)
    asked_last = next((float("?" in turn.text) for turn in reversed(history) if turn.speaker == "supporter"), 0.0)
    read = asdict(t)
    fit = [wanted, understood, t.advises * wanted, t.advises * understood, t.asks * asked_last, t.asks * turns / 8]
    return [
        *(read[name] for name in TRAITS),
        *fit,
        min(t.words, MANY_WORDS) / MANY_WORDS,
        float(bool(t.fault)),
        rubric_score(history, t),
    ]


@dataclass(frozen=True, slots=True)
class OracleFittedJudge:
    """Ranks replies by the change of emotion it expects of them; hears no reaction, reads no emotion."""

    weights: np.ndarray  # (d,)
    centre: np.ndarray  # (d,)
    scale: np.ndarray  # (d,)
    mean: float  # change expected of an average reply, points
    rollouts: int  # it was fitted on
    explained: float  # share of the variance of a left-out person's changes; below 0: worse than the mean

    def expected(self, items: Sequence[tuple[Sequence[Turn], str]], traits: Sequence[Traits]) -> np.ndarray:
        """The change of emotion expected of each reply, points; (n,)."""
        return (reply_features(items, traits) - self.centre) / self.scale @ self.weights + self.mean

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """A verdict for each group, from replies and history alone."""
        items = [(group.history, reply) for group in groups for reply in group.replies]
        traits = read_replies(items)
        merits = np.clip(self.expected(items, traits) / MOST, -1, 1)
        verdicts, start = [], 0
        for group in groups:
            end = start + len(group.replies)
            verdicts.append(_verdict(group, traits[start:end], merits[start:end].tolist()))
            start = end
        return verdicts


def _verdict(group: CandidateGroup, traits: Sequence[Traits], merits: Sequence[float]) -> Verdict:
    critiques = tuple(write_critique(group.history, trait, None) for trait in traits)
    if len(set(group.replies)) < 2:
        order = tuple(range(len(group.replies)))
        return Verdict(None, critiques, group.reactions, order, "abstained: fewer than two distinct replies")
    floor = min(min(merits) - 0.1, -1.0)  # what is no reply can never win
    scores = scores_from([floor if trait.fault else merit for trait, merit in zip(traits, merits, strict=True)])
    return Verdict(scores, critiques, group.reactions, tuple(sorted(range(len(scores)), key=lambda i: -scores[i])))


def fit_judge(rollouts: Sequence[Rollout]) -> OracleFittedJudge:
    """Ridge regression of the change of emotion; the penalty with the smallest error on people left out.

    Raises RapoError on fewer than 20 rollouts, or rollouts with one person only.
    """
    people = np.array([r.profile for r in rollouts])
    if len(rollouts) < FEWEST or len(set(people)) < 2:
        raise RapoError(
            f"the oracle-fitted judge needs at least {FEWEST} rollouts with 2 people or more to fit on, "
            f"not {len(rollouts)} with {len(set(people))}"
        )
    items = [(r.history, r.reply) for r in rollouts]
    x = reply_features(items, read_replies(items))
    change = np.array([r.emotion - r.before for r in rollouts])
    centre, scale = x.mean(0), _scale(x)
    u, s, vt = np.linalg.svd((x - centre) / scale, full_matrices=False)
    y = change - change.mean()
    errors = {penalty: _left_out(u, s, y, people, penalty) for penalty in PENALTIES}
    best = min(errors, key=lambda penalty: errors[penalty])
    weights = vt.T @ (s / (s**2 + best) * (u.T @ y))
    explained = 1 - errors[best] / max(float((y**2).mean()), 1e-12)
    return OracleFittedJudge(weights, centre, scale, float(change.mean()), len(rollouts), explained)


def save_judge(judge: OracleFittedJudge, path: Path) -> Path:
    """Write a fitted judge as safetensors."""
    return write_bytes(path, save({name: np.asarray(value, dtype=np.float64) for name, value in asdict(judge).items()}))


def load_judge(path: Path) -> OracleFittedJudge:
    """The inverse of `save_judge`; a missing or damaged file is a RapoError."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RapoError(f"cannot read the fitted judge {path}: {error}") from None
    single = {"mean": float(found["mean"]), "rollouts": int(found["rollouts"]), "explained": float(found["explained"])}
    return OracleFittedJudge(**{**found, **single})


def _scale(x: np.ndarray) -> np.ndarray:
    """Standard deviations, with the embedding's columns shrunk so that both blocks carry the same variance; (d,)."""
    shallow = len(TRAITS) + FITS
    share = np.ones(x.shape[1])
    share[shallow:] = np.sqrt((x.shape[1] - shallow) / shallow)
    return np.maximum(x.std(0), 1e-6) * share


def _left_out(u: np.ndarray, s: np.ndarray, y: np.ndarray, people: np.ndarray, penalty: float) -> float:
    """Mean squared error on each person by a ridge fitted on the others, without refitting.

    With the hat matrix H = 11'/n + U S U', a person's rows g are missed by (I - H_gg)^-1 (y - H y)_g.
    """
    hat = (u * (s**2 / (s**2 + penalty))) @ u.T + 1 / len(y)
    missed = y - hat @ y
    total = 0.0
    for person in np.unique(people):
        g = people == person
        total += float((np.linalg.solve(np.eye(g.sum()) - hat[np.ix_(g, g)], missed[g]) ** 2).sum())
    return total / len(y)
