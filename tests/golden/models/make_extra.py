#!/usr/bin/env python3
"""Makes the folders qwen3_window and qwen3_moe_mixed and rope.json beside this file.

Needs torch 2.11, transformers 5.24 and safetensors (bench/peers has an environment). One thread, seeded:
    HF_HUB_OFFLINE=1 python make_extra.py
"""
import json, math, os

import torch
import torch.nn.functional as F
import transformers as T
from safetensors.torch import save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

HERE = os.path.dirname(os.path.abspath(__file__))
LENS, VOCAB = [24, 17, 9], 96
torch.set_num_threads(1)
BASE = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=12, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, tie_word_embeddings=False)


def specs():
    yield "qwen3_window", 31, T.Qwen3Config(
        **BASE, use_sliding_window=True, sliding_window=6, max_window_layers=1,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})
    yield "qwen3_moe_mixed", 32, T.Qwen3MoeConfig(
        **{**BASE, "num_hidden_layers": 4}, moe_intermediate_size=20, num_experts=6, num_experts_per_tok=3,
        norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def fill(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            r = torch.randn(p.shape, generator=g)
            p.copy_(1 + 0.2 * r if "norm" in name else 0.4 * r if "embed" in name or "lm_head" in name
                    else 2 * r / math.sqrt(p.shape[-1]) if name.endswith("mlp.gate.weight") else r / math.sqrt(p.shape[-1]))
    return model.eval()


def greedy(model, prompt, n):
    ids, out, margin = list(prompt), [], 9.0
    for _ in range(n):
        with torch.no_grad():
            top = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2).values
            best = model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item()
        margin = min(margin, (top[0] - top[1]).item())
        ids.append(best); out.append(best)
    return out, margin


def per_expert(norms, model):
    """Gradient norms under the checkpoint's per-expert names."""
    for name in [n for n in norms if ".experts." in n]:
        grad = model.get_parameter(name).grad
        del norms[name]
        for e in range(grad.shape[0]):
            at = name.rsplit(".", 1)[0] + f".{e}."
            if name.endswith("gate_up_proj"):
                gate, up = grad[e].chunk(2, 0)
                norms[at + "gate_proj.weight"] = gate.double().norm().item()
                norms[at + "up_proj.weight"] = up.double().norm().item()
            else:
                norms[at + "down_proj.weight"] = grad[e].double().norm().item()


def logprobs(logits, ids, mask):
    lp = torch.zeros(ids.shape)
    lp[:, 1:] = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    return lp * mask


def model_folders():
    for name, seed, config in specs():
        folder = os.path.join(HERE, name)
        model = fill(T.AutoModelForCausalLM.from_config(config, attn_implementation="eager"), seed)
        model.save_pretrained(folder)
        g = torch.Generator().manual_seed(seed + 100)
        rows = [torch.randint(3, VOCAB, (n,), generator=g) for n in LENS]
        ids, mask = torch.zeros(3, max(LENS), dtype=torch.long), torch.zeros(3, max(LENS), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, :len(row)] = row; mask[i, :len(row)] = 1
        out = model(input_ids=ids, attention_mask=mask, **({"output_router_logits": True} if "moe" in name else {}))
        logits = out.logits * mask[..., None]
        labels = ids.masked_fill(mask == 0, -100)
        loss = F.cross_entropy(out.logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1), ignore_index=-100)
        loss.backward()
        norms = {n: p.grad.double().norm().item() for n, p in model.named_parameters()}
        per_expert(norms, model)
        prompts = [[5, 9, 14], [7] * 11, list(range(20, 50)), [90]]
        made = [greedy(model, p, 32) for p in prompts]
        golden = {"loss": loss.item(), "grad_norms": norms,
                  "greedy": {"prompts": prompts, "new_tokens": [m[0] for m in made], "min_margin": min(m[1] for m in made)}}
        tensors = {"right.input_ids": ids, "right.attention_mask": mask, "right.logits": logits.detach(),
                   "right.logprobs": logprobs(logits, ids, mask).detach()}
        if "moe" in name:
            tensors["right.router_logits"] = torch.stack([r.reshape(3, max(LENS), -1) for r in out.router_logits]).detach()
            golden["router_aux_loss"] = load_balancing_loss_func(
                out.router_logits, config.num_experts, config.num_experts_per_tok, mask).item()
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "golden.safetensors"))
        with open(os.path.join(folder, "golden.json"), "w") as f:
            json.dump(golden, f, indent=1)
        print(name, "margin", golden["greedy"]["min_margin"], "loss", golden["loss"])


def rope_table():
    """Inverse frequencies of published settings."""
    cases = [
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 4096,
         "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 4096,
         "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False},
    ]
    table = []
    for rope in cases:
        config = T.Qwen3Config(**{**BASE, "head_dim": 128}, rope_parameters=dict(rope))
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
        table.append({"rope_parameters": rope, "head_dim": 128, "attention_factor": factor,
                      "frequencies": [float(f"{x:.9g}") for x in frequencies.tolist()]})
    with open(os.path.join(HERE, "rope.json"), "w") as f:
        json.dump(table, f, indent=1)


model_folders()
rope_table()
