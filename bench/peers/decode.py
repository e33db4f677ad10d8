#!/usr/bin/env python3
"""Batch decode with transformers: greedy, batch 64, 16 prompt tokens, 128 new tokens, no early stop. Prints one JSON line.

  python decode.py make DIR     writes DIR/tiny and DIR/m135: random weights from a seed, HF layout, float32
  python decode.py hf DIR/tiny  transformers generate (dynamic cache; --static for a static cache)
Options: --batch 64 --prompt 16 --new 128 --threads 2 --repeat 3
"""
import argparse, json, os, resource, sys, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ap = argparse.ArgumentParser()
ap.add_argument("what"); ap.add_argument("where", nargs="?"); ap.add_argument("kind", nargs="?")
ap.add_argument("--batch", type=int, default=64); ap.add_argument("--prompt", type=int, default=16); ap.add_argument("--new", type=int, default=128)
ap.add_argument("--threads", type=int, default=2); ap.add_argument("--repeat", type=int, default=3); ap.add_argument("--static", action="store_true")
ap.add_argument("--dtype", default="float32")
a = ap.parse_args()
os.environ["OMP_NUM_THREADS"] = str(a.threads)
N135 = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048, rms_norm_eps=1e-5)


def prompts(vocab):
    import random
    r = random.Random(1)
    return [[r.randrange(10, vocab) for _ in range(a.prompt)] for _ in range(a.batch)]


def report(name, times, extra=None):
    best = min(times)
    print(json.dumps(dict(bench="decode", engine=name, model=a.where and os.path.basename(os.path.dirname(a.where) if a.where.endswith(".gguf") else a.where.rstrip("/")), batch=a.batch, prompt=a.prompt, new=a.new, threads=a.threads,
                          best_s=round(best, 3), all_s=[round(t, 3) for t in times], tok_per_s=round(a.batch * a.new / best, 1), load1=round(os.getloadavg()[0], 2),
                          peak_rss_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), **(extra or {}))), flush=True)


if a.what == "make":
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
    torch.manual_seed(0)
    c = LlamaConfig(**N135, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    AutoModelForCausalLM.from_config(c, dtype=torch.float32).save_pretrained(os.path.join(a.where, "m135"))
    c = Qwen3Config(vocab_size=512, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=32, max_position_embeddings=256, tie_word_embeddings=True,
                    bos_token_id=1, eos_token_id=2, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    AutoModelForCausalLM.from_config(c, dtype=torch.float32).save_pretrained(os.path.join(a.where, "tiny"))
    from tokenizers import Tokenizer, models as tm
    from transformers import PreTrainedTokenizerFast
    for n, v in (("m135", 49152), ("tiny", 512)):
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(tm.WordLevel({f"w{i:05d}": i for i in range(v)}, unk_token="w00003")), pad_token="w00000", bos_token="w00001", eos_token="w00002").save_pretrained(os.path.join(a.where, n))

elif a.what == "hf":
    import torch, transformers
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(a.threads)
    m = AutoModelForCausalLM.from_pretrained(a.where, dtype=getattr(torch, a.dtype)).eval()
    m.generation_config.eos_token_id = None
    ids = torch.tensor(prompts(m.config.vocab_size)); ts = []
    for _ in range(a.repeat):
        t0 = time.perf_counter()
        with torch.inference_mode():
            o = m.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=a.new, pad_token_id=0, disable_compile=True, **({"cache_implementation": "static"} if a.static else {}))
            assert o.shape[1] == a.prompt + a.new
        ts.append(time.perf_counter() - t0)
    report("transformers generate" + (" static cache" if a.static else ""), ts, dict(dtype=a.dtype, versions=dict(torch=torch.__version__, transformers=transformers.__version__)))
