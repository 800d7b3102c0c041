"""More than one process: the same update as one, whole groups, one set of artefacts, and going on where it stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file
from trainers import G, make, tiny, train_tiny_arm

from rapo_lib.dialogue import read_jsonl
from rapo_lib.hybrid import RAPOConfig
from rapo_lib.models import load_adapter, load_tokenizer, save_model
from rapo_lib.runs import RapoError, read_json
from rapo_lib.train import build_parser, trainer_options
from rapo_lib.training import processes

TESTS = Path(__file__).parent
READY = TESTS.parent / "rapo_lib" / "data" / "accelerate"
NUMBERS = ("loss", "grad_norm", "rapo/policy_loss", "rapo/distillation_loss", "rapo/kl_to_start", "rapo/entropy",
           "rapo/abstained", "completions/mean_length", "self_distillation/reward_mean")  # fmt: skip
CLOCK = ("runtime", "per_second", "total_flos", "train_loss")


def launch(count, what, folder):
    """Run tests/launched.py in one process, or in several through `accelerate launch` and the ready file for CPUs."""
    folder.mkdir(exist_ok=True)
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(READY / "cpus.yaml")]
    several = [*launcher, "--num_processes", str(count)] if count > 1 else []
    command = [sys.executable, *several, str(TESTS / "launched.py"), what, str(folder)]
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def log_of(folder, name):
    """The log's entries of updates, without what depends on the clock."""
    logged = json.loads((folder / f"{name}.json").read_text("utf-8"))["log"]
    return [{k: v for k, v in e.items() if not any(c in k for c in CLOCK)} for e in logged if "loss" in e]


def asked_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text("utf-8"))["asked"]


@pytest.mark.slow
def test_two_processes_make_the_update_of_one(tmp_path):
    one, two = (launch(n, "update", tmp_path / str(n)) for n in (1, 2))
    start = {n: p for n, p in make(load_tokenizer(), tmp_path / "x").model.named_parameters() if "lora_" in n}
    for parts in (1, 2):
        wanted = load_file(one / f"parts-{parts}-0.safetensors")
        moved = [n for n, p in wanted.items() if (p - start[n]).abs().max() > 1e-4]
        assert any(".default." in n for n in moved) and any(".teacher." in n for n in moved)
        found = [load_file(two / f"parts-{parts}-{rank}.safetensors") for rank in (0, 1)]
        for name, p in wanted.items():
            assert torch.equal(found[0][name], found[1][name]), name  # the teacher too
            assert torch.allclose(found[0][name], p, atol=1e-6), name
        assert asked_of(two, f"parts-{parts}-0") and asked_of(two, f"parts-{parts}-1")
        mine, theirs = (log_of(folder, f"parts-{parts}-0") for folder in (one, two))
        assert len(mine) == len(theirs) == 2
        for a, b in zip(mine, theirs, strict=True):
            assert a.keys() == b.keys()
            for name in NUMBERS:
                assert b[name] == pytest.approx(a[name], abs=1e-5), name
        assert log_of(two, f"parts-{parts}-0") == log_of(two, f"parts-{parts}-1")
    # each group is asked about once, by the process that sampled it, and is whole
    asked = [asked_of(two, f"parts-1-{rank}") for rank in (0, 1)]
    assert all(len(group) == 1 + G for each in asked for group in each)
    assert sorted(asked[0] + asked[1]) == sorted(asked_of(one, "parts-1-0")) and len(asked[0]) == len(asked[1])
    names = {p.name for p in (two / "adapter-1").iterdir()}
    assert names == {"adapter_model.safetensors", "adapter_config.json", "README.md"}
    assert not [p for p in two.iterdir() if p.name.startswith(".")]


@pytest.mark.slow
def test_two_processes_go_on_from_their_checkpoint(tmp_path):
    folder = launch(2, "resume", tmp_path / "two")
    checkpoint = {p.name for p in (folder / "work" / "checkpoint-2").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "rapo.json", "optimizer.pt"} <= checkpoint
    whole, again, other = (load_file(folder / f"{n}.safetensors") for n in ("whole-0", "again-0", "again-1"))
    assert all(torch.equal(whole[n], again[n]) and torch.equal(again[n], other[n]) for n in whole)
    assert log_of(folder, "whole-0") == log_of(folder, "again-0")
    with pytest.raises(RapoError, match="is of 2 processes; these are 1"):
        make(load_tokenizer(), tmp_path / "one", max_steps=4).train(folder / "work" / "checkpoint-2")


@pytest.mark.slow
def test_two_processes_train_an_arm_into_one_folder(tmp_path):
    """Its 5 updates of 2 groups: a group for each process, all rollouts in one file, in the order of one process."""
    tokenizer = load_tokenizer()
    save_model(tmp_path / "model", tiny(tokenizer), tokenizer)
    arm = launch(2, "arm", tmp_path) / "arm"
    assert sorted(p.name for p in arm.iterdir()) == ["adapter", "arm.json", "metrics.csv", "rollouts.jsonl"]
    assert not (tmp_path / "arm.training").exists() and read_json(arm / "arm.json")["processes"] == 2
    alone = train_tiny_arm(tmp_path / "alone", tmp_path / "model")
    mine, theirs = ([r["profile"] for r in read_jsonl(folder / "rollouts.jsonl")] for folder in (arm, alone))
    assert mine == theirs and len(mine) == 5 * 2 * G
    assert pd.read_csv(arm / "metrics.csv").step.tolist() == [1, 2, 3, 4, 5]
    load_adapter(tiny(tokenizer), arm / "adapter")


def test_groups_are_never_split_over_processes():
    processes.check_groups(replies=8, group=4, processes=2)
    with pytest.raises(RapoError, match="each of 2 processes samples 6 replies .* no whole groups of 4"):
        processes.check_groups(replies=6, group=4, processes=2)


def test_the_mean_gradient_counts_a_missing_one_as_zero(tmp_path):
    """One process's group: the exchange is real, and the mean over one is the value itself."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        frozen, moved, still = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3))
        frozen.requires_grad_(False)
        moved.grad = torch.arange(6.0).view(2, 3)
        processes.average_gradients([frozen, moved, still])
        assert moved.grad.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert frozen.grad is None and still.grad.eq(0).all()
        assert processes.count() == 1 and processes.first()
    finally:
        torch.distributed.destroy_process_group()


# -------------------------------------------------------------------------------------- ready configurations


@pytest.mark.parametrize("file", sorted(READY.glob("*.yaml")), ids=lambda p: p.name)
def test_ready_configurations_are_what_accelerate_reads(file, monkeypatch):
    """Through accelerate's own reader, parser and environment; the command in the file's head is one we understand."""
    config = load_config_from_file(str(file))
    cpus = file.name == "cpus.yaml"
    assert config.num_processes == 2 and config.use_cpu is cpus
    head = file.read_text("utf-8").partition("compute_environment")[0]
    assert ("NOT TRIED YET" in head) != cpus
    command = " ".join(line.lstrip("# ").rstrip("\\ ") for line in head.splitlines() if line.startswith("#  "))
    words = command[command.index("accelerate launch") :].split()[2:]
    words[words.index("--config_file") + 1] = str(file)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert arguments.module and arguments.training_script == "rapo_lib.train"
    assert arguments.use_fsdp == (file.name == "fsdp.yaml") and arguments.multi_gpu != arguments.use_fsdp
    environment = prepare_multi_gpu_env(arguments)
    assert (environment.get("FSDP_VERSION") == "2") == (file.name == "fsdp.yaml")
    options = build_parser().parse_args(arguments.training_script_args)
    assert options.profile == ("cpu" if cpus else "gpu") and trainer_options(dict(options.trainer)) is not None


def test_trainer_options_are_typed_and_known():
    found = trainer_options({"use_vllm": "true", "vllm_mode": "server", "fast": "false", "max_grad_norm": "0.5"})
    assert found == {"use_vllm": True, "vllm_mode": "server", "fast": False, "max_grad_norm": 0.5}
    for bad, says in (({"use_vlm": "true"}, "did you mean 'use_vllm'"), ({"fast": "perhaps"}, "'fast'")):
        with pytest.raises(RapoError, match=says):
            trainer_options(bad)
    assert RAPOConfig(output_dir="x", **{"fast": False, "use_vllm": True}).use_vllm
