"""The shipped seeker profiles: complete, balanced, of the expected lengths, and all different people."""

import re
from collections import Counter
from itertools import combinations

import pytest

from rapo_lib.dialogue import ADVICE, SPLITS, VOICES, SeekerProfile, load_profiles, new_combinations

COUNTS = {"train": 48, "dev": 12, "heldout": 40}
PROBLEMS = {
    "academic pressure",
    "alcohol abuse",
    "appearance anxiety",
    "breakup with partner",
    "conflict with parents",
    "issues with children",
    "issues with parents",
    "job crisis",
    "ongoing depression",
    "problems with friends",
    "procrastination",
    "sleep problems",
}
EMOTIONS = {"anger", "anxiety", "depression", "disgust", "fear", "nervousness", "sadness", "shame"}
SHARES = {"heard_first": 0.40, "wants_plan": 0.25, "hates_reassurance": 0.20, "wary_of_advice": 0.15}


def everyone() -> list[SeekerProfile]:
    """All profiles of all splits."""
    return [profile for split in SPLITS for profile in load_profiles(split)]


def words(text: str) -> list[str]:
    """Lower-case words; an apostrophe inside a word belongs to it."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


def texts(profile: SeekerProfile) -> list[str]:
    """Every piece of writing in a profile."""
    told = [text for d in profile.disclosures for text in (d.topic, d.text)]
    return [profile.situation, profile.opening, profile.need, profile.theme, *profile.details, *told]


def trigrams(profile: SeekerProfile) -> set[tuple[str, ...]]:
    """The word 3-grams of a profile's whole text."""
    w = words(" ".join(texts(profile)))
    return set(zip(w, w[1:], w[2:], strict=False))


def jaccard(a: set[tuple[str, ...]], b: set[tuple[str, ...]]) -> float:
    """|A and B| / |A or B|."""
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("split", SPLITS)
def test_count_and_ids(split: str) -> None:
    expected = [f"{split}-{n:03d}" for n in range(1, COUNTS[split] + 1)]
    assert [p.id for p in load_profiles(split)] == expected


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_known_and_evenly_spread(split: str) -> None:
    profiles = load_profiles(split)
    problems, emotions = Counter(p.problem for p in profiles), Counter(p.emotion_type for p in profiles)
    assert set(problems) == PROBLEMS and set(emotions) == EMOTIONS
    assert max(problems.values()) - min(problems.values()) <= 1
    assert max(emotions.values()) - min(emotions.values()) <= 1


@pytest.mark.parametrize("split", SPLITS)
def test_attitudes_have_their_shares(split: str) -> None:
    profiles = load_profiles(split)
    counts = Counter(p.advice for p in profiles)
    assert set(counts) == set(ADVICE) == set(SHARES)
    for advice, share in SHARES.items():
        assert abs(counts[advice] - share * len(profiles)) < 1, advice


@pytest.mark.parametrize("split", SPLITS)
def test_every_voice_is_heard(split: str) -> None:
    counts = Counter(p.voice for p in load_profiles(split))
    assert set(counts) == set(VOICES)
    assert max(counts.values()) - min(counts.values()) <= 3


@pytest.mark.parametrize("split", SPLITS)
def test_starts_and_ages_vary_within_range(split: str) -> None:
    profiles = load_profiles(split)
    assert all(30 <= p.start <= 40 and 16 <= p.age <= 78 for p in profiles)
    assert len({p.start for p in profiles}) >= 8
    assert min(p.age for p in profiles) < 25 and max(p.age for p in profiles) > 60


@pytest.mark.parametrize("profile", everyone(), ids=lambda p: p.id)
def test_texts_are_there_and_of_the_right_length(profile: SeekerProfile) -> None:
    assert all(text == text.strip() and text for text in texts(profile))
    assert 1 <= len(re.findall(r"[.!?](?:\s|$)", profile.situation)) <= 3
    assert 10 <= len(profile.opening.split()) <= 35
    assert 6 <= len(profile.details) <= 8
    assert [d for d in profile.details if not 6 <= len(d.split()) <= 25] == []
    assert 2 <= len(profile.disclosures) <= 3
    assert [d.text for d in profile.disclosures if not 10 <= len(d.text.split()) <= 35] == []
    assert [d.topic for d in profile.disclosures if not 2 <= len(d.topic.split()) <= 7] == []


def test_jaccard_by_hand() -> None:
    assert jaccard({("a", "b", "c"), ("b", "c", "d")}, {("b", "c", "d"), ("c", "d", "e")}) == pytest.approx(1 / 3)


def test_no_two_people_are_near_duplicates() -> None:
    grams = {p.id: trigrams(p) for p in everyone()}
    close = [(a, b) for a, b in combinations(grams, 2) if jaccard(grams[a], grams[b]) >= 0.1]
    assert close == []


def test_no_stock_openings() -> None:
    starts = Counter(tuple(words(p.opening)[:4]) for p in everyone())
    assert max(starts.values()) <= 3


def test_no_sentence_is_used_twice() -> None:
    told = Counter(s for p in everyone() for s in (p.situation, p.opening, p.need, p.theme, *p.details))
    assert [s for s, n in told.items() if n > 1] == []


def test_fifteen_heldout_profiles_combine_problem_and_attitude_anew() -> None:
    assert len(new_combinations()) == 15
