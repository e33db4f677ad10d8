"""Loads model folders with transformers: nothing may be missing, left over or warned about, and the logits must be
those of check.safetensors beside the weights (input_ids, logits). Usage: transformers_check.py FOLDER..."""
import logging
import sys
import warnings

import torch
import transformers
from safetensors.torch import load_file

messages = []


class Collect(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())


transformers.utils.logging.set_verbosity_warning()
transformers.utils.logging.disable_progress_bar()
logger = logging.getLogger("transformers")
logger.handlers = [Collect(logging.WARNING)]
logger.propagate = False
torch.set_num_threads(1)
bad = 0
for folder in sys.argv[1:]:
    messages.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    complaints = messages + [str(w.message) for w in caught] + [f"{k}: {v}" for k, v in info.items() if v]
    check = load_file(folder + "/check.safetensors")
    with torch.no_grad():
        difference = (model(input_ids=check["input_ids"]).logits[0] - check["logits"]).abs().max().item()
    print(f"{folder}: {type(model).__name__}, largest difference {difference:.2e}, complaints {complaints}")
    if complaints or not difference < 2e-4:
        bad += 1
print("transformers", transformers.__version__, "failures", bad)
sys.exit(bad)
