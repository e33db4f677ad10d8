#!/usr/bin/env python3
"""Makes types.gguf and types.safetensors beside this file: a tensor of every type that can be dequantised, random
blocks with sane scales, and what gguf.quants.dequantize makes of them. Needs numpy, gguf 0.19.0, safetensors."""
import os

import numpy as np
from gguf import GGUFWriter, GGMLQuantizationType as Q
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
# Where the float16 scales stand in a block.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
rng = np.random.default_rng(7)
writer = GGUFWriter(os.path.join(HERE, "types.gguf"), "llama")
expected = {}
for name in ["F32", "F16", "BF16"] + list(HALVES):
    q = Q[name]
    elements, size = GGML_QUANT_SIZES[q]
    if name in HALVES:
        rows, blocks = 2, 2
        data = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
        for at in HALVES[name]:
            data[:, at:at + 2] = rng.normal(0, 0.02, (rows * blocks, 1)).astype(np.float16).view(np.uint8)
        data = data.reshape(rows, blocks * size)
    else:
        values = rng.normal(0, 2, (2, 33)).astype(np.float32)
        data = values if name == "F32" else values.astype(np.float16) if name == "F16" else \
            (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(2, 66)
    writer.add_tensor(name, data, raw_dtype=q)
    expected[name] = np.ascontiguousarray(dequantize(data, q).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
save_file(expected, os.path.join(HERE, "types.safetensors"))
print({k: v.shape for k, v in expected.items()})
