"""Loads model folders with transformers: nothing may be missing, left over or warned about, no *.safetensors but the
model's may lie in the folder (servers read them all), and the logits must be those of FOLDER.check.safetensors
(input_ids, logits). Where that has the metadata `text` the folder is a whole checkpoint: its tokenizer must load too,
have a chat template, and make `text_ids` of the text. Usage: transformers_check.py FOLDER..."""
import glob
import logging
import os
import sys
import warnings

import torch
import transformers
from safetensors import safe_open

messages = []


class Collect(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())


def complaints_of(folder, check):
    """What is wrong with a folder, and the largest difference of its logits."""
    messages.clear()
    text = (check.metadata() or {}).get("text")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        if text is not None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    found = messages + [str(w.message) for w in caught] + [f"{k}: {v}" for k, v in info.items() if v]
    weights = sorted(map(os.path.basename, glob.glob(folder + "/*.safetensors")))
    if weights != ["model.safetensors"]:
        found.append(f"*.safetensors: {weights}")
    if text is not None:
        if ids != check.get_tensor("text_ids").tolist():
            found.append(f"token ids {ids}")
        if not tokenizer.chat_template:
            found.append("no chat template")
    with torch.no_grad():
        logits = model(input_ids=check.get_tensor("input_ids")).logits[0]
    difference = (logits - check.get_tensor("logits")).abs().max().item()
    print(f"{folder}: {type(model).__name__}, largest difference {difference:.2e}, complaints {found}")
    return found, difference


transformers.utils.logging.set_verbosity_warning()
transformers.utils.logging.disable_progress_bar()
logger = logging.getLogger("transformers")
logger.handlers = [Collect(logging.WARNING)]
logger.propagate = False
torch.set_num_threads(1)
bad = 0
for folder in sys.argv[1:]:
    with safe_open(folder + ".check.safetensors", "pt") as check:
        found, difference = complaints_of(folder, check)
    if found or not difference < 2e-4:
        bad += 1
print("transformers", transformers.__version__, "failures", bad)
sys.exit(bad)
