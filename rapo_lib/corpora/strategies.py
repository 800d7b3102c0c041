"""Support strategies as files spell them, and ESConv's eight names for them.

ESConv's own names: Liu et al. 2021. The misspellings are FailedESConv's. ExTES's sixteen (Zheng et al. 2024)
are folded into the eight by what the supporter does; that folding is ours.
"""

import re
from functools import lru_cache

SPELLINGS = {
    "Question": ("Questions", "Clarification"),
    "Restatement or Paraphrasing": (
        "Restatement",
        "Paraphrasing",
        "Retatement or Paraphrasing",
        "Reflective Statements",
    ),
    "Reflection of feelings": ("Reflection", "Empathetic Statements", "Emotional Validation"),
    "Self-disclosure": (),
    "Affirmation and Reassurance": (
        "Approval and Reassurance",
        "Affirmation",
        "Offer Hope",
        "Avoid Judgment and Criticism",
        "Normalize Experiences",
    ),
    "Providing Suggestions": (
        "Direct Guidance",
        "Providing Suggestions or Information",
        "Suggest Options",
        "Collaborative Planning",
        "Provide Different Perspectives",
        "Reframe Negative Thoughts",
        "Promote Self-Care Practices",
        "Stress Management",
    ),
    "Information": ("Share Information",),
    "Others": ("Other",),
}


def folded(name: str) -> str:
    """Letters only: case, hyphens, brackets and abbreviations such as "(RS)" do not matter."""
    return re.sub(r"[^a-z]", "", re.sub(r"\([^()]*\)", "", name).casefold())


NAMES = {folded(spelling): name for name, others in SPELLINGS.items() for spelling in (name, *others)}


@lru_cache(maxsize=1024)
def strategy_name(spelling: str) -> str | None:
    """ESConv's name for a strategy, or None where it is not one we know."""
    return NAMES.get(folded(spelling))
