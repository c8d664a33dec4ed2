"""The launch files: variables of SLURM and SkyPilot become commands that accelerate accepts, stage after stage."""

import os
import shlex
import subprocess

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser

from tests import REPOSITORY


LAUNCH = REPOSITORY / "configuration" / "launch"
ARGUMENTS = ["--backbone", "llama-3.2-3b", "--method", "norm-gwc"]


@pytest.fixture
def clone(tmp_path):
    """A clone whose `accelerate` writes down its arguments, and in which the commands of SLURM are played."""
    for folder in ("train", "configuration"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    (tmp_path / "data" / "llava").mkdir(parents=True)
    for stage in ("stage1", "stage2"):
        (tmp_path / "data" / "llava" / f"{stage}.json").touch()
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in {
        "accelerate": 'printf "%q " "$@" >> launched; echo >> launched',
        "scontrol": "echo gpu-7; echo gpu-8",
        "srun": 'shift; for SLURM_NODEID in $(seq 0 $((SLURM_NNODES - 1))); do export SLURM_NODEID; "$@"; done',
    }.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    return tmp_path


def run(clone, script, **variables):
    """Run a script in the clone; what it launched, as accelerate parses it."""
    env = {"PATH": f"{clone / 'bin'}:{os.environ['PATH']}", "HOME": str(clone), **variables}
    subprocess.run(["bash", "-c", script, "script", *ARGUMENTS], cwd=clone, env=env, check=True, timeout=60)  # noqa: S603, S607
    lines = (clone / "launched").read_text().splitlines()
    return [launch_command_parser().parse_args(shlex.split(line)[1:]) for line in lines]


def stages(launched):
    """Stage and engine of each launch."""
    started = []
    for launch in launched:
        script = dict(zip(launch.training_script_args, launch.training_script_args[1:], strict=False))
        stage, engine = os.path.basename(script["--config"]), os.path.basename(launch.config_file)
        assert script["--method"] == "norm-gwc" and launch.module and launch.training_script == "train.sft"
        started.append((stage, engine))
    return started


def test_slurm_starts_both_stages_on_every_machine(clone):
    slurm = {"SLURM_SUBMIT_DIR": str(clone), "SLURM_JOB_NODELIST": "gpu-[7-8]", "SLURM_NNODES": "2"}
    launched = run(clone, (LAUNCH / "train.sbatch").read_text(), **slurm, SLURM_GPUS_ON_NODE="8")
    assert stages(launched) == [("stage1.yaml", "ddp.yaml")] * 2 + [("stage2.yaml", "fsdp2.yaml")] * 2
    assert [launch.machine_rank for launch in launched] == [0, 1, 0, 1]
    assert {(launch.num_machines, launch.num_processes, launch.main_process_ip) for launch in launched} == {
        (2, 16, "gpu-7")
    }


def test_the_cloud_job_starts_both_stages(clone):
    job = yaml.safe_load((LAUNCH / "train.sky.yaml").read_text())
    sky = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}
    launched = run(clone, job["run"], **job["envs"], **sky, SKYPILOT_NUM_GPUS_PER_NODE="8")
    assert stages(launched) == [("stage1.yaml", "ddp.yaml"), ("stage2.yaml", "fsdp2.yaml")]
    assert {launch.machine_rank for launch in launched} == {1}
    assert {(launch.num_processes, launch.main_process_ip) for launch in launched} == {(16, "10.0.0.1")}


def test_the_shell_accepts_the_evaluation():
    subprocess.run(["bash", "-n", LAUNCH / "evaluate.sbatch"], check=True, timeout=60)  # noqa: S603, S607
