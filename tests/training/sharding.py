"""The longfire command with real sharding on CPUs, where accelerate silently disables FSDP."""

import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed import destroy_process_group
from torch.distributed.tensor import DTensor

from longfire.cli import main
from longfire.training.callbacks import TrainingMonitor

original_init = AcceleratorState.__init__
step_end = TrainingMonitor.on_step_end


def with_fsdp(self, *arguments, fsdp_plugin=None, **options):
    original_init(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def record_sharding(self, args, state, control, model=None, **options):
    sharded = sum(isinstance(p, DTensor) for p in model.parameters())
    Path(os.environ["SHARDED"]).write_text(f"{sharded} of {len(list(model.parameters()))}")
    step_end(self, args, state, control, model=model, **options)


AcceleratorState.__init__ = with_fsdp
TrainingMonitor.on_step_end = record_sharding
status = main(sys.argv[1:])
destroy_process_group()  # its threads would abort a process that ends before them
sys.exit(status)
