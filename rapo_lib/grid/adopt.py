"""What the notebooks of a run have made already, taken over by its grid: dialogues as inputs, the full arm as trained.

A grid makes the same for itself; a run of the series would only wait for it twice.
"""

import shutil
from pathlib import Path

from rapo_lib import runs
from rapo_lib.cast import dialogue_file, people_file
from rapo_lib.dialogue import load_dialogues_jsonl, read_jsonl
from rapo_lib.grid.arms import FULL, WARM
from rapo_lib.grid.cell import PEOPLE, SELECTED, adapter_folder, prepare
from rapo_lib.grid.run import Plan
from rapo_lib.runs import RapoError, atomic_folder

HISTORIES, TRAINED = "02_turn_selection", "04_hybrid_training"


def adopt(plan: Plan, run: Path, seed: int) -> None:
    """Take over the inputs and the full arm of `run`, whose notebooks had this seed; what is there stays.

    Raises RapoError if a notebook of the run is missing, or has trained on other histories than this grid would.
    """
    histories = runs.require(run / HISTORIES / "histories.jsonl", made_by=HISTORIES)
    trained = runs.require(run / TRAINED / FULL / "arm.json", made_by=TRAINED).parent
    if not (plan.folder / "inputs").is_dir():
        played = run / TRAINED / f"evaluation_{WARM}" / "dialogues.jsonl"
        place = prepare(
            plan.folder,
            plan.settings_of(),
            plan.split,
            seed,
            trained_on=load_dialogues_jsonl(dialogue_file(run)),
            talks=load_dialogues_jsonl(runs.require(played, made_by=TRAINED)),
        )
        shutil.copyfile(people_file(run), place / PEOPLE)
    if list(read_jsonl(plan.folder / "inputs" / SELECTED)) != list(read_jsonl(histories)):
        raise RapoError(f"{plan.folder}/inputs and {histories} hold other histories; remove {plan.folder}")
    target = adapter_folder(plan.folder, FULL, seed)
    if not target.is_dir():
        with atomic_folder(target) as building:
            shutil.copytree(trained, building, dirs_exist_ok=True)
