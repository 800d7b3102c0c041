"""Readers for the dialogue files people in this field have: one call in, one meaning out."""

from rapo_lib.corpora.corpus import Corpus, describe, iter_dialogues, load_dialogues, profiles_from_dialogues
from rapo_lib.corpora.files import CorpusError, Dropped

__all__ = [
    "Corpus",
    "CorpusError",
    "Dropped",
    "describe",
    "iter_dialogues",
    "load_dialogues",
    "profiles_from_dialogues",
]
