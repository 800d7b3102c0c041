"""How long a training step takes: group rows and packed sampling against trl's own path, the same work in turn.

`python -m rapo_lib.bench` prints a table; only the ratio carries over to other machines.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from rapo_lib.dialogue import load_profiles, opening_history
from rapo_lib.feedback import Verdict

GROUPS, GROUP, TOKENS = 4, 4, 24  # 16 replies of 24 tokens
CRITIQUE = "Name the feeling you hear and ask one open question. Do not give advice yet."
WARM_UP = 2  # steps not counted


def scripted(rows: Sequence[object], replies: Sequence[Sequence[str]]) -> list[Verdict]:
    """A feedback that costs nothing, so that the trainer alone is timed; longer is better."""
    return [
        Verdict(tuple(float(len(r)) for r in group), (CRITIQUE,) * len(group), None, tuple(range(len(group))))
        for group in replies
    ]


def measure(fast: bool, steps: int, weight: float) -> dict[str, float]:
    """Median seconds of a step after the warm-up, of its sampling, and peak memory, in this process."""
    from datasets import Dataset

    from rapo_lib.ablation import training_rows
    from rapo_lib.hybrid import RAPOConfig, RAPOTrainer
    from rapo_lib.models import load_model, lora_config

    class Timed(RAPOTrainer):
        step_seconds: list[float] = []
        sample_seconds: list[float] = []

        def training_step(self, *args: object, **options: object) -> object:
            start = time.perf_counter()
            loss = super().training_step(*args, **options)
            self.step_seconds.append(time.perf_counter() - start)
            return loss

        def _generate(self, ids: list[list[int]]) -> object:
            start = time.perf_counter()
            out = super()._generate(ids)
            self.sample_seconds.append(time.perf_counter() - start)
            return out

        def compute_loss(self, *args: object, **options: object) -> object:
            mine = super() if fast else super(RAPOTrainer, self)  # trl's own loss, not ours on its rows
            return mine.compute_loss(*args, **options)

    model, tokenizer = load_model()
    people = load_profiles("train")[: GROUPS * 2]
    rows = training_rows([(p, opening_history(p)) for p in people], tokenizer, 80)
    with TemporaryDirectory() as scratch:
        args = RAPOConfig(
            output_dir=scratch,
            max_steps=steps + WARM_UP,
            per_device_train_batch_size=GROUPS * GROUP,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            generation_kwargs={"min_new_tokens": TOKENS},
            distillation_weight=weight,
            fast=fast,
        )
        trainer = Timed(
            model, scripted, args, Dataset.from_list(rows), processing_class=tokenizer, peft_config=lora_config()
        )
        if fast:
            trainer.eos_token_ids = [-1]  # nothing ends a reply, as min_new_tokens does for trl
        trainer.train()
    return {
        "step_s": statistics.median(trainer.step_seconds[WARM_UP:]),
        "sample_s": statistics.median(trainer.sample_seconds[WARM_UP:]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Time both paths, each in a process of its own, and print them side by side."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--steps", type=int, default=6)
    cli.add_argument("--weight", type=float, default=0.5, help="w")
    cli.add_argument("--one", choices=("fast", "trl"), help="measure one path in this process")
    options = cli.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(measure(options.one == "fast", options.steps, options.weight)) + "\n")
        return
    found = {}
    for path in ("trl", "fast"):
        command = [sys.executable, "-m", "rapo_lib.bench", "--one", path, "--steps", str(options.steps)]
        command += ["--weight", str(options.weight)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        found[path] = json.loads(done.stdout.strip().splitlines()[-1])
    sys.stdout.write(f"{'path':6}{'step s':>8}{'sampling s':>12}{'peak MiB':>10}{'ratio':>7}\n")
    for path, row in found.items():
        ratio = row["step_s"] / found["trl"]["step_s"]
        sys.stdout.write(f"{path:6}{row['step_s']:8.2f}{row['sample_s']:12.2f}{row['peak_mib']:10.0f}{ratio:7.2f}\n")


if __name__ == "__main__":
    main()
