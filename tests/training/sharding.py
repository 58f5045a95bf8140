"""Runs in the processes of one torchrun, which import everything once, with real sharding on CPUs.

`torchrun … -m tests.training.sharding RUNS`, where RUNS are in JSON, by output folder: the arguments of the longfire
command, or of `toys.tune`. Accelerate silently disables FSDP on CPUs; here it is enabled for the runs that ask for it.
The number of a model's sharded parameters is written next to the run's folder.
"""

import json
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed import destroy_process_group
from torch.distributed.tensor import DTensor

from longfire.cli import main
from longfire.training.callbacks import TrainingMonitor
from tests.training.toys import tune

original_init = AcceleratorState.__init__
step_end = TrainingMonitor.on_step_end


def with_fsdp(self, *arguments, fsdp_plugin=None, **options):
    original_init(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def record_sharding(self, args, state, control, model=None, **options):
    sharded = sum(isinstance(p, DTensor) for p in model.parameters())
    Path(f"{run}.sharded").write_text(f"{sharded} of {len(list(model.parameters()))}")
    step_end(self, args, state, control, model=model, **options)


AcceleratorState.__init__ = with_fsdp
TrainingMonitor.on_step_end = record_sharding
torch.set_num_threads(1)
for run, how in json.loads(sys.argv[1]).items():
    if isinstance(how, list):
        assert main(how) == 0
    else:
        tune(Path(how.pop("source")), Path(run), **how)
destroy_process_group()  # its threads would abort a process that ends before them
