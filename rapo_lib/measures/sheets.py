"""Blind pairwise sheets for people: which of two replies to the same history is better?

A sheet is one HTML page that works offline and sends nothing anywhere, or the same as CSV. It shows replies as A and
B; which arm each one is stands only in the key, a file of its own that stays with the experimenter. Sides are
balanced within every pair of arms and swap from one sheet to the next. Attention checks are mixed in: pairs whose
better reply is obvious (written by us), and pairs that come back later with their sides swapped. Layout and checks
are ours. `votes` reads the answers.
"""

import base64
import csv
import hashlib
import html
import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rapo_lib.dialogue import Turn, read_jsonl
from rapo_lib.runs import RapoError, atomic_folder, stable_hash, write_json, write_text

QUESTION = "Which reply would help this person more, right now?"
KEY_FORMAT = "rapo-preference-key-1"
ANSWER_COLUMNS = ("item", "annotator", "choice", "comment", "seconds")
CHOICES = ("A", "B", "tie")
BETTER, WORSE = "obviously better", "obviously worse"  # the arms of an obvious item

Kind = Literal["pair", "repeat", "obvious"]
Reply = tuple[str, str]  # arm, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two replies to one history, each with the arm that gave it."""

    id: str
    history: tuple[Turn, ...]
    replies: tuple[Reply, Reply]

    def __post_init__(self) -> None:
        if not self.history or self.history[-1].speaker != "seeker":
            raise ValueError(f"pair {self.id!r}: the history must end with a seeker turn")
        if self.replies[0][0] == self.replies[1][0]:
            raise ValueError(f"pair {self.id!r}: both replies are from {self.replies[0][0]!r}")

    @property
    def arms(self) -> tuple[str, str]:
        """The two arms in alphabetical order."""
        return tuple(sorted(arm for arm, _ in self.replies))

    def swapped(self) -> "Pair":
        """The same pair with A and B exchanged."""
        return replace(self, replies=self.replies[::-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a sheet; `pair.replies` is in the order shown, A then B."""

    id: str
    kind: Kind
    pair: Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What one annotator is given."""

    id: str
    question: str
    items: tuple[Item, ...]


# ------------------------------------------------------------------------------------------------ pairs


def all_pairs(histories: Mapping[str, Sequence[Turn]], replies: Mapping[str, Sequence[str]]) -> list[Pair]:
    """Every two arms at every history; `replies` holds one reply per history for each arm, in the same order."""
    pairs = []
    for k, (name, history) in enumerate(histories.items()):
        said = {arm: texts[k] for arm, texts in replies.items()}
        pairs += pairs_of({"id": name, "history": history, "replies": said})
    return pairs


def pairs_of(record: Mapping[str, Any]) -> list[Pair]:
    """The pairs of one record {"id", "history", "replies": {arm: text}}; ValueError if it is not one."""
    name, history, replies = (record.get(key) for key in ("id", "history", "replies"))
    if not isinstance(name, str) or not isinstance(history, list | tuple) or not isinstance(replies, Mapping):
        raise ValueError('expected {"id": text, "history": [turns], "replies": {arm: text}}')
    if len(replies) < 2 or not all(isinstance(text, str) for text in replies.values()):
        raise ValueError(f"record {name!r}: needs the replies of two arms or more, each a text")
    if taken := {BETTER, WORSE, "tie"} & set(replies):
        raise ValueError(f"record {name!r}: no arm can be called {taken.pop()!r}")
    turns = tuple(_turn(turn) for turn in history)
    two = len(replies) == 2
    return [
        Pair(id=name if two else f"{name}:{a}:{b}", history=turns, replies=((a, replies[a]), (b, replies[b])))
        for a, b in combinations(replies, 2)
    ]


def _turn(turn: Turn | Mapping[str, Any]) -> Turn:
    if isinstance(turn, Turn):
        return turn
    if not isinstance(turn, Mapping) or not isinstance(turn.get("text"), str):
        raise ValueError('a turn is {"speaker": "seeker" or "supporter", "text": text}')
    return Turn(turn.get("speaker"), turn["text"])


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a JSONL file of such records; an error names the record."""
    pairs = []
    try:
        for number, record in enumerate(read_jsonl(path), start=1):
            try:
                pairs += pairs_of(record if isinstance(record, dict) else {})
            except ValueError as error:
                raise ValueError(f"{path}, record {number}: {error}") from None
    except (OSError, ValueError) as error:
        raise RapoError(str(error)) from None
    return pairs


def obvious_pairs() -> list[Pair]:
    """Pairs that we wrote, whose first reply any attentive reader prefers."""
    text = (resources.files("rapo_lib") / "data" / "sheets" / "obvious.jsonl").read_text("utf-8")
    records = [json.loads(line) for line in text.splitlines() if line]
    return [
        Pair(id=r["id"], history=tuple(map(_turn, r["history"])), replies=((BETTER, r["better"]), (WORSE, r["worse"])))
        for r in records
    ]


# ----------------------------------------------------------------------------------------------- sheets


def make_sheets(
    pairs: Sequence[Pair],
    *,
    sheets: int = 1,
    obvious: int = 2,
    repeats: int = 2,
    seed: int = 0,
    question: str = QUESTION,
) -> list[Sheet]:
    """`sheets` sheets of the same pairs, each in an order of its own; every second one with A and B exchanged.

    Raises RapoError for no pairs, a repeated id, or more checks than there are.
    """
    names = [pair.id for pair in pairs]
    if not pairs or len(set(names)) < len(names):
        raise RapoError(f"pair id {_twice(names)!r} appears twice" if pairs else "there is no pair to compare")
    known = obvious_pairs()
    if not (sheets >= 1 and 0 <= obvious <= len(known) and 0 <= repeats <= len(pairs)):
        raise RapoError(f"ask for 1 sheet or more, at most {len(known)} obvious items and at most one repeat per pair")
    rng = np.random.default_rng(seed)
    sided = balanced(pairs, rng)
    checks = [known[i] for i in rng.permutation(len(known))[:obvious]]
    made = []
    for number in range(sheets):
        shown = [pair.swapped() if number % 2 else pair for pair in sided]
        kinds = [("pair", p) for p in shown] + [("obvious", _sided(p, rng)) for p in checks]
        ordered = with_repeats([kinds[i] for i in rng.permutation(len(kinds))], repeats, rng)
        sheet = stable_hash([pairs, seed, question, obvious, repeats, number])[:6]
        items = tuple(Item(id=f"{sheet}-{k:03d}", kind=kind, pair=p) for k, (kind, p) in enumerate(ordered, start=1))
        made.append(Sheet(id=sheet, question=question, items=items))
    return made


def _twice(names: Sequence[str]) -> str:
    return next(name for k, name in enumerate(names) if name in names[:k])


def balanced(pairs: Sequence[Pair], rng: np.random.Generator) -> list[Pair]:
    """The pairs with sides drawn so that, within every two arms, each stands first equally often (or once more)."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, pair in enumerate(pairs):
        groups[pair.arms].append(place)
    sided = list(pairs)
    for (first, _), places in groups.items():
        offset = int(rng.integers(2))  # which of the two gets the odd one
        for k, place in enumerate(rng.permutation(places)):
            pair = pairs[place]
            sided[place] = pair if (pair.replies[0][0] == first) == ((k + offset) % 2 == 0) else pair.swapped()
    return sided


def _sided(pair: Pair, rng: np.random.Generator) -> Pair:
    return pair.swapped() if rng.integers(2) else pair


def with_repeats(
    ordered: Sequence[tuple[Kind, Pair]], repeats: int, rng: np.random.Generator
) -> list[tuple[Kind, Pair]]:
    """The items with the first `repeats` pairs asked again, sides swapped, somewhere in the last third."""
    first = [pair for kind, pair in ordered if kind == "pair"][:repeats]
    start = -(-2 * len(ordered) // 3)
    tail = [*ordered[start:], *(("repeat", pair.swapped()) for pair in first)]
    return [*ordered[:start], *(tail[i] for i in rng.permutation(len(tail)))]


def make_key(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """What only the experimenter may see: for every item its pair, its kind and the arms behind A and B."""
    items = {
        item.id: {"pair": item.pair.id, "kind": item.kind, "A": item.pair.replies[0][0], "B": item.pair.replies[1][0]}
        for sheet in sheets
        for item in sheet.items
    }
    return {"format": KEY_FORMAT, "question": sheets[0].question, "items": items}


def write_sheets(sheets: Sequence[Sheet], folder: Path) -> Path:
    """Write `folder`/sheets/sheet_N.html and .csv for annotators and `folder`/key.json for the experimenter.

    An existing folder is refused: a new key would make the answers to the old sheets unreadable.
    """
    if folder.exists():
        raise RapoError(f"{folder} exists; its key belongs to sheets that may be out, so choose another folder")
    with atomic_folder(folder) as building:
        for number, sheet in enumerate(sheets, start=1):
            write_text(building / "sheets" / f"sheet_{number}.html", sheet_html(sheet))
            write_text(building / "sheets" / f"sheet_{number}.csv", sheet_csv(sheet))
        write_json(building / "key.json", make_key(sheets))
    return folder


# --------------------------------------------------------------------------------------------------- CSV


def sheet_csv(sheet: Sheet) -> str:
    """The sheet as CSV: the annotator fills in the columns `annotator` and `choice` (A, B or tie)."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*ANSWER_COLUMNS, "history", "reply A", "reply B"])
    for item in sheet.items:
        said = "\n".join(f"{turn.speaker}: {turn.text}" for turn in item.pair.history)
        texts = [said, *(text for _, text in item.pair.replies)]
        rows.writerow([item.id, "", "", "", "", *map(inert, texts)])
    return out.getvalue()


def inert(text: str) -> str:
    """Text that a spreadsheet will not take for a formula."""
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@", "\t") and text.strip() else text


# -------------------------------------------------------------------------------------------------- HTML


def sheet_html(sheet: Sheet) -> str:
    """The sheet as one page: nothing is loaded, nothing is sent; answers are saved to a file by the annotator."""
    style, script = (_asset(name) for name in ("sheet.css", "sheet.js"))
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    items = "\n".join(_item_html(item, k, len(sheet.items)) for k, item in enumerate(sheet.items, start=1))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        f'<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">\n'
        f"<title>Which reply is better? Sheet {sheet.id}</title>\n<style>{style}</style>\n</head>\n"
        f'<body data-sheet="{sheet.id}">\n<main>\n<h1>{html.escape(sheet.question)}</h1>\n{INTRODUCTION}\n'
        f'<form id="sheet" autocomplete="off">\n{items}\n</form>\n{CONTROLS}\n</main>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


INTRODUCTION = """<p>Each page shows a conversation and two ways to go on, A and B. Choose the better one, or
"about equal". Some conversations are about painful things; leave out any that you would rather not read. Nothing you
enter leaves this computer: save your answers to a file at the end and return that file.</p>
<p class="keys">Keys: <kbd>1</kbd> A, <kbd>2</kbd> B, <kbd>3</kbd> about equal, <kbd>←</kbd> <kbd>→</kbd> previous and
next.</p>
<noscript><p>Without JavaScript this page cannot save answers; use the CSV sheet.</p></noscript>
<p><label>Your code (not your name) <input id="annotator" maxlength="40" autocomplete="off" spellcheck="false"></label>
<span id="kept" role="status"></span></p>"""

CONTROLS = """<nav aria-label="Items"><button type="button" id="previous">← Previous</button>
<output id="progress" aria-live="polite"></output>
<button type="button" id="next">Next →</button></nav>
<p><button type="button" id="save-json">Save answers</button> <button type="button" id="save-csv">Save as CSV</button>
<button type="button" id="clear">Delete draft</button></p>"""


def _item_html(item: Item, number: int, count: int) -> str:
    said = "\n".join(
        f'<p class="{turn.speaker}"><b>{turn.speaker.capitalize()}</b> {html.escape(turn.text)}</p>'
        for turn in item.pair.history
    )
    replies = "\n".join(
        f'<div class="reply"><h3>{side}</h3><p>{html.escape(text) or "<i>(no reply)</i>"}</p></div>'
        for side, (_, text) in zip("AB", item.pair.replies, strict=True)
    )
    labels = ("A", "B", "About equal")
    options = "\n".join(
        f'<label><input type="radio" name="{item.id}" value="{choice}"> {label}</label>'
        for choice, label in zip(CHOICES, labels, strict=True)
    )
    return (
        f'<section class="item" id="{item.id}" data-item="{item.id}" tabindex="-1" aria-label="Item {number}">\n'
        f"<h2>{number} of {count}</h2>\n"
        f'<div class="history">\n{said}\n</div>\n<div class="replies">\n{replies}\n</div>\n'
        f"<fieldset><legend>The better reply</legend>\n{options}\n</fieldset>\n"
        f'<label class="comment">Comment (if you like) <textarea rows="2" maxlength="2000"></textarea></label>\n'
        f"</section>"
    )


def _asset(name: str) -> str:
    return (resources.files("rapo_lib") / "data" / "sheets" / name).read_text("utf-8")


def _digest(text: str) -> str:
    """The source expression that allows exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
