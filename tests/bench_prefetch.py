"""Seconds an update with a slow language-model seeker, asked one update ahead or not. By hand:

    python tests/bench_prefetch.py [SECONDS AN ANSWER TAKES]

The seeker is the real one behind a real endpoint on loopback, whose answers come late; policy, judge and trainer are
those of the cpu profile. What can be saved at most is the shorter of the two, asking and training.
"""

import json
import statistics
import sys
import tempfile
import time

from datasets import Dataset
from stub_endpoint import said, serving

from rapo_lib.ablation import training_rows
from rapo_lib.chat import ChatCache, ChatModel, Endpoint
from rapo_lib.dialogue import load_profiles, opening_history
from rapo_lib.feedback import EmbeddedJudge
from rapo_lib.hybrid import RAPOConfig, RAPOTrainer
from rapo_lib.lm.seeker import LMSeeker
from rapo_lib.models import load_model, lora_config
from rapo_lib.simulation import SimulatedFeedback

UPDATES, WARM_UP = 4, 1  # counted, and before them
ANSWER = json.dumps({"thought": "They listened.", "change": 3, "reaction": "Yes, I did not expect anybody to ask."})


class Timed(RAPOTrainer):
    """Notes when each update is done."""

    def training_step(self, *args, **options):
        loss = super().training_step(*args, **options)
        self.done = [*getattr(self, "done", ()), time.perf_counter()]
        return loss


def seconds(late: float, prefetch: bool) -> float:
    """Median time from one update to the next."""

    def answer(body, headers):
        reply = said(ANSWER)
        reply.before = late
        return reply

    people = load_profiles("train")
    model, tokenizer = load_model()
    with serving(answer) as server, tempfile.TemporaryDirectory() as scratch:
        chat = ChatModel(Endpoint(base_url=server.url, model="stub", in_flight=16), cache=ChatCache(None, "off"))
        feedback = SimulatedFeedback(LMSeeker(chat), EmbeddedJudge(), {p.id: p for p in people})
        args = RAPOConfig(output_dir=scratch, max_steps=UPDATES + WARM_UP, per_device_train_batch_size=16,
                          max_completion_length=24, prefetch=prefetch)  # fmt: skip
        rows = Dataset.from_list(training_rows([(p, opening_history(p)) for p in people], tokenizer, 80))
        trainer = Timed(model, feedback, args, rows, processing_class=tokenizer, peft_config=lora_config())
        trainer.train()
    gaps = [b - a for a, b in zip(trainer.done, trainer.done[1:], strict=False)]
    return statistics.median(gaps[WARM_UP - 1 :])


def main() -> None:
    """Print seconds an update with answers that come late, asked in time and ahead, and with answers at once."""
    late = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    for name, wait, ahead in (("off", late, False), ("prefetch", late, True), ("no latency", 0.0, False)):
        sys.stdout.write(f"{name:12}{seconds(wait, ahead):7.2f} s an update\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
