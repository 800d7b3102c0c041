"""How long a training step takes: this trainer against trl's SDPOTrainer as it comes, the same work, in turn.

`python -m rapo_lib.bench` prints a table; only the ratios carry over to other machines. Both sides sample 16 replies of
24 tokens to 4 prompts, score them for nothing, and make one update with w = 0.5: the same model, precision, prompts,
note to the teacher and LoRA. Ours has a critique of its own for every reply, and also measures the distance from the
start on one group, which stock does not.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any

from rapo_lib.dialogue import Message, Turn, load_profiles, to_messages
from rapo_lib.feedback import Verdict

GROUPS, GROUP, TOKENS = 4, 4, 24  # 16 replies of 24 tokens
WARM_UP = 2  # steps not counted
STOCK, OURS = "stock", "ours"
PHASES = ("sampling", "feedback", "student", "teacher", "backward", "distance", "optimiser", "rest")
CRITIQUES = (  # one for each reply of a group, of about one length
    "Name the feeling you hear and ask one open question. Do not give advice yet.",
    "You answer before they have finished. Say what you heard, then let them go on.",
    "Warm, but vague. Take up one thing they said and stay with that for a while.",
    "Two questions at once are too many. Keep the second one and drop the first.",
)
EARLIER = (  # what came before, as often as a long prompt needs it
    ("I have been putting off talking about this for weeks now.", "I am glad you are here. What made today the day?"),
    ("The evenings are worst, when everything goes quiet at home.", "The quiet sounds heavy. What is it like then?"),
    ("I go over each word I said and wish I could take it back.", "That is a lot to carry alone. Which words stay?"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One side at one prompt length: medians over the counted steps."""

    path: str
    prompt_tokens: int  # of the longest prompt
    step_s: float
    peak_mib: float
    phases: dict[str, float]  # seconds


class Clock:
    """Seconds by phase; what happens in a phase within another counts there alone."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.steps: list[dict[str, float]] = []
        self._inside: list[float] = []

    def begin(self) -> None:
        """A step begins."""
        self.steps.append(dict.fromkeys(PHASES, 0.0) | {"rest": -self.now()})

    def end(self) -> None:
        """The step has ended; what no phase has claimed is the rest."""
        self.steps[-1]["rest"] += self.now() - sum(v for k, v in self.steps[-1].items() if k != "rest")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is inside."""
        start = self.now()
        self._inside.append(0.0)
        yield
        took = self.now() - start
        self.steps[-1][name] += took - self._inside.pop()
        if self._inside:
            self._inside[-1] += took

    def timed(self, name: str | Callable[[], str], function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted; a name may depend on the moment of the call."""

        def call(*args: Any, **options: Any) -> Any:
            with self.phase(name if isinstance(name, str) else name()):
                return function(*args, **options)

        return call


def scripted(rows: Sequence[object], replies: Sequence[Sequence[str]]) -> list[Verdict]:
    """A feedback that costs nothing, so that the trainer alone is timed; longer is better."""
    return [
        Verdict(tuple(float(len(r)) for r in group), CRITIQUES[: len(group)], None, tuple(range(len(group))))
        for group in replies
    ]


def prompts(tokenizer: Any, at_least: int) -> list[list[Message]]:
    """Chat prompts of at least so many tokens: a person's opening after as many earlier exchanges as needed."""
    from rapo_lib.sampling import prompt_ids

    def grown(opening: str) -> list[Message]:
        turns = [Turn("seeker", opening)]
        while len(prompt_ids(to_messages(turns), tokenizer)) < at_least:
            said, answer = EARLIER[len(turns) // 2 % len(EARLIER)]
            turns = [Turn("seeker", said), Turn("supporter", answer), *turns]
        return to_messages(turns)

    return [grown(person.opening) for person in load_profiles("train")[: GROUPS * 2]]


def _stock(model: Any, tokenizer: Any, messages: Sequence[list[Message]], shared: dict[str, Any]) -> Any:
    """trl's trainer as it comes, asked for the same work."""
    from datasets import Dataset

    from rapo_lib.hybrid import SDPOTrainer
    from rapo_lib.models import lora_config
    from rapo_lib.training.config import RAPOConfig, SDPOConfig

    same = ("learning_rate", "lr_scheduler_type", "warmup_steps", "scale_rewards", "loss_type", "distillation_mode",
            "distillation_topk", "distillation_alpha", "distillation_add_tail", "teacher_model_kind", "bf16", "use_cpu",
            "teacher_update_rate", "gradient_checkpointing", "max_prompt_length", "disable_tqdm", "save_strategy",
            "use_successful_as_teacher", "diagnostics_warning_interval", "report_to", "temperature")  # fmt: skip
    ours = RAPOConfig(**shared)
    args = SDPOConfig(
        **shared,
        **{name: getattr(ours, name) for name in same},
        generation_kwargs={"min_new_tokens": TOKENS},
        include_environment_feedback=True,
        reprompt_template="{prompt}{solution}{feedback}",
        feedback_template="\n\n(Note to the supporter: {feedback_raw})",
    )
    rows = [{"prompt": m, "privileged_context": CRITIQUES[i % GROUP]} for i, m in enumerate(messages)]
    return SDPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(len(c[0]["content"])) for c in completions],
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(),
    )


def _ours(model: Any, tokenizer: Any, messages: Sequence[list[Message]], shared: dict[str, Any]) -> Any:
    from datasets import Dataset

    from rapo_lib.hybrid import RAPOConfig, RAPOTrainer
    from rapo_lib.models import lora_config

    rows = [{"prompt": m, "profile": str(i), "history": []} for i, m in enumerate(messages)]
    data = Dataset.from_list(rows)
    trainer = RAPOTrainer(model, scripted, RAPOConfig(**shared), data, tokenizer, lora_config())
    trainer.eos_token_ids = [-1]  # nothing ends a reply, as min_new_tokens does for trl
    return trainer


def _watched(trainer: Any, clock: Clock) -> None:
    """Put the clock round the phases of a trainer of either kind."""
    import torch
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.begin()

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.updating = clock.phase("optimiser")
            self.updating.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.updating.__exit__(None, None, None)
            clock.end()

    def whose() -> str:
        return "student" if torch.is_grad_enabled() else "teacher"

    named = {"_generate": "sampling", "_calculate_rewards": "feedback", "compute_loss": "student",
             "_forward_logits": whose, "_teacher_logits": "teacher", "_kl_to_start": "distance"}  # fmt: skip
    for method, name in named.items():
        if method in dir(type(trainer)):
            setattr(trainer, method, clock.timed(name, getattr(trainer, method)))
    trainer.accelerator.backward = clock.timed("backward", trainer.accelerator.backward)
    trainer.add_callback(Steps())


def measure(
    path: str,
    prompt_tokens: int,
    steps: int,
    weight: float,
    policy: tuple[Any, Any] | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Result:
    """Time one path in this process, whose peak memory is taken; `policy` is a model and its tokenizer."""
    from rapo_lib.models import load_model
    from rapo_lib.sampling import prompt_ids

    model, tokenizer = policy or load_model()
    messages = prompts(tokenizer, prompt_tokens)
    clock = Clock(now)
    with TemporaryDirectory() as scratch:
        shared = {
            "output_dir": scratch,
            "max_steps": steps + WARM_UP,
            "per_device_train_batch_size": GROUPS * GROUP,
            "num_generations": GROUP,
            "max_completion_length": TOKENS,
            "distillation_weight": weight,
        }
        trainer = {STOCK: _stock, OURS: _ours}[path](model, tokenizer, messages, shared)
        _watched(trainer, clock)
        trainer.train()
    counted = clock.steps[WARM_UP:]
    return Result(
        path=path,
        prompt_tokens=max(len(prompt_ids(m, tokenizer)) for m in messages),
        step_s=statistics.median(sum(step.values()) for step in counted),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        phases={name: statistics.median(step[name] for step in counted) for name in PHASES},
    )


def table(found: Sequence[Result]) -> str:
    """Both sides at each prompt length; a ratio is to the stock step at the same length, shares are of a step."""
    stock = {r.prompt_tokens: r.step_s for r in found if r.path == STOCK}
    lines = [f"{'prompt':>6} {'path':6}{'step s':>8}{'ratio':>7}{'GiB':>6}{'tokens/s':>10}   share of a step, %"]
    lines.append(" " * 46 + "".join(f"{name:>10}" for name in PHASES))
    for r in found:
        ratio = r.step_s / stock[r.prompt_tokens] if r.prompt_tokens in stock else float("nan")
        rate = GROUPS * GROUP * TOKENS / r.step_s
        shares = "".join(f"{100 * r.phases[name] / r.step_s:10.0f}" for name in PHASES)
        lines.append(
            f"{r.prompt_tokens:6} {r.path:6}{r.step_s:8.2f}{ratio:7.2f}{r.peak_mib / 1024:6.2f}{rate:10.0f}   {shares}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Time both sides, each in a process of its own, and print them below each other."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--steps", type=int, default=6)
    cli.add_argument("--weight", type=float, default=0.5, help="w")
    cli.add_argument("--prompt-tokens", type=int, nargs="+", default=[44, 320], help="shortest prompt, in tokens")
    cli.add_argument("--one", choices=(STOCK, OURS), help="measure one side at one length in this process")
    cli.add_argument("--cpu-seconds", action="store_true", help="of all threads, for a machine that others use too")
    options = cli.parse_args()
    if options.one:
        now = time.process_time if options.cpu_seconds else time.perf_counter
        found = measure(options.one, options.prompt_tokens[0], options.steps, options.weight, now=now)
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        return
    found = []
    for length in options.prompt_tokens:
        for path in (STOCK, OURS):
            command = [sys.executable, "-m", "rapo_lib.bench", "--one", path, "--prompt-tokens", str(length)]
            command += ["--steps", str(options.steps), "--weight", str(options.weight)]
            command += ["--cpu-seconds"] * options.cpu_seconds
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
            found.append(Result(**json.loads(done.stdout.strip().splitlines()[-1])))
    sys.stdout.write(table(found))


if __name__ == "__main__":
    main()
