#!/usr/bin/env python3
"""Peer benchmark: TRL's GRPOTrainer on the CPU with SmolLM2-135M-Instruct, log lines to JSON.

  HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 python trl_smollm2.py MODEL_DIR [--steps 4] [--threads 2] [--micro 16]

8 prompts of about 120 tokens x 8 completions a step, at most 48 new tokens, temperature 1, one optimizer step a batch, float32 (--bf16: with autocast). The prompts have
the form of millrace's task log_json (one worked example, chat template). The reward is 1 for the wanted JSON object. Prints one JSON object.
"""
import argparse, json, os, random, resource, sys, tempfile, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
ap = argparse.ArgumentParser()
ap.add_argument("model")
ap.add_argument("--steps", type=int, default=4)
ap.add_argument("--skip", type=int, default=1, help="steps left out of the averages")
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--micro", type=int, default=16, help="sequences per forward/backward")
ap.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
a = ap.parse_args()
PROMPTS, GROUP = 8, 8

import torch
torch.set_num_threads(a.threads)
import transformers, trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
transformers.logging.set_verbosity_error()
rng = random.Random(0)


def record():
    level, host, ms = rng.choice(["DEBUG", "INFO", "WARN", "ERROR"]), f"{rng.choice(['db', 'web', 'api', 'cache'])}-{rng.randint(1, 20)}", rng.randint(1, 9999)
    line = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d} {level} host={host} latency={ms}ms"
    return line, json.dumps(dict(level=level, host=host, ms=ms))


def problem():
    ask = "Log line to JSON with keys level, host, ms: "
    (one, answer), (two, wanted) = record(), record()
    return dict(prompt=[dict(role="user", content=ask + one), dict(role="assistant", content=answer), dict(role="user", content=ask + two)], answer=wanted)


def reward(prompts, completions, answer, **kw):
    return [1.0 if c[0]["content"].strip() == w else 0.0 for c, w in zip(completions, answer)]


model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
tok = AutoTokenizer.from_pretrained(a.model, padding_side="left")
if tok.pad_token is None:
    tok.pad_token = tok.eos_token
args = GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=a.bf16, gradient_checkpointing=False, report_to="none", logging_steps=1, save_strategy="no", disable_tqdm=True,
                  max_steps=a.steps, per_device_train_batch_size=a.micro, gradient_accumulation_steps=PROMPTS * GROUP // a.micro, num_generations=GROUP, max_completion_length=48,
                  temperature=1.0, learning_rate=2e-5, lr_scheduler_type="constant", beta=0.0, seed=0, shuffle_dataset=False, dataloader_num_workers=0)
tr = GRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=Dataset.from_list([problem() for _ in range(PROMPTS * (a.steps + 1))]), processing_class=tok)
count, prompt_tokens = [], []
orig = tr._generate_single_turn


def counted(prompt_ids, *r, **k):
    out = orig(prompt_ids, *r, **k)
    count.append(sum(len(c) for c in out[0]))
    prompt_tokens.extend(len(p) for p in prompt_ids)
    return out


tr._generate_single_turn = counted
ends = []


class Clock(TrainerCallback):
    def on_step_end(self, *x, **k):
        ends.append(time.perf_counter())


tr.add_callback(Clock())
tr.train()
step = [y - x for x, y in zip(ends, ends[1:])][a.skip - 1:]
print(json.dumps(dict(bench="trl_smollm2_cpu", threads=a.threads, micro=a.micro, steps_timed=len(step), s_per_step=sum(step) / len(step),
                      mean_completion_tokens=sum(count[a.skip:]) / len(count[a.skip:]) / (PROMPTS * GROUP), prompt_tokens=sum(prompt_tokens) / len(prompt_tokens),
                      peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                      versions=dict(torch=torch.__version__, transformers=transformers.__version__, trl=trl.__version__, python=sys.version.split()[0]))))
