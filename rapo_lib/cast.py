"""The people of a run: our own, or those behind the dialogues of a given file (`corpus`).

A corpus gives two things. Each dialogue in it becomes a person whom the seeker plays, and the dialogues themselves are
what turns are selected from. Both are written by 01 and read by every later notebook. The embedded roles know English
only; where a language model plays all of them, other languages are used too.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from rapo_lib.corpora import CorpusError, load_dialogues, profiles_from_dialogues
from rapo_lib.dialogue import Dialogue, SeekerProfile, Turn, load_profiles, profile_from_record, read_jsonl, to_record
from rapo_lib.runs import ROOT, RapoError, Stage, require, write_jsonl
from rapo_lib.selection import exchanges, readable

log = logging.getLogger(__name__)

MADE_BY = "01_simulator_setup"
REMEDY = "set `corpus` in the parameters cell to a file that `rapo data FILE` can read, or to None for our own people"
ENGLISH = (
    "`rapo data` reads them, but the embedded roles know English only; let a language model play all of them "
    "(seeker=lm judge=lm selector=lm, and lm=MODEL), or set `corpus` to a file with English dialogues, or to None for "
    "our own people"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who is there, and what they said to others before."""

    people: tuple[SeekerProfile, ...]
    dialogues: tuple[Dialogue, ...] = ()  # of the corpus, where somebody answers a supporter; empty without a corpus
    source: Path | None = None  # the corpus


def cast_of(corpus: str | None, count: int | None = None, any_language: bool = False) -> Cast:
    """Everybody in a corpus, or the first `count` of our train people for None; a relative path is below the root.

    Unless `any_language`, dialogues that are not English are left out, with a warning. Raises RapoError for a file that
    cannot be read or in which there is nobody to play.
    """
    if corpus is None:
        return Cast(people=tuple(load_profiles("train")[:count]))
    path = ROOT / Path(corpus).expanduser()
    try:
        found = load_dialogues(path)
    except CorpusError as error:
        raise RapoError(f"{error}; {REMEDY}") from None
    used = [dialogue for dialogue in found.dialogues if any_language or readable(dialogue)]
    if not used:
        count = len(found.dialogues)
        raise RapoError(f"{path}: none of {count} dialogues is English; {ENGLISH}")
    people = [p for p in profiles_from_dialogues(used) if any_language or speaks_english(p)]
    if not people:
        raise RapoError(f"{path}: no dialogue has a seeker turn or a situation, so there is nobody to play; {REMEDY}")
    lost, other = sum(drop.lost for drop in found.dropped), len(found.dialogues) - len(used)
    if lost or other:
        log.warning("%s: %d records dropped (`rapo data` says why), %d dialogues not English", path, lost, other)
    known = {person.id for person in people}
    answered = (d for d in used if d.id in known and len(exchanges(d.turns)) > 1)
    return Cast(people=tuple(people), dialogues=tuple(answered), source=path)


def spread(people: tuple[SeekerProfile, ...], count: int) -> list[SeekerProfile]:
    """`count` of the people, evenly spaced: corpora are often sorted by topic."""
    if len(people) <= count:
        return list(people)
    return [people[i * len(people) // count] for i in range(count)]


# ---------------------------------------------------------------------------------------------- files


def write_cast(stage: Stage, cast: Cast) -> None:
    """profiles.jsonl, and corpus.jsonl where the cast brought its own dialogues."""
    write_jsonl(stage.path("profiles.jsonl"), [to_record(person) for person in cast.people])
    if cast.dialogues:
        write_jsonl(stage.path("corpus.jsonl"), [to_record(dialogue) for dialogue in cast.dialogues])


def people_file(run_dir: Path) -> Path:
    """Where 01 wrote the people of this run."""
    return require(run_dir / MADE_BY / "profiles.jsonl", made_by=MADE_BY)


def people_of(run_dir: Path, any_language: bool = False) -> dict[str, SeekerProfile]:
    """The people of a run, by id; unless `any_language`, a RapoError if there are some who speak no English."""
    people = [profile_from_record(record) for record in read_jsonl(people_file(run_dir))]
    foreign = [person for person in people if not speaks_english(person)]
    if foreign and not any_language:
        raise RapoError(f"{people_file(run_dir)}: {len(foreign)} of {len(people)} people speak no English; {ENGLISH}")
    return {person.id: person for person in people}


def speaks_english(person: SeekerProfile) -> bool:
    """Whether the embedded roles can read what this person says."""
    return readable(Dialogue(person.id, tuple(Turn("seeker", text) for text in (person.opening, *person.details))))


def dialogue_file(run_dir: Path) -> Path:
    """What turns are selected from: the corpus's own dialogues where there are any, else the simulated ones."""
    given = run_dir / MADE_BY / "corpus.jsonl"
    return require(given if given.exists() else run_dir / MADE_BY / "dialogues.jsonl", made_by=MADE_BY)
