"""The environment of tests and of the commands that they start."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported, which reads it once
os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, which reads it once
# An engine finds out by itself whether bfloat16 needs this, but only before torch has used oneDNN.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
