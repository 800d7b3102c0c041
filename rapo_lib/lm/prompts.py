"""Prompts are files: one a role and language, with a version, filled by name; their hash goes into every record.

Texts by other people enter a prompt as JSON strings whose angle brackets are escaped, so that no text can end its own
quotation, open a chat role or imitate a control token.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from rapo_lib.dialogue import Message, Turn

HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
CONTROL = re.compile(r"<|\[(?=/?[A-Z_]{3,}\])|[\x85\u2028\u2029]")  # <|im_end|>, <think>; [INST]; line separators


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt file: named parts, of which `system` and `user` become messages."""

    name: str
    language: str
    version: str
    parts: dict[str, str]
    digest: str

    @property
    def tag(self) -> str:
        """What a record says about which prompt was used."""
        return f"{self.name}.{self.language}.v{self.version}#{self.digest[:8]}"

    def messages(self, **values: Any) -> tuple[Message, ...]:
        """System and user message with every placeholder filled; a value may not be missing or superfluous."""
        texts = {role: Template(self.parts[role]) for role in ("system", "user")}
        wanted = {name for text in texts.values() for name in text.get_identifiers()}
        if wanted != set(values):
            raise ValueError(f"prompt {self.tag}: placeholders {sorted(wanted)}, given {sorted(values)}")
        return tuple({"role": role, "content": text.substitute(values)} for role, text in texts.items())


@cache
def load_prompt(name: str, language: str) -> Prompt:
    """The shipped prompt of a role ('seeker', 'judge', 'selector', 'critic', 'social') in 'en' or 'zh'."""
    text = (resources.files("rapo_lib") / "data" / "prompts" / f"{name}.{language}.md").read_text("utf-8")
    head, *pieces = HEADING.split(text)
    parts = {title.strip(): body.strip() for title, body in zip(pieces[::2], pieces[1::2], strict=True)}
    version = head.partition("version:")[2].strip()
    return Prompt(name, language, version, parts, hashlib.sha256(text.encode("utf-8")).hexdigest())


def quoted(value: Any) -> str:
    """A value as JSON on one line that no chat template or reader can take for anything but a quotation."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def transcript(turns: Sequence[Turn], first: int = 0) -> str:
    """The words of a conversation, one JSON object a line, numbered from `first`; notes on turns are not shown."""
    lines = (quoted({"turn": i, "speaker": t.speaker, "says": t.text}) for i, t in enumerate(turns, start=first))
    return "\n".join(lines)
