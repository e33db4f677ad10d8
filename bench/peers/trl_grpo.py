#!/usr/bin/env python3
"""Peer benchmark: TRL's GRPOTrainer on the CPU, tiny Qwen3-architecture model, verifiable addition task.

  HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 python trl_grpo.py [--init random|warm] [--steps 8] [--threads 2] [--save-init DIR] [--load DIR]

16 prompts x 8 completions per step, at most 32 new tokens, temperature 1, one optimizer step per rollout batch, float32 (--bf16: with autocast).
Prompt: "a+b=" in single characters; reward 1 when the completion's characters up to the end token are the sum.
Prints one JSON object. `--save-init DIR` writes the model (HF layout) so that another system can start from the same weights.
"""
import argparse, json, os, random, resource, sys, tempfile, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
ap = argparse.ArgumentParser()
ap.add_argument("--init", default="random", choices=["random", "warm"])
ap.add_argument("--warm-steps", type=int, default=300)
ap.add_argument("--steps", type=int, default=8)
ap.add_argument("--skip", type=int, default=2, help="steps left out of the averages")
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--prompts", type=int, default=16)
ap.add_argument("--group", type=int, default=8)
ap.add_argument("--max-new", type=int, default=32)
ap.add_argument("--micro", type=int, default=128, help="sequences per forward/backward")
ap.add_argument("--max-int", type=int, default=99)
ap.add_argument("--lr", type=float, default=1e-4)
ap.add_argument("--beta", type=float, default=0.0)
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--save-init")
ap.add_argument("--load")
ap.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
ap.add_argument("--no-eos-stop", action="store_true", help="never stop early: every completion has max-new tokens")
a = ap.parse_args()

import torch
torch.set_num_threads(a.threads)
import transformers, trl
from datasets import Dataset
from tokenizers import Tokenizer, models as tm, pre_tokenizers as tp, decoders as td
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
transformers.logging.set_verbosity_error()

CHARS = ["<pad>", "<bos>", "<eos>"] + list("0123456789+-*=() \n") + [chr(c) for c in range(33, 127) if chr(c) not in "0123456789+-*=()"]
VOCAB = {c: i for i, c in enumerate(CHARS)}
for i in range(len(VOCAB), 512):
    VOCAB[f"<r{i}>"] = i
t = Tokenizer(tm.BPE(vocab=VOCAB, merges=[])); t.pre_tokenizer = tp.Split("", "isolated"); t.decoder = td.Fuse()
tok = PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left")
torch.manual_seed(a.seed); rng = random.Random(a.seed)
cfg = Qwen3Config(vocab_size=512, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
                  max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                  rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
model = AutoModelForCausalLM.from_pretrained(a.load, dtype=torch.float32) if a.load else AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)


def problem():
    x, y = rng.randint(0, a.max_int), rng.randint(0, a.max_int)
    return f"{x}+{y}=", str(x + y)


warm_s = None
if a.init == "warm" and not a.load:
    t0 = time.time(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01); model.train()
    for step in range(a.warm_steps):
        rows, labs = [], []
        for _ in range(64):
            p, s = problem(); pi, si = tok.encode(p, add_special_tokens=False), tok.encode(s, add_special_tokens=False) + [2]
            rows.append(pi + si); labs.append([-100] * len(pi) + si)
        w = max(map(len, rows))
        ids = torch.tensor([r + [0] * (w - len(r)) for r in rows]); lab = torch.tensor([r + [-100] * (w - len(r)) for r in labs])
        loss = model(input_ids=ids, attention_mask=(torch.arange(w)[None] < torch.tensor([len(r) for r in rows])[:, None]).long(), labels=lab).loss
        loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad()
    warm_s = time.time() - t0
if a.save_init:
    model.save_pretrained(a.save_init); tok.save_pretrained(a.save_init)

data = [dict(zip(("prompt", "answer"), problem())) for _ in range(a.prompts * (a.steps + 1))]


def reward(prompts, completions, answer, **kw):
    return [1.0 if c == s else 0.0 for c, s in zip(completions, answer)]


tmp = tempfile.mkdtemp()
n = a.prompts * a.group
args = GRPOConfig(output_dir=tmp, use_cpu=True, bf16=a.bf16, gradient_checkpointing=False, report_to="none", logging_steps=1, save_strategy="no", disable_tqdm=True, max_steps=a.steps,
                  per_device_train_batch_size=min(a.micro, n), gradient_accumulation_steps=max(1, n // a.micro), num_generations=a.group, max_completion_length=a.max_new, temperature=1.0,
                  learning_rate=a.lr, lr_scheduler_type="constant", beta=a.beta, seed=a.seed, shuffle_dataset=False, dataloader_num_workers=0,
                  generation_kwargs={"min_new_tokens": a.max_new} if a.no_eos_stop else None)
tr = GRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(data), processing_class=tok)
gen_t, gen_tok, seq_tok, marks = [], [], [], []
orig = tr._generate_single_turn


def timed(prompt_ids, *r, **k):
    t0 = time.perf_counter(); out = orig(prompt_ids, *r, **k); gen_t.append(time.perf_counter() - t0)
    gen_tok.append(sum(len(c) for c in out[0])); seq_tok.append(gen_tok[-1] + sum(len(p) for p in prompt_ids))
    return out


tr._generate_single_turn = timed


class Clock(TrainerCallback):
    def on_step_begin(self, *x, **k):
        marks.append([time.perf_counter(), None])

    def on_step_end(self, *x, **k):
        marks[-1][1] = time.perf_counter()


tr.add_callback(Clock())
t0 = time.perf_counter(); tr.train(); total = time.perf_counter() - t0
ends = [m[1] for m in marks]
step = [ends[i] - ends[i - 1] for i in range(1, len(ends))][a.skip - 1:]      # whole step: generation, scoring and update
g, gt, st = gen_t[a.skip:], gen_tok[a.skip:], seq_tok[a.skip:]
log = [e for e in tr.state.log_history if "loss" in e]
print(json.dumps(dict(
    bench="trl_grpo_cpu", init=a.init, threads=a.threads, params=sum(p.numel() for p in model.parameters()), prompts=a.prompts, group=a.group, max_new=a.max_new, micro=a.micro,
    steps_timed=len(step), s_per_step=sum(step) / len(step), s_generate=sum(g) / len(g), s_rest=sum(step) / len(step) - sum(g) / len(g),
    mean_completion_tokens=sum(gt) / len(gt) / n, generated_tok_per_s_of_step=sum(gt) / sum(step), generated_tok_per_s_while_generating=sum(gt) / sum(g),
    trained_tok_per_s_of_step=sum(gt) / sum(step), sequence_tok_per_s_while_training=sum(st) / (sum(step) - sum(g)),
    reward_first=log[0].get("reward"), reward_last=log[-1].get("reward"), reward_curve=[round(sum(e["reward"] for e in log[i:i + 10]) / len(log[i:i + 10]), 4) for i in range(0, len(log), 10)], total_s=total, warm_s=warm_s, peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    versions=dict(torch=torch.__version__, transformers=transformers.__version__, trl=trl.__version__, python=sys.version.split()[0]))))
