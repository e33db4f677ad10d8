"""The tokenizers library on the text that tokenizer_bench encodes, one thread. Prints one line of JSON."""
import argparse
import json
import os
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402

ap = argparse.ArgumentParser()
ap.add_argument("model")
ap.add_argument("--text", required=True)
ap.add_argument("--piece-bytes", type=int, default=0)
args = ap.parse_args()
tokenizer = tokenizers.Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
data = open(args.text, "rb").read()
pieces, begin = [], 0
while args.piece_bytes and begin + args.piece_bytes < len(data):
    end = begin + args.piece_bytes
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    pieces.append(data[begin:end].decode())
    begin = end
pieces.append(data[begin:].decode())
start, cpu = time.perf_counter(), time.process_time()
tokens = sum(len(tokenizer.encode(piece, add_special_tokens=False).ids) for piece in pieces)
seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps(dict(tokens=tokens, bytes=len(data), seconds=seconds, cpu_seconds=cpu_seconds,
                      tokens_per_second=tokens / cpu_seconds,
                      version=tokenizers.__version__)))
