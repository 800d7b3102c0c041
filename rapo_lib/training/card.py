"""The model card of an adapter: what it was made from, with what, and what it is not for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WARNING = (
    "**Must not talk to people in need.** It was trained on invented people whose answers a program wrote, by a "
    "program's judgement of those answers. Nobody has checked what it says to a person in distress."
)
LIMITS = (
    "It learned from a simulated seeker and judge, and from their mistakes; what pleases them may hurt a person.",
    "It has no notion of risk: no crisis detection, no referral, no refusal of its own.",
    "Replies are short, in English, and sampled; the same words may be answered differently each time.",
    "What the base model gets wrong, it gets wrong too.",
)


def shown_name(model: str | None) -> str:
    """How a model is called in public: a hub name as it is, a folder of this machine by its last part."""
    if not model:
        return "a model without a name"
    return Path(model).name if Path(model).is_absolute() else model


def model_card(base: str, data: str, settings: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Markdown with the front matter that hubs read. `data` is a sentence or two; tables for the rest."""
    return f"""---
base_model: {base}
library_name: peft
tags: [rapo, emotional-support, research]
---

# LoRA adapter for {base}, trained on seekers' reactions

> {WARNING}

## Data

{data} Every person in it is invented.

## Settings

{_table("setting", settings)}

## Versions

{_table("package", versions)}

## Limits

{chr(10).join(f"* {limit}" for limit in LIMITS)}

## Use

For research: `peft.PeftModel.from_pretrained(base_model, FOLDER)` on the base model named above.
"""


def _table(head: str, values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join([f"| {head} | value |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
