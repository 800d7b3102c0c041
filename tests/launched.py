"""A training as `accelerate launch` starts it, in one process or several; each leaves what it ended with."""

import json
import sys
from pathlib import Path

from accelerate import PartialState
from safetensors.torch import save_file
from trainers import G, Scripted, make, rows, train_tiny_arm

from rapo_lib.dialogue import load_profiles
from rapo_lib.feedback import EmbeddedJudge
from rapo_lib.hybrid import RAPOTrainer
from rapo_lib.models import load_tokenizer
from rapo_lib.seeker import AppraisalSeeker
from rapo_lib.simulation import SimulatedFeedback

REPLIES = (
    "That sounds exhausting. What is the worst of it?",
    "You should just make a list and stick to it.",
    "I hear how alone you feel with this.",
    "Cheer up, everybody has days like these.",
    "What happened then?",
    "It hurts when nobody asks how you are.",
)


class Spoken(RAPOTrainer):
    """Says given sentences, so that the replies do not depend on who draws them."""

    def _generate(self, ids):
        said = [REPLIES[(sum(row) + i % G) % len(REPLIES)] for i, row in enumerate(ids)]
        return ids, [self.processing_class(text).input_ids + [self.eos_token_ids[0]] for text in said]


class Heard:
    """A feedback that remembers whom it was asked about."""

    def __init__(self, inner):
        self.inner, self.asked = inner, []

    def __call__(self, asked, replies):
        self.asked += [[row["profile"], *group] for row, group in zip(asked, replies, strict=True)]
        return self.inner(asked, replies)


def one_update_twice(folder, state):
    """Two updates by the real seeker and judge, the batch in one piece or in two on every process."""
    people = {p.id: p for p in load_profiles("train")}
    for parts in (1, 2):
        heard = Heard(SimulatedFeedback(AppraisalSeeker(), EmbeddedJudge(), people))
        options = {"max_completion_length": 24, "beta": 0.1, "distillation_weight": 0.4, "optim": "sgd",
                   "learning_rate": 1.0, "gradient_accumulation_steps": parts,
                   "per_device_train_batch_size": 4 * G // state.num_processes // parts}  # fmt: skip
        trainer = make(load_tokenizer(), folder / f"work-{parts}", heard, kind=Spoken, **options)
        trainer.train()
        leave(folder, f"parts-{parts}-{state.process_index}", trainer, heard.asked)
        trainer.save_adapter(folder / f"adapter-{parts}")


def stopped_and_resumed(folder, state):
    """Four updates with sampled replies, then the last two again; nothing is said about one person, so that what a
    process has to distil is not what the others have."""
    options = {"kind": RAPOTrainer, "max_steps": 4, "per_device_train_batch_size": 2 * G // state.num_processes,
               "learning_rate": 0.02, "save_strategy": "steps", "save_steps": 2, "save_total_limit": None}  # fmt: skip
    silent = {rows()[0]["profile"]}
    whole = make(load_tokenizer(), folder / "work", Scripted(silent=silent), **options)
    whole.train()
    leave(folder, f"whole-{state.process_index}", whole, [])
    again = make(load_tokenizer(), folder / "again", Scripted(silent=silent), **options)
    again.train(folder / "work" / "checkpoint-2")
    leave(folder, f"again-{state.process_index}", again, [])


def an_arm(folder, state):
    """The full arm on the tiny model that lies in the folder."""
    train_tiny_arm(folder / "arm", folder / "model")


def leave(folder, name, trainer, asked):
    """Both adapters, the log and what was asked."""
    weights = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if "lora_" in n}
    save_file(weights, folder / f"{name}.safetensors")
    record = {"asked": asked, "log": trainer.state.log_history}
    (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    what = {"update": one_update_twice, "resume": stopped_and_resumed, "arm": an_arm}[sys.argv[1]]
    what(Path(sys.argv[2]), PartialState(cpu=True))
