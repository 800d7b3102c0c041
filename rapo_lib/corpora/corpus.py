"""A corpus: the dialogues of one file, and an account of everything that was left out or repaired."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rapo_lib.corpora.files import CorpusError, Dropped, Report, printable, records
from rapo_lib.corpora.reading import Reading, read_record
from rapo_lib.dialogue import Dialogue, SeekerProfile, Turn, language_of

log = logging.getLogger(__name__)

SHOWN = 5  # ours: how many drops and turns `describe` spells out
SAYS_SOMETHING = 30  # ours: bytes of UTF-8; about six English words or ten Chinese characters, more than a greeting
PATIENCE = 10_000  # ours: records without a dialogue after which a file is given up
AGE, START = 30, 35  # ours: corpora give neither; the middle of the range a profile may start in
NEED = {"en": "To be heard before anything is suggested.", "zh": "先被倾听，再谈建议。"}
THEME = {"en": "It is about {}.", "zh": "与{}有关。"}
UNNAMED = {"en": "something that weighs on them", "zh": "压在心里的事"}
HEADING = re.compile(r"\s*(#{2,}|#\s|\*\*[^*]+\*\*[:：]?\s*$)")  # markdown, also a bold line of its own
MARKS = re.compile(r"^\s*([>*+•-]|\d{1,2}\.)\s+|\*\*|__")  # bullets, numbers, bold
HIDDEN = re.compile(r"[\W\d]*(the )?(hidden (topic|theme)|隐藏主题)", re.IGNORECASE)  # what a SAGE person is after


@dataclass(frozen=True, slots=True)
class Corpus:
    """What one file held."""

    dialogues: tuple[Dialogue, ...]
    dropped: tuple[Dropped, ...]  # left out, or repaired (`lost=False`)
    formats: dict[str, int]  # layout name -> dialogues read in it


def load_dialogues(path: str | Path) -> Corpus:
    """Read a whole file; a repeated id gets a number so that ids name one dialogue each."""
    dropped: list[Dropped] = []
    readings = list(read(Path(path), dropped.append))
    seen: Counter[str] = Counter()
    dialogues = []
    for dialogue in (reading.dialogue for reading in readings):
        seen[dialogue.id] += 1
        if seen[dialogue.id] > 1:
            renamed = free_id(dialogue.id, seen)
            dropped.append(Dropped(f"{path}, dialogue {len(dialogues) + 1}", f"id taken, now {renamed!r}", lost=False))
            dialogue = replace(dialogue, id=renamed)
        dialogues.append(dialogue)
    return Corpus(tuple(dialogues), tuple(dropped), dict(Counter(r.format for r in readings)))


def free_id(taken: str, seen: Counter[str]) -> str:
    """`taken` with the first number that nobody has, which is then taken too."""
    while (name := f"{taken}#{seen[taken]}") in seen:
        seen[taken] += 1
    seen[name] += 1
    return name


def warn(dropped: Dropped) -> None:
    """Put one drop on the log."""
    log.warning("%s: %s%s", dropped.where, "" if dropped.lost else "repaired: ", dropped.why)


def iter_dialogues(path: str | Path, report: Report = warn) -> Iterator[Dialogue]:
    """Dialogues one by one, JSONL and parquet in little memory; drops go to `report`, ids are not compared."""
    for reading in read(Path(path), report):
        yield reading.dialogue


def read(path: Path, report: Report) -> Iterator[Reading]:
    """Every dialogue of a file; a file without any is an error, after PATIENCE records at the latest."""
    found, lost, noted = 0, [], set()

    def tell(dropped: Dropped) -> None:
        if dropped.lost and not found:
            lost.append(dropped)
        if not found and len(lost) > PATIENCE:
            raise CorpusError(f"no dialogue in the first {PATIENCE} records; {lost[0].where}: {lost[0].why}")
        report(dropped)

    for where, record in records(path, tell):
        try:
            reading = read_record(record, f"{path.name.split('.')[0]}-{found + 1}", path.name)
        except ValueError as error:
            tell(Dropped(where, str(error)))
            continue
        for note in set(reading.notes) - noted:
            tell(Dropped(str(path), note, lost=False))
        noted.update(reading.notes)
        for repair in reading.repairs:
            tell(Dropped(where, repair, lost=False))
        found += 1
        yield reading
    if not found:
        why = f"{lost[0].where}: {lost[0].why}" if lost else f"{path}: nothing to read"
        raise CorpusError(f"no dialogue found; {why}")


# ------------------------------------------------------------------------------------------- overview


def describe(path: str | Path) -> str:
    """What a file holds, for people: format, counts, drops and the first dialogue."""
    corpus = load_dialogues(path)
    turns = [turn for dialogue in corpus.dialogues for turn in dialogue.turns]
    lost = [d for d in corpus.dropped if d.lost]
    rows = {
        "format": ", ".join(f"{name} ({count})" for name, count in corpus.formats.items()),
        "dialogues": f"{len(corpus.dialogues)}; {opened_by_supporter(corpus)} open with the supporter",
        "turns": f"{len(turns)} after merging neighbours; {counted(t.speaker for t in turns)}",
        "strategies": counted(name for t in turns for name in t.strategies),
        "ratings": counted(str(t.feedback) for t in turns if t.feedback is not None),
        "emotions": emotion_range(turns),
        "surveys": str(sum(d.survey is not None for d in corpus.dialogues)),
        "dropped": f"{len(lost)}; {len(corpus.dropped) - len(lost)} repairs",
    }
    lines = [str(path), *(f"  {name:<11}{value}" for name, value in rows.items()), *account(corpus.dropped)]
    return "\n".join(map(printable, lines + opening_lines(corpus.dialogues[0])))


def opened_by_supporter(corpus: Corpus) -> int:
    """Dialogues whose first turn is the supporter's."""
    return sum(bool(d.turns) and d.turns[0].speaker == "supporter" for d in corpus.dialogues)


def counted(names: Iterable[str]) -> str:
    """Each name with its count, most frequent first."""
    return ", ".join(f"{name}: {count}" for name, count in Counter(names).most_common()) or "none"


def emotion_range(turns: list[Turn]) -> str:
    """How many emotion points there are, and their range."""
    points = [turn.emotion for turn in turns if turn.emotion is not None]
    return f"{len(points)}, from {min(points):g} to {max(points):g}" if points else "none"


def account(dropped: tuple[Dropped, ...]) -> list[str]:
    """The first drops and repairs, losses first."""
    ordered = sorted(dropped, key=lambda d: not d.lost)
    lines = [f"    {'dropped' if d.lost else 'repaired'} {d.where}: {d.why}" for d in ordered[:SHOWN]]
    return lines + ([f"    ... and {len(ordered) - SHOWN} more"] if len(ordered) > SHOWN else [])


def opening_lines(dialogue: Dialogue) -> list[str]:
    """The head of a dialogue, one line a turn."""
    story = f"{dialogue.problem}, {dialogue.emotion_type}".strip(", ")
    lines = [f"  first      {dialogue.id}{f' ({story})' if story else ''}"]
    return lines + [f"    {turn.speaker:<10} {clipped(turn.text)}" for turn in dialogue.turns[:SHOWN]]


def clipped(text: str) -> str:
    """One line of at most 90 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:87]}..."


# ------------------------------------------------------------------------------------------- profiles


def profiles_from_dialogues(dialogues: Iterable[Dialogue]) -> list[SeekerProfile]:
    """A seeker for each dialogue with a seeker turn or a situation; the others are counted on the log."""
    dialogues = list(dialogues)
    profiles = [profile for dialogue in dialogues if (profile := profile_of(dialogue))]
    if skipped := len(dialogues) - len(profiles):
        log.warning("%d of %d dialogues hold no seeker turn and no situation: no profile", skipped, len(dialogues))
    return profiles


def sentences(text: str) -> list[str]:
    """The sentences of a line, in order."""
    return [part for part in re.split(r"(?<=[.!?…])\s+|(?<=[。！？])\s*", text.strip()) if part]


def told(situation: str) -> list[str]:
    """The sentences of a story, without markdown headings and marks, and without SAGE's hidden topic."""
    found, hidden = [], False
    for line in situation.splitlines():
        bare = MARKS.sub("", line).strip()
        if HIDDEN.match(bare):
            hidden = True  # up to the next heading
        elif HEADING.match(line):
            hidden = False
        elif not hidden:
            found += sentences(bare)
    return found


def profile_of(dialogue: Dialogue) -> SeekerProfile | None:
    """The person behind a dialogue: they open with the first thing that says something and hold back the rest.

    Where nobody speaks, the sentences of the situation are what they say, one by one. What no corpus tells (voice,
    way with advice, need, age) is set to the mildest value; all of that is ours.
    """
    said = [turn.text for turn in dialogue.turns if turn.speaker == "seeker"]
    telling = [text for text in said if len(text.encode("utf-8")) >= SAYS_SOMETHING]
    if not said:
        said = telling = told(dialogue.situation)
    if not said:
        return None
    language = language_of(said)
    return SeekerProfile(
        id=dialogue.id,
        problem=dialogue.problem,
        emotion_type=dialogue.emotion_type,
        age=AGE,
        voice="plain",
        advice="heard_first",
        situation=dialogue.situation,
        opening=(telling or said)[0],
        need=NEED[language],
        theme=THEME[language].format(dialogue.problem or UNNAMED[language]),
        details=tuple(telling[1:]),
        disclosures=(),
        start=START,
    )
