"""What one sentence of a supporter does: ask, reflect, validate, suggest, inform, reassure, disclose, dismiss ...

Multinomial logistic regression on the sentence's embedding and a few surface features, fitted in seconds on
sentences we wrote (`data/reply_acts.jsonl`); the weights are kept in the user's cache under the hash of both.
The acts follow ESConv's strategies and Hill's helping skills; stock, flattery, dismissal and distress are ours.
"""

import inspect
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from rapo_lib.encoder import SHA256, embed
from rapo_lib.runs import cache_dir, stable_hash, write_bytes

ACTS = (
    "question_open",
    "question_closed",
    "reflection",
    "validation",
    "suggestion",
    "information",
    "reassurance",
    "disclosure",
    "dismissal",
    "stock",
    "flattery",
    "distress",
    "other",
)
PENALTY = 1e-4  # weight of the squared norm; ours, by cross-validation on our own sentences
SURFACE = 0.3  # size of a surface feature beside an embedding of length 1; ours, chosen the same way

FEATURES: dict[str, str] = {  # regular expressions over the lower-cased sentence
    "question": r"\?\s*$",
    "wh_first": r"^\W*(and |so |but |hmm,? |well,? |oh,? )*(what|how|why|when|where|which|who|whose|in what)\b",
    "verb_first": r"^\W*(and |so |but )?(do|does|did|is|are|was|were|have|has|had|can|will|would|could|should)\b",
    "tell_me": r"\b(tell me|say) (a bit |a little )?(more|about|what)\b|\bhear more\b|\bdescribe\b",
    "advice": r"\b(you (could|should|might|may|need to|ought|can)|try|maybe|perhaps|why (don't|not)|suggest|recommend"
    r"|consider(ed)?|what about|how about|what if|if i were you|advice|tried|it (might|may|could) (help|be))\b",
    "imperative": r"^\W*(please |just |then |first )?(try|make|take|give|call|talk|write|ask|go|tell|let"
    r"|get|start|put|keep"
    r"|find|focus|set|look|spend|do|don't|stop|sit|think|be)\b",
    "mirror": r"^\W*(so|it (sounds|seems|feels|must)|sounds|seems|you (feel|felt|sound|seem|are|were|miss"
    r"|want|wanted)|you're"
    r"|i (hear|sense|can (hear|tell))|what i hear|if i understand|in other words)\b",
    "i_first": r"^\W*(i|i'm|i've|i'd|my)\b",
    "my_past": r"\b(i|we) (was|were|had|went|lost|felt|moved|used to|quit|failed|also|too|remember"
    r"|struggled|did|took|got)\b"
    r"|\b(i've been|happened to me|when i|i too|my own|myself|same (thing|way|problem))\b",
    "future_good": r"\b(you'll|will|going to|get (through|better|easier)|sure|confident|hope|not alone|stronger)\b",
    "makes_sense": r"\b(makes? sense|understandable|no wonder|of course|natural|normal|valid|right to"
    r"|reason to|courage"
    r"|brave|must (be|have been)|sorry|that('s| is) (a lot|so|really|hard|tough)|deserve|not your fault"
    r"|i can (see|imagine))\b",
    "general": r"\b(most|many|often|usually|research|studies|people|there (is|are)|according|can (be|help))\b",
    "you": r"\b(you|you're|you've|your|yours)\b",
    "i": r"\b(i|i'm|i've|i'd|me|my)\b",
}
_COMPILED = {name: re.compile(pattern) for name, pattern in FEATURES.items()}


def surface(sentence: str) -> np.ndarray:
    """0-1 features that an embedding blurs: form of the question, who is spoken of, modal verbs, length."""
    text = sentence.lower().replace("’", "'")
    found = [float(pattern.search(text) is not None) for pattern in _COMPILED.values()]
    words = text.split()
    first_person = sum(word.strip(".,!?") in ("i", "i'm", "i've", "me", "my") for word in words) / max(len(words), 1)
    return np.array([*found, min(len(words) / 20, 1.0), min(3 * first_person, 1.0)])


def features(sentences: Sequence[str]) -> np.ndarray:
    """One row a sentence: embedding, surface features, and a constant for the intercept."""
    shallow = np.array([surface(sentence) for sentence in sentences])
    return np.hstack([embed(sentences), SURFACE * shallow, np.ones((len(sentences), 1))])


def fit(x: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Weights W (d, C) minimising mean cross-entropy of softmax(xW) + PENALTY * |W|^2, intercept unpenalised."""
    target = np.eye(classes)[labels]  # (n, C)
    penalised = np.ones((x.shape[1], 1))
    penalised[-1] = 0

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(x.shape[1], classes)
        log_p = log_softmax(x @ weights, axis=1)  # (n, C)
        kept = penalised * weights
        slope = x.T @ (np.exp(log_p) - target) / len(x) + 2 * PENALTY * kept
        return -(target * log_p).sum() / len(x) + PENALTY * (kept**2).sum(), slope.ravel()

    start = np.zeros(x.shape[1] * classes)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return found.x.reshape(x.shape[1], classes)


@cache
def examples() -> tuple[tuple[str, ...], np.ndarray]:
    """The sentences we wrote and the index of each one's act."""
    lines = (resources.files("rapo_lib") / "data" / "reply_acts.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines if line]
    return tuple(r["text"] for r in records), np.array([ACTS.index(r["act"]) for r in records])


def _key() -> str:
    """Changes with the sentences, the encoder, the features and the fit."""
    sentences, labels = examples()
    code = "".join(inspect.getsource(part) for part in (surface, features, fit))
    return stable_hash([sentences, labels.tolist(), FEATURES, PENALTY, SURFACE, SHA256, code])[:16]


@cache
def weights() -> np.ndarray:
    """The fitted classifier, from the cache where it is whole."""
    path = cache_dir() / "acts" / f"{_key()}.safetensors"
    if path.is_file():
        try:
            return load_file(path)["weights"]
        except (SafetensorError, KeyError):
            path.unlink()  # cut short or foreign: fit again
    sentences, labels = examples()
    fitted = fit(features(sentences), labels, len(ACTS)).astype(np.float32)
    write_bytes(path, save({"weights": fitted}))
    return fitted


def act_probabilities(sentences: Sequence[str]) -> np.ndarray:
    """p(act | sentence), shape (n, 13), columns in the order of ACTS."""
    if not sentences:
        return np.empty((0, len(ACTS)))
    return softmax(features(sentences) @ weights(), axis=1)


def cross_validate(folds: int = 5, seed: int = 0) -> float:
    """Share of our own sentences recognised by classifiers that were not shown them."""
    sentences, labels = examples()
    x = features(sentences)
    fold = np.random.default_rng(seed).permutation(len(labels)) % folds
    hits = 0
    for number in range(folds):
        shown = fold != number
        guess = (x[~shown] @ fit(x[shown], labels[shown], len(ACTS))).argmax(1)
        hits += int((guess == labels[~shown]).sum())
    return hits / len(labels)
