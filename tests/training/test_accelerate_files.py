"""The configurations for accelerate in examples/ are what accelerate and the command line understand."""

import re
from pathlib import Path

import pytest
from accelerate import DistributedType
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser

from torchcaps.cli.main import _parse
from torchcaps.training.processes import REPLICATED

FOLDER = Path(__file__).parents[2] / "examples" / "accelerate"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_what_there_is():
    kinds = {path.stem: load_config_from_file(str(path)).distributed_type for path in FILES}
    assert kinds == {
        "cpu": DistributedType.MULTI_CPU,
        "fsdp": DistributedType.FSDP,
        "gpus": DistributedType.MULTI_GPU,
        "nodes": DistributedType.MULTI_GPU,
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path):
    config = load_config_from_file(str(path))
    assert isinstance(config, ClusterConfig)
    assert config.num_processes >= 2
    assert config.num_processes % config.num_machines == 0
    assert config.use_cpu == (config.distributed_type is DistributedType.MULTI_CPU)
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(config.fsdp_config) <= known
    assert bool(config.fsdp_config) == (config.distributed_type is DistributedType.FSDP)
    if config.num_machines > 1:
        assert config.main_process_ip
        assert config.main_process_port


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_command_can_be_run(path):
    comment = "".join(line[1:] for line in path.read_text().splitlines() if line.startswith("#"))
    _, is_command, command = comment.replace("\\", " ").partition("accelerate launch ")
    assert is_command
    launched = launch_command_parser().parse_args(command.replace("RANK", "0").split())
    assert Path(launched.config_file) == Path("examples/accelerate") / path.name
    if load_config_from_file(str(path)).distributed_type not in REPLICATED:
        assert launched.training_script == "your_script.py"
        return
    assert (launched.module, launched.training_script) == (True, "torchcaps")
    train = _parse(launched.training_script_args)
    assert train.out is not None
    assert re.search(r"runs/mine$", str(train.out))
