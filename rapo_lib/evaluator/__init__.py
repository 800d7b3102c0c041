"""The evaluator seeker: a second, independent simulated person, for testing only.

It shares the profiles and the seam with the seeker one trains with, and nothing else: not the encoder, the fluency
model, the act classifier, the rules or the wording. A claim about training holds only if both seekers see it.
"""

from rapo_lib.evaluator.agreement import agreement, changes, disagreements
from rapo_lib.evaluator.person import EvaluatorSeeker

__all__ = ["EvaluatorSeeker", "agreement", "changes", "disagreements"]
