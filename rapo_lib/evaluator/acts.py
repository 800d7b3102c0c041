"""What one sentence of a supporter does, for the evaluator: a ridge classifier over shapes of words.

Features are one and two shapes in a row, the first words, the words themselves and the mean word vector; each act is a
least-squares fit in closed form on the sentences we wrote (`data/evaluator/acts.json`). The twelve acts follow Hill's
helping skills and ESConv's strategies; judge, praise, vent and chat are ours.
"""

import json
from functools import cache, lru_cache
from importlib import resources

import numpy as np

from rapo_lib.evaluator.order import shapes
from rapo_lib.evaluator.words import meaning, tokens

ACTS = (
    "explore",  # an open question, an invitation to tell
    "check",  # a question that yes, no or a number answers
    "mirror",  # says back what was said or felt
    "accept",  # the feeling makes sense, the burden is seen
    "advise",
    "inform",
    "comfort",  # it will be all right, you can do it, I am here
    "share",  # the supporter's own life
    "judge",  # blames, belittles
    "praise",  # flatters
    "vent",  # speaks like somebody who seeks help
    "chat",  # greetings, small talk, nothing
)
RIDGE = 1.0  # weight of the squared norm, by cross-validation on our own sentences
MEANING = 1.0  # size of the mean word vector beside the run features, chosen the same way
SHARPNESS = 10.0  # p = softmax(SHARPNESS * score), chosen the same way


def runs(sentence: str) -> frozenset[str]:
    """Shapes alone and in pairs, the first three by place, and the words as they are."""
    line = ["<s>", *shapes(sentence), "</s>"]
    found = {" ".join(line[i : i + n]) for n in (1, 2) for i in range(len(line) - n + 1)}
    spoken = tokens(sentence)
    return frozenset(found | {f"{place}:{s}" for place, s in enumerate(line[1:4])} | {f"={word}" for word in spoken})


def features(sentence: str, column: dict[str, int]) -> np.ndarray:
    """One row: run features scaled to length 1, the mean word vector, and a constant."""
    row = np.zeros(len(column))
    row[[column[run] for run in runs(sentence) if run in column]] = 1
    row /= max(float(np.linalg.norm(row)), 1.0)
    return np.concatenate([row, MEANING * meaning(sentence), [1.0]])


def fit_ridge(x: np.ndarray, target: np.ndarray, penalty: float = RIDGE) -> np.ndarray:
    """W (d, C) minimising |xW - target|^2 + penalty * |W|^2, by its dual: W = x^T (x x^T + penalty I)^-1 target."""
    return x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(len(x)), target)


@cache
def examples() -> tuple[tuple[str, ...], np.ndarray]:
    """The sentences we wrote, and the index of each one's act."""
    text = (resources.files("rapo_lib") / "data" / "evaluator" / "acts.json").read_text("utf-8")
    pairs = [(sentence, ACTS.index(act)) for act, lines in json.loads(text).items() for sentence in lines]
    return tuple(sentence for sentence, _ in pairs), np.array([act for _, act in pairs])


@cache
def classifier() -> tuple[dict[str, int], np.ndarray]:
    """The columns of the run features, and the fitted weights."""
    lines, labels = examples()
    column = {run: i for i, run in enumerate(sorted(set().union(*map(runs, lines))))}
    x = np.stack([features(line, column) for line in lines])
    return column, fit_ridge(x, np.eye(len(ACTS))[labels])


@lru_cache(maxsize=20_000)
def act_shares(sentence: str) -> np.ndarray:
    """p(act | sentence), shape (12,), in the order of ACTS."""
    column, weights = classifier()
    score = SHARPNESS * (features(sentence, column) @ weights)
    p = np.exp(score - score.max())
    return p / p.sum()


def cross_validate(folds: int = 5, seed: int = 0) -> float:
    """Share of our own sentences recognised by classifiers that were not shown them."""
    lines, labels = examples()
    fold = np.random.default_rng(seed).permutation(len(lines)) % folds
    x = np.stack([features(line, classifier()[0]) for line in lines])
    hits = 0
    for number in range(folds):
        shown = fold != number
        found = fit_ridge(x[shown], np.eye(len(ACTS))[labels[shown]])
        hits += int(((x[~shown] @ found).argmax(1) == labels[~shown]).sum())
    return hits / len(lines)
